"""Splices that could not be taken out: a task was in the patch, or a kprobe had copied the jump that leads there.

Their handlers run until they can be. That is tried again at each look at anything that the session has counted.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.kernel.splices.joints import Change, Joints, Numbered
from anyprobe.probes.providers.kernel.splices.patch_memory import Piece
from anyprobe.probes.providers.kernel.splices.writing import write
from anyprobe.splice.plan.splices import Want
from anyprobe.target.kernel.driver.device import Driver

_PASSING: Final = {Reason.TASK_INSIDE, Reason.KPROBE}
"""Why a splice cannot be taken out now, but later."""


class _Removal(NamedTuple):
    wants: tuple[Want, ...]
    change: Change | None
    """Their removal from what was there when it was last tried."""


@dataclass(frozen=True, slots=True)
class Late:
    """The removals of a session that wait, and the memory that goes with them."""

    driver: Driver
    joints: Joints
    waiting: dict[int, _Removal] = field(default_factory=dict)
    """By where they are written."""
    removed: list[tuple[Sequence[Numbered], Sequence[Piece]]] = field(default_factory=list)
    """What is or will be removed, and the routines of handlers that are there as long as any of it is in force."""

    @property
    def wants(self) -> set[Want]:
        """What is still in force."""
        return {want for each in self.waiting.values() for want in each.wants}

    def add(self, removal: Numbered, why: Refusal) -> None:
        """Take note that a removal was refused."""
        before = self.waiting.pop(removal.site, None)
        if before is not None:
            if before.change is not None:
                self.joints.discard(before.change)
            self.joints.discard(removal.change)
            self.waiting[removal.site] = _Removal((*before.wants, *removal.wants), None)
        elif why.reason in _PASSING:
            self.waiting[removal.site] = _Removal(removal.wants, removal.change)
        else:  # the driver sees to it when the session ends
            self.joints.discard(removal.change)

    def try_again(self) -> None:
        """Take out what can be taken out by now, each by itself."""
        for site, (wants, known) in [*self.waiting.items()]:
            change = known or self.joints.drop(site, wants)
            why = self._refused(change)
            if change is not None and why is not None and why.reason not in _PASSING:  # others are there by now
                self.joints.discard(change)
                change = self.joints.drop(site, wants)
                why = self._refused(change)
            del self.waiting[site]
            if change is not None and why is not None:
                self.add(Numbered(change, wants), why)
        self._give_back()

    def _refused(self, change: Change | None) -> Refusal | None:
        """Write a change, or return why it cannot be written."""
        if change is None:
            return None
        return write(self.driver, [change], self.joints, tries=1).get(change.write.address)

    def remove_routines(self, removed: Sequence[Numbered], routines: Sequence[Piece]) -> None:
        """Take back the routines of handlers when nothing of what has been removed is in force any more."""
        self.removed.append((removed, routines))
        self._give_back()

    def _give_back(self) -> None:
        several, self.removed[:] = [*self.removed], []
        for removed, routines in several:
            if any(self.joints.has(each.site, each.wants) for each in removed):
                self.removed.append((removed, routines))
            else:
                self.joints.memory.leave(routines)
