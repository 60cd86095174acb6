"""Whether the program has forbidden a thread to read the time stamp counter since probes began to read it there."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyprobe.probes.providers.function.forks.adopting import HeaderWord
from anyprobe.probes.providers.function.handlers.filter_watch import FilterWatch
from anyprobe.splice.userspace.seccomp_hook import FilterChecks
from anyprobe.splice.userspace.tsc_hook import ClockChecks

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.handlers.filter_watch import Checks
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.probe import Probe
    from anyprobe.splice.edits import Edit

FORBIDDEN = (
    "a thread has forbidden itself to read the time stamp counter (PR_SET_TSC, or seccomp's strict mode): calls since "
    "then are not timed, and what needs the time is missed"
)

FILTERED = (
    "a thread has begun to filter its system calls, by which --clock cpu asks for the time, or has forbidden itself to "
    "read the time stamp counter: calls since then are not timed"
)


class ClockWatch:
    """Sees a program forbid it, process by process; from then on nothing reads it there."""

    def __init__(self, session: "ProbeHost") -> None:
        """Place nothing yet."""
        self._splicing, self._holdings = session.splicing, session.splicing.holdings
        word = HeaderWord(self._word)
        self._objects = objects = session.symbols.objects
        # threads that may make no system calls cannot ask for their time on processors
        self._asks = session.options.on_processors
        checks: tuple[Checks, ...] = (ClockChecks(), FilterChecks()) if self._asks else (ClockChecks(),)
        self._watches = [FilterWatch(session.splicing, objects, word, everywhere=True, checks=each) for each in checks]

    def edits(self, probes: "Sequence[Probe]") -> "Sequence[Edit]":
        """Return the edits that watch, to be made in one change with the first of some probes that read the clock."""
        hooks = (place.hook for probe in probes for place in probe.all_places)
        reads = any(probe.timed for probe in probes) or any(hook.handler and hook.handler.reads_clock for hook in hooks)
        # elsewhere nothing that is placed reads it
        wanted = reads and (self._splicing.planning.slots or self._runs_go())
        return [edit for watch in self._watches for edit in watch.edits()] if wanted else ()

    def _word(self) -> int:
        word = self._holdings.clock_word()
        assert word is not None
        return word[2]

    def _runs_go(self) -> bool:
        return self._objects.goroutine_number_at() is not None

    def warnings(self) -> tuple[str, ...]:
        """Return what is to be said of it."""
        word = self._holdings.clock_word()
        if word is None:
            return ()
        arena, offset, _ = word
        return (FILTERED if self._asks else FORBIDDEN,) if any(arena.view(offset, 4)) else ()
