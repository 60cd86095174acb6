"""Archives: all that was measured, to be shown, merged, compared and exported later (docs/archives.md)."""

from dataclasses import replace
from typing import TextIO
from weakref import WeakKeyDictionary

from anyprobe.data.archives.runs import RunInfo, Writer
from anyprobe.exporters.base import Measurement, Needs


class Archive:
    """Writes an archive: intervals as they come, and the results at the end."""

    name = "archive"
    needs = Needs.ANYTHING
    holds_warnings = True
    may_repeat = True

    def __init__(self) -> None:
        """Write nowhere yet."""
        self._writers: WeakKeyDictionary[TextIO, Writer] = WeakKeyDictionary()

    def writer(self, stream: TextIO, info: RunInfo) -> Writer:
        """Return what writes lines to a stream, which has the first one then."""
        if stream not in self._writers:
            stream.flush()
            self._writers[stream] = Writer(stream.buffer, info)
        return self._writers[stream]

    def write(self, found: Measurement, stream: TextIO) -> None:
        """Write what was added since the last time, or the end."""
        assert found.run is not None
        writer = self.writer(stream, found.run.info)
        if found.last is not None:
            writer.add_interval(found.last)
        if found.between:
            writer.add_records(found.records)
            return
        snapshots = () if found.run.profile else tuple(found.snapshots)  # a profile's own are made of it
        writer.end(replace(found.run, snapshots=snapshots, records=found.records))


EXPORTER = Archive()
