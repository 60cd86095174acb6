"""Which bytes of a module are spoken for: written by one splice, or borrowed by a punned jump."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from zlib import crc32

from anyprobe.core.addressset import AddressCounts, AddressSet
from anyprobe.core.errors import InternalError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.splice.plan.drafts import AnySplice, SpliceDraft
from anyprobe.splice.plan.splices import Pun

if TYPE_CHECKING:
    from anyprobe.splice.plan.questions import Questions


class Places(Protocol):
    """Where the springboards of punned jumps stand."""

    def take(self, splice: AnySplice) -> int:
        """Take a place for the splice's springboard, the same as before if it had one, and return it."""
        ...

    def give_back(self, splice: AnySplice) -> None:
        """Let others have it, unless it is in use."""
        ...

    def reachable(self, pun: Pun) -> bool:
        """Return whether a place is left for the springboard of a punned jump."""
        ...

    def link_time(self, splice: AnySplice) -> int | None:
        """Return the link-time address of the springboard, if it has its place."""
        ...


@dataclass
class Claims:
    """Which bytes of one module are written or borrowed by splices.

    Plans claim on copies, which are thrown away; what becomes of a plan replaces the module's claims as a whole, by one
    store. So whatever ends a plan or a change, between any two instructions, the bytes that armed splices have written
    and borrowed stay protected.
    """

    written: AddressSet = field(default_factory=AddressSet)
    borrowed: AddressCounts = field(default_factory=AddressCounts)
    """How many splices depend on a byte: several puns may borrow the same one."""

    displaced: AddressSet = field(default_factory=AddressSet)
    """Bytes after the written ones of instructions that run as copies in a patch: no thread comes by the originals."""
    landings: AddressSet = field(default_factory=AddressSet)
    """Where patches, old ones too, jump back to: a thread may still be on its way there. Copies share it."""
    places: Places | None = field(default=None, compare=False)
    """Taken and given back together with the bytes of punned jumps."""
    takers: list[AnySplice] | None = field(default=None, compare=False)
    """The splices that have taken places in a trial."""
    questions: "Questions | None" = field(default=None, compare=False)
    """Is told what is asked of these claims, and of those of trials, where that is to be known."""

    def conflict(self, start: int, written: int, borrowed: int) -> Refusal | None:
        """Return why these bytes cannot be claimed."""
        if self.questions is not None:
            self.questions.note(start, start + written + borrowed)
        if self.are_free(start, written):
            start, written = start + written, 0
        for address in range(start, start + written):
            if address in self.written:
                return Refusal(Reason.OVERLAP, address, "another splice has written this byte")
            if self.borrowed[address]:
                return Refusal(Reason.BORROWED_BYTES, address, "a punned jump nearby depends on this byte")
            if address in self.displaced:
                return Refusal(Reason.OVERLAP, address, "the patch of another splice runs a copy of this instruction")
            if address != start and address in self.landings:
                return Refusal(Reason.OVERLAP, address, "the patch of another splice comes back here")
        for address in range(start + written, start + written + borrowed):
            if address in self.written:
                return Refusal(Reason.OVERLAP, address, "the pun would depend on a byte that another splice wrote")
        return None

    def are_free(self, start: int, written: int) -> bool:
        """Return whether some bytes are certainly claimed by no splice: a look at all of them at once."""
        end = start + written
        if self.questions is not None:
            self.questions.note(start, end)
        if self.written.has_any(start, end) or self.displaced.has_any(start, end):
            return False
        return not self.landings.has_any(start + 1, end) and not self.borrowed.has_any(start, end)

    def take(self, start: int, middle: int, end: int) -> bool:
        """Claim the bytes of a plain jump, up to ``middle``, and the rest that it displaces, if its bytes are free.

        Returns:
            Whether they were.
        """
        if self.questions is not None:
            self.questions.note(start, middle)
        if self.displaced.has_any(start, middle) or self.landings.has_any(start + 1, middle):
            return False
        if self.borrowed.has_any(start, middle) or not self.written.take_range(start, middle):
            return False
        if end > middle:
            self.displaced.add_range(middle, end)
        return True

    def overwritten(self, splice: AnySplice) -> Refusal | None:
        """Return which instruction that a splice displaces has been written to by another."""
        middle, end = splice.write_at + splice.written, splice.end
        if self.questions is not None:
            self.questions.note(middle, end)
        if not self.written.has_any(middle, end) and not self.displaced.has_any(middle, end):
            return None
        for address in range(middle, end):
            if address in self.written:
                return Refusal(Reason.OVERLAP, address, "an instruction to be displaced is spliced itself")
            if address in self.displaced:
                return Refusal(Reason.OVERLAP, address, "the patch of another splice runs a copy of this instruction")
        return None

    def are_written(self, start: int, end: int) -> bool:
        """Return whether splices write any byte in ``[start, end)``."""
        if self.questions is not None:
            self.questions.note(start, end)
        return self.written.has_any(start, end)

    def are_used(self, start: int, end: int) -> bool:
        """Return whether splices write any byte in ``[start, end)``, or depend on one."""
        return self.are_written(start, end) or self.borrowed.has_any(start, end)

    def are_displaced(self, start: int, end: int) -> bool:
        """Return whether all bytes in ``[start, end)`` run as copies in a patch, and are not written."""
        if self.questions is not None:
            self.questions.note(start, end)
        return all(address in self.displaced for address in range(start, end))

    def are_landed_in(self, start: int, end: int) -> bool:
        """Return whether a patch jumps back to any byte in ``[start, end)``."""
        if self.questions is not None:
            self.questions.note(start, end)
        return self.landings.has_any(start, end)

    def springboard_of(self, splice: AnySplice) -> int | None:
        """Return the link-time address of the springboard of a punned jump, if it has its place."""
        if splice.pun is None or self.places is None:
            return splice.pun.base if splice.pun is not None else None
        place = self.places.link_time(splice)
        if self.questions is not None:
            self.questions.note_place(splice.pun, place)
        return place

    def state_of(self, spans: Sequence[tuple[int, int]]) -> int:
        """Return a number that tells what is claimed in some ranges: 0 where nothing is."""
        state = 0
        for start, end in spans:
            if self.is_clear(start, end):
                continue
            for claimed in (self.written, self.borrowed, self.displaced, self.landings):
                state = crc32(claimed.content(start, end), crc32(b"%d" % start, state))
        return state

    def is_clear(self, start: int, end: int) -> bool:
        """Return whether nothing at all is claimed in ``[start, end)``."""
        if self.written.has_any(start, end) or self.displaced.has_any(start, end):
            return False
        return not self.landings.has_any(start, end) and not self.borrowed.has_any(start, end)

    def displace(self, splice: AnySplice) -> None:
        """Take what the splice displaces by now."""
        self.displaced.add_range(splice.write_at + splice.written, splice.end)

    def claim(self, splice: AnySplice) -> None:
        """Take the splice's bytes."""
        start = splice.write_at
        middle, end = start + splice.written, splice.end
        self.written.add_range(start, middle)
        if splice.borrowed:
            self.borrowed.add_range(middle, middle + splice.borrowed)
        if end > middle:
            self.displaced.add_range(middle, end)
        if splice.dead_springboard:
            self.written.add_range(splice.dead_springboard, splice.dead_springboard + JUMP_BYTES)
        if splice.pun is not None and self.places is not None:
            if self.takers is not None:
                self.takers.append(splice)
            place = self.places.take(splice)
            if isinstance(splice, SpliceDraft):
                splice.springboard = place
            elif splice.springboard != place:
                raise InternalError(f"the jump at {splice.head:#x} was planned without a place for its springboard")

    def release(self, splice: AnySplice) -> None:
        """Give the splice's bytes back."""
        middle = splice.write_at + splice.written
        self.written.discard_range(splice.write_at, middle)
        if splice.borrowed:
            self.borrowed.discard_range(middle, middle + splice.borrowed)
        self.displaced.discard_range(middle, splice.end)
        if splice.dead_springboard:
            self.written.discard_range(splice.dead_springboard, splice.dead_springboard + JUMP_BYTES)
        if splice.pun is not None and self.places is not None:
            self.places.give_back(splice)

    def replaced(self, old: Sequence[AnySplice], new: Sequence[AnySplice]) -> "Claims":
        """Return what is claimed when some splices have taken the place of others."""
        made = Claims(self.written.copy(), self.borrowed.copy(), self.displaced.copy(), self.landings, self.places)
        made.questions = self.questions
        made.exchange(old, new)
        return made

    def exchange(self, old: Sequence[AnySplice], new: Sequence[AnySplice]) -> None:
        """Have some splices take the place of others. These are no claims yet: an interrupt would spoil them."""
        for splice in old if len(old) < 2 else dict.fromkeys(old):  # a short jump and its springboard are of one splice
            self.release(splice)
        for splice in new if len(new) < 2 else dict.fromkeys(new):
            self.claim(splice)

    @contextmanager
    def trial(self, without: Sequence[AnySplice] = ()) -> "Iterator[Claims]":
        """Yield a copy of the claims for a plan, made as if some splices were not there.

        The places of springboards that the plan takes are free again afterwards.
        """
        made = self.replaced(without, ())
        made.takers = []
        try:
            yield made
        finally:
            for splice in made.takers:
                if made.places is not None:
                    made.places.give_back(splice)
