"""Processes that a command looks at without probes in them: some that run, or one that it starts."""

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from anyprobe.cli.programs import ending, targets
from anyprobe.cli.programs.started import Unprobed
from anyprobe.cli.terminal.interrupts import Interrupts


@dataclass(frozen=True, slots=True)
class LookedAt:
    """Processes that a command looks at without probes in them: some that run, or the one that it has started."""

    started: Unprobed | None
    pids: Sequence[int]
    ends: dict[int, int]
    """The processes that have not ended, by a descriptor that becomes readable then."""

    def settle(self, at_end: str | None, *, own_end: bool, quiet: bool) -> int | None:
        """End the started command, or leave it; return its exit status if it has ended.

        ``own_end``: it is over by what was asked for, not by a signal, and the command still runs.
        """
        if self.started is None:
            return None
        return ending.settle(self.started, at_end or (ending.KILL if own_end else ending.LEAVE), quiet=quiet)


def looked_at(stack: ExitStack, target: targets.Target, interrupts: Interrupts, at_end: str | None) -> LookedAt:
    """Return what is to be looked at; a command is held before its first instruction, and signals are its own, too."""
    started = stack.enter_context(Unprobed(target.program)) if target.program else None
    pids: Sequence[int] = target.pids if started is None else (started.pid,)
    if started is not None:
        interrupts.serve(started.pid)
    ends = targets.end_descriptors(stack, pids)
    stack.enter_context(ending.mistakes_end(started, at_end))
    return LookedAt(started, pids, ends)
