"""The bytes of a change that is made while the program runs, in an order of which every prefix is a correct program.

A write through ``/proc/PID/mem`` is atomic for single bytes only. So where the first byte alone changes, one store
makes the change. Otherwise the first byte becomes ``int3``; no thread can then reach what follows it, which is
written next; last comes the true first byte. Between these steps all cores are serialised. Who meets the ``int3``
meanwhile is led into the patch by the signal handler.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.splice.apply.blocked_syscalls import SYSCALL
from anyprobe.splice.apply.text import Write
from anyprobe.splice.emitted import EmittedSplice, FunctionChange
from anyprobe.splice.plan.splices import TRAP, Strategy, WantKind

_HEADS = frozenset({Strategy.JUMP, Strategy.PUNNED})
"""Strategies whose patch does what the instruction at the first written byte does, whatever leads there."""
_ORDER = {WantKind.LOOP: 0, WantKind.EXIT: 1, WantKind.OFFSET: 2, WantKind.RETURN_POINT: 3, WantKind.ENTRY: 3}
"""The order in which sites of a function begin to count: a branch back to the entry must have gone after the entry's
counter before that counts, and a call that is seen to begin should be seen to end."""

SEVERAL = "a thread may stand between the instructions that would be moved"
"""Why several instructions are not moved while the program runs."""


@dataclass(frozen=True, slots=True)
class Rewrite:
    """What becomes of the bytes at one site, which begin with an instruction. ``old`` and ``new`` have one length."""

    address: int
    old: bytes
    new: bytes
    patch: int
    """Where a thread goes on that meets an ``int3`` here."""
    arming: bool = True
    """Whether the site leads to a patch afterwards."""
    rank: int = 0
    """The place in the order in which sites begin to count; they end in the reverse order."""
    ambiguous: bool = False
    """Whether the byte after the first is an instruction too: see ``PlannedSplice.ambiguous``."""
    several: bool = False
    """Whether the old bytes overwrite several instructions: once these are back, threads may stand between them."""

    @property
    def if_undone(self) -> bytes:
        """The bytes of a change that failed: the old ones, where no thread can stand between what they overwrite."""
        return self.new if self.several else self.old

    @property
    def is_single(self) -> bool:
        """Whether the first byte alone changes."""
        return self.old[1:] == self.new[1:]


@dataclass(frozen=True, slots=True)
class Site:
    """A place of a change, before it is known what memory has there."""

    address: int
    size: int
    added: EmittedSplice | None
    removed: EmittedSplice | None

    @property
    def expected(self) -> tuple[bytes, bytes]:
        """The bytes before and after, if the file's are what was found."""
        one = max((each for each in (self.added, self.removed) if each is not None), key=lambda each: len(each.old))
        before = self.removed.new + one.old[len(self.removed.new) :] if self.removed else one.old
        after = self.added.new + one.old[len(self.added.new) :] if self.added else one.old
        return before, after

    def rewrite(self, before: bytes, after: bytes) -> Rewrite:
        """Return what is to be written."""
        splice = self.added or self.removed
        assert splice is not None
        assert splice.patch is not None
        rank = min((_ORDER[want.kind] for want in splice.planned.wants), default=0)
        first = splice.planned.insns[0].length
        return Rewrite(
            self.address, before, after, splice.patch.address, self.added is not None, rank,
            ambiguous=first == 1, several=self.removed is not None and self.removed.interior is not None,
        )  # fmt: skip


def sites_of(change: FunctionChange) -> list[Site] | Refusal:
    """Return the places that a function's change writes to, or why it cannot be made while the program runs."""
    for splice in (*change.added, *change.removed):
        refusal = _shape(splice)
        if refusal is not None:
            return refusal
    for splice in change.added:
        if len(splice.planned.insns) > 1:
            return Refusal(Reason.NEEDS_STOP, splice.address, SEVERAL)
    removed = {splice.address: splice for splice in change.removed}
    sites = []
    for splice in change.added:
        old = removed.pop(splice.address, None)
        if old is not None and old.interior is not None:
            # whom an int3 leads into the new patch comes back between the instructions that are still overwritten
            return Refusal(Reason.NEEDS_STOP, splice.address, "several instructions make room for the jump that goes")
        size = max(len(each.old) for each in (splice, old) if each is not None)
        sites.append(Site(splice.address, size, splice, old))
    sites += [Site(splice.address, len(splice.old), None, splice) for splice in removed.values()]
    return _entangled(change) or sites


def _shape(splice: EmittedSplice) -> Refusal | None:
    planned = splice.planned
    if splice.is_springboard or planned.strategy not in _HEADS or planned.write_at != planned.head:
        detail = f"a splice by strategy {planned.strategy.value} is not made by its first byte"
        return Refusal(Reason.NEEDS_STOP, splice.address, detail)
    if planned.leans_on or planned.hosts_until:
        detail = "the springboard of another splice lies in what is moved"
        return Refusal(Reason.NEEDS_STOP, splice.address, detail)
    if splice.old[:1] == TRAP:
        return Refusal(Reason.NEEDS_STOP, splice.address, "this is an int3 of the program's own")
    if planned.insns[0].raw == SYSCALL:
        return Refusal(Reason.NEEDS_STOP, splice.address, "a thread may be inside the system call")
    return None


def _entangled(change: FunctionChange) -> Refusal | None:
    """Return a refusal if an old and a new splice depend on one another's bytes, other than by being one site."""
    for new in change.added:
        for old in change.removed:
            if new.address != old.address and (_depends(new, old) or _depends(old, new)):
                detail = "it takes bytes that a splice to be removed depends on"
                return Refusal(Reason.NEEDS_STOP, new.address, detail)
    return None


def _depends(one: EmittedSplice, other: EmittedSplice) -> bool:
    """Return whether one splice relies on, or has moved, bytes that the other writes."""
    low = min(one.address, one.displaced[0])
    high = max(one.address + len(one.old) + len(one.borrowed), one.displaced[1])
    return other.address < high and low < other.address + len(other.old)


def steps(rewrites: Iterable[Rewrite]) -> tuple[list[Write], list[Write], list[Write]]:
    """Return three lists of writes, between which all cores are to be serialised if the second is not empty.

    A site that is armed begins to count with the first list, one that is taken out ends with the last.
    """
    arming = sorted((each for each in rewrites if each.arming), key=lambda each: each.rank)
    leaving = sorted((each for each in rewrites if not each.arming), key=lambda each: -each.rank)
    windows = [each for each in (*arming, *leaving) if not each.is_single]
    first = [(each.address, each.new[:1] if each.is_single else TRAP) for each in arming]
    first += [(each.address, TRAP) for each in leaving if not each.is_single]
    tails = [tail for each in windows if (tail := _tail(each)) is not None]
    last = [(each.address, each.new[:1]) for each in arming if not each.is_single]
    last += [(each.address, each.new[:1]) for each in leaving]
    return first, tails, last


def _tail(rewrite: Rewrite) -> Write | None:
    """Return the bytes after the first that differ, as one write."""
    differing = [i for i in range(1, len(rewrite.new)) if rewrite.new[i] != rewrite.old[i]]
    if not differing:
        return None
    low, high = differing[0], differing[-1] + 1
    return rewrite.address + low, rewrite.new[low:high]
