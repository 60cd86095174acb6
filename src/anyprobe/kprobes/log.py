"""What handlers have printed, as ``dmesg`` would show it."""

import heapq
from itertools import repeat
from typing import TYPE_CHECKING

from anyprobe.data.aggregates.records import TIME, rows
from anyprobe.probes.scripts.current import current
from anyprobe.reports.records import line

if TYPE_CHECKING:
    from anyprobe.data.aggregates.records import Records
    from anyprobe.probes.providers.kernel.session import KernelSession
    from anyprobe.probes.session import Session


def dmesg(*, final: bool = False, session: "Session | KernelSession | None" = None) -> list[str]:
    """Return the lines of ``printf`` and ``emit`` since the last time, in the order of time.

    ``final``: nothing more comes, so what is not complete by now never will be.
    """
    found = _records(session or current(), final=final)
    streams = [zip(repeat(name), repeat(form), rows(batch), strict=False) for name, form, batch in found]
    merged = heapq.merge(*streams, key=lambda item: item[2][TIME])
    return [line(name, form, row) for name, form, row in merged]


def _records(session: "Session | KernelSession", *, final: bool) -> "list[tuple[str, str, Records]]":
    """Return what was emitted since the last time: names, how rows are shown, and rows."""
    from anyprobe.probes.providers.kernel.session import KernelSession

    if isinstance(session, KernelSession):
        if not session.detached:
            return list(session.collection.records(None))
        forms = session.collection.storages
        return [(name, getattr(forms.get(name), "format", ""), found) for name, found in session.records().items()]
    return list(session.handling.records(final=final))
