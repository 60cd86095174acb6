"""``time --cpu``: handlers measure calls by two clocks, and results have the usual form."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from anyprobe.cli.programs import targets

if TYPE_CHECKING:
    from anyprobe.cli.programs.targets import AnySpec, Measured
    from anyprobe.data.snapshots.snapshot import Snapshot


class CpuTimes:
    """The durations of calls, and how long they were on processors."""

    def arm(self, session: "Measured", specs: "Sequence[AnySpec]") -> None:
        """Place the handlers."""
        from anyprobe.probes.waiting.cpu_time import place_cpu_times

        process = targets.on_process(session, "times on processors")
        place_cpu_times(process, [targets.process_spec(each) for each in specs])

    def seen(self, snapshot: "Snapshot") -> "Snapshot":
        """Return results with functions in the stead of what handlers have counted."""
        from anyprobe.cli.handlers.conditional import timing_of
        from anyprobe.data.snapshots.cpu_time import CALLS, CPU, OF_CPU, READING, TAILS, CpuTime

        found = {each.name: each.entries for each in snapshot.aggregations if each.name in OF_CPU}
        if not found:
            return snapshot
        others = tuple(each for each in snapshot.aggregations if each.name not in OF_CPU)
        lost = {each.name: {"no room": each.dropped} for each in snapshot.aggregations if each.dropped}
        calls, cpu, tails = (
            {str(key[0]): cell for key, cell in found.get(name, {}).items()} for name in (CALLS, CPU, TAILS)
        )
        least = next(iter(found.get(READING, {}).values()), None)
        reading = 0.0 if least is None else float(least.min or 0)
        functions = []
        entries = [each for each in snapshot.sites if each.kind == "entry"]
        for site in entries:
            name = f"{site.module}:{site.function}"
            timing = timing_of(site, calls.get(name), tails.get(name))
            if name in cpu:
                own = CpuTime.of(timing.sum_ns, float(cpu[name].sum or 0), timing.count, reading)
                timing = replace(timing, cpu=own)
            functions.append(timing)
        return replace(
            snapshot,
            sites=(),
            functions=tuple(functions),
            aggregations=others,
            dropped={**snapshot.dropped, **lost},
        )
