"""``time --cpu``: handlers measure calls by two clocks, and results have the usual form."""

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from anyprobe.cli.programs import targets

if TYPE_CHECKING:
    from anyprobe.cli.programs.targets import AnySpec, Measured
    from anyprobe.data.snapshots.metrics import Metric
    from anyprobe.data.snapshots.snapshot import FunctionTiming, SiteResult, Snapshot


class CpuTimes:
    """The durations of calls, and how long they were on processors."""

    def arm(self, session: "Measured", specs: "Sequence[AnySpec]") -> None:
        """Place the handlers."""
        from anyprobe.probes.waiting.cpu_time import place_cpu_times

        process = targets.on_process(session, "times on processors")
        place_cpu_times(process, [targets.process_spec(each) for each in specs])

    def seen(self, snapshot: "Snapshot") -> "Snapshot":
        """Return results with functions in the stead of what handlers have counted."""
        from anyprobe.cli.handlers.conditional import timing_of, with_functions
        from anyprobe.data.snapshots.cpu_time import CALLS, CPU, OF_CPU, READING, TAILS, CpuTime

        found = {each.name: each.entries for each in snapshot.aggregations if each.name in OF_CPU}
        if not found:
            return snapshot
        calls, cpu, tails = (
            {str(key[0]): cell for key, cell in found.get(name, {}).items()} for name in (CALLS, CPU, TAILS)
        )
        least = next(iter(found.get(READING, {}).values()), None)
        reading = 0.0 if least is None else float(least.min or 0)

        def timing(site: "SiteResult", name: str) -> "FunctionTiming":
            timing = timing_of(site, calls.get(name), tails.get(name))
            if name not in cpu:
                return timing
            own = CpuTime.of(timing.sum_ns, float(cpu[name].sum or 0), timing.count, reading)
            return replace(timing, cpu=own)

        return with_functions(snapshot, OF_CPU, timing)


class OwnValues:
    """What the handlers of a metric of its own add up at the entries of functions."""

    def __init__(self, metric: "Metric") -> None:
        """Have what the metric arms."""
        self._metric = metric

    def arm(self, session: "Measured", specs: "Sequence[AnySpec]") -> None:
        """Place the handlers."""
        assert self._metric.arm is not None
        self._metric.arm(targets.on_process(session), [targets.process_spec(each) for each in specs])

    def seen(self, snapshot: "Snapshot") -> "Snapshot":
        """Return results with functions, and what their calls have measured."""
        from anyprobe.cli.handlers.conditional import timing_of, with_functions

        name = self._metric.name
        found = next((each.entries for each in snapshot.aggregations if each.name == name), {})
        sums = {str(key[0]): float(cell.sum or 0) for key, cell in found.items()}

        def timing(site: "SiteResult", function: str) -> "FunctionTiming":
            return replace(timing_of(site, None, None), count=site.hits, measured=sums.get(function, 0.0))

        return with_functions(snapshot, {name}, timing)
