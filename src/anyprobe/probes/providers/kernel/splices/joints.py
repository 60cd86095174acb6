"""Places of the kernel's text whose jump leads to one patch for all that a session has asked for there.

Several handlers may be at one place, one probe after the other. Whenever one comes or goes, a new patch is made for
those that are left, and the jump is written anew, in one stop: no hit is seen by some of them only.
"""

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from anyprobe.core.errors import InternalError
from anyprobe.core.refusal import Refusal
from anyprobe.probes.providers.kernel.splices.wanted import number_of
from anyprobe.splice.codegen.emit import estimate
from anyprobe.splice.codegen.patch import Action
from anyprobe.splice.kernel.patches import KernelPatch, PatchMaker
from anyprobe.splice.plan.splices import PlannedSplice, Want
from anyprobe.target.kernel.driver.layout import Fixup, Write

Actions = dict[Want, tuple[Action, ...]]
ROOM = 112
"""Bytes of a patch besides what is estimated: copies of what the text has now, and the call of a handler."""


@dataclass(frozen=True, eq=False, slots=True)
class Joint:
    """What is in force at a place: how its patch is made, and the bytes there."""

    maker: PatchMaker
    splice: PlannedSplice
    actions: Actions
    old: bytes
    new: bytes


@dataclass(frozen=True, eq=False, slots=True)
class Change:
    """A write, and what is in force after it; ``after`` None: the text as it was."""

    write: Write
    fixups: tuple[Fixup, ...] = ()
    after: Joint | None = None

    @classmethod
    def of(cls, patch: KernelPatch) -> "Change":
        """Return the change by which a patch alone comes in force."""
        return cls(Write(patch.site, patch.old, patch.new, patch.boundaries), _fixups(patch))


class Numbered(NamedTuple):
    """A write that leads to a patch, and what is wanted there."""

    change: Change
    wants: tuple[Want, ...]

    @property
    def numbers(self) -> frozenset[int]:
        """The numbers of the sites that are counted there."""
        return frozenset(map(number_of, self.wants))

    @property
    def site(self) -> int:
        """Where it is written."""
        return self.change.write.address


@dataclass(frozen=True, slots=True)
class Joints:
    """All places of a session, by the address of the write."""

    at: dict[int, Joint]
    reserve: Callable[[int], int]
    write: Callable[[int, bytes], None]
    """Give memory for a patch, and write it there."""
    leaving: set[Want] = field(default_factory=set)
    """What is removed, but runs on as long as a task is in its patch: the next patch of a place is without it."""

    def add(self, maker: PatchMaker, splice: PlannedSplice, actions: Actions, patch: KernelPatch) -> Change | Refusal:
        """Return the change by which a splice, of which there is a patch, comes in force beside what is there."""
        before = self.at.get(patch.site)
        if before is None or not _is_same_place(before, splice, patch):
            own = Joint(maker, splice, actions, patch.old, patch.new)
            return replace(Change.of(patch), after=own)
        both = replace(before.splice, wants=[*self._staying(before), *splice.wants])
        return self._made(replace(before, splice=both, actions=before.actions | actions), patch.site)

    def drop(self, address: int, wants: Collection[Want]) -> Change | None:
        """Return the change by which some wants are gone from a place, None if nothing has to change."""
        before = self.at.get(address)
        if before is None:
            return None
        left = [want for want in self._staying(before) if want not in wants]
        if not left:
            return Change(Write(address, before.new, before.old))
        if len(left) == len(before.splice.wants):
            return None
        made = self._made(replace(before, splice=replace(before.splice, wants=left)), address)
        return None if isinstance(made, Refusal) else made

    def commit(self, change: Change) -> None:
        """Take note that a change is in force."""
        if change.after is None:
            self.at.pop(change.write.address, None)
        else:
            self.at[change.write.address] = change.after

    def _staying(self, joint: Joint) -> list[Want]:
        return [want for want in joint.splice.wants if want not in self.leaving]

    def _made(self, after: Joint, address: int) -> Change | Refusal:
        tests = sum(map(test_bytes, after.actions.values()))
        room = estimate(after.splice) + tests + ROOM * (1 + len(after.splice.wants))
        at = self.reserve(room)
        patch = after.maker.make(after.splice, at, lambda want: after.actions[want])
        if isinstance(patch, Refusal):
            return patch
        if len(patch.code) > room:
            raise InternalError(f"a patch of {len(patch.code)} bytes where {room} were expected")
        self.write(at, patch.code)
        return Change(Write(address, after.new, patch.new), _fixups(patch), replace(after, new=patch.new))


def test_bytes(actions: Iterable[Action]) -> int:
    """Return an upper bound of the bytes that tests of the process take in some actions."""
    return sum(each.bank.processes.estimate for each in actions if each.bank.processes is not None)


def _is_same_place(before: Joint, splice: PlannedSplice, patch: KernelPatch) -> bool:
    mine, theirs = before.splice, splice
    alike = (mine.strategy, mine.head, mine.write_at, mine.written) == (
        theirs.strategy, theirs.head, theirs.write_at, theirs.written,
    )  # fmt: skip
    return alike and before.old == patch.old


def _fixups(patch: KernelPatch) -> tuple[Fixup, ...]:
    return tuple(Fixup(*pair) for pair in patch.faulting)
