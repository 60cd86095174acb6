"""The part of a session that looks at its process."""

import dataclasses
from contextlib import AbstractContextManager
from functools import cached_property

from anyprobe.data.processes import TargetInfo
from anyprobe.probes.children import Children
from anyprobe.probes.handlers.decorators import Decorators
from anyprobe.target.base import RunningProcess


class Observed(Decorators):
    """A process that may run, end, or become another program."""

    _process: RunningProcess
    _held: bool
    """Whether it was started and has not been let go yet."""

    def warn(self, *texts: str) -> None:
        """Have the user told of something, by ``warnings``."""
        self.warnings = [*self.warnings, *texts]

    @cached_property
    def children(self) -> Children:  # type: ignore[override] # it is made when it is first wanted
        """What the process and its fork children have counted."""
        return Children(self.pid, self.exe)

    @property
    def process(self) -> RunningProcess:
        """The target."""
        return self._process

    @property
    def pid(self) -> int:
        """The target's process id."""
        return self._process.pid

    @property
    def exe(self) -> str:
        """The target's executable."""
        return self._process.exe

    @property
    def called(self) -> str:
        """The name by which the target was started."""
        return self._process.called

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for the target's end; return its wait status if it is our child and has ended."""
        self.place_waiting()
        return self._process.wait(timeout)

    def became(self) -> str | None:
        """Return the program that the target runs since an exec, which has no probes; None if there was none."""
        return None if self._held else self._process.became()

    def undisturbed(self) -> AbstractContextManager[None]:
        """Have no thread stop the target for this session within a ``with`` block."""
        return self._process.undisturbed()

    @property
    def exited(self) -> bool:
        """Whether the target is gone."""
        return self._process.exited()

    @property
    def exit_status(self) -> int | None:
        """The target's wait status, where we can know it."""
        return self._process.exit_status

    @property
    def target_info(self) -> TargetInfo:
        """What is known of the target, and whether it has ended."""
        alive = not self.exited
        known = TargetInfo(self.pid, self.exe, self.exit_status, alive=alive, called=self.called)
        if not known.killed_by:
            return known
        from anyprobe.probes.death import death_of

        death = death_of(self, self.exit_status)
        if death is None:
            return known
        return dataclasses.replace(known, died_at=death.pc, died_in=death.whose, died_place=death.place)
