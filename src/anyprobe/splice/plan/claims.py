"""Which bytes of a module are spoken for: written by one splice, or borrowed by a punned jump."""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from anyprobe.core.addressset import AddressSet
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.splice.plan.splices import PlannedSplice


class Places(Protocol):
    """Where the springboards of punned jumps stand."""

    def take(self, splice: PlannedSplice) -> None:
        """Take a place for the splice's springboard, the same as before if it had one."""
        ...

    def give_back(self, splice: PlannedSplice) -> None:
        """Let others have it, unless it is in use."""
        ...

    def link_time(self, splice: PlannedSplice) -> int | None:
        """Return the link-time address of the springboard, if it has its place."""
        ...


@dataclass
class Claims:
    """Which bytes of one module are written or borrowed by splices."""

    written: AddressSet = field(default_factory=AddressSet)
    borrowed: Counter[int] = field(default_factory=Counter)
    """How many splices depend on a byte: several puns may borrow the same one."""

    displaced: AddressSet = field(default_factory=AddressSet)
    """Bytes behind the written ones of instructions that run as copies in a patch: nobody comes by the originals."""
    landings: AddressSet = field(default_factory=AddressSet)
    """Where patches, old ones too, jump back to: a thread may still be on its way there."""
    places: Places | None = field(default=None, compare=False)
    """Taken and given back together with the bytes of punned jumps."""
    _trial: "_Trial | None" = field(default=None, compare=False)

    def conflict(self, start: int, written: int, borrowed: int) -> Refusal | None:
        """Return why these bytes cannot be claimed."""
        if self.are_free(start, written):
            start, written = start + written, 0
        for address in range(start, start + written):
            if address in self.written:
                return Refusal(Reason.OVERLAP, address, "another splice has written this byte")
            if self.borrowed.get(address, 0) > 0:
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
        """Return whether some bytes are certainly nobody's: a look at all of them at once."""
        end = start + written
        if self.written.has_any(start, end) or self.displaced.has_any(start, end):
            return False
        return not self.landings.has_any(start + 1, end) and self.borrowed.keys().isdisjoint(range(start, end))

    def overwritten(self, splice: PlannedSplice) -> Refusal | None:
        """Return which instruction that a splice displaces has been written to by another."""
        middle, end = splice.write_at + splice.written, splice.end
        if not self.written.has_any(middle, end) and not self.displaced.has_any(middle, end):
            return None
        for address in range(middle, end):
            if address in self.written:
                return Refusal(Reason.OVERLAP, address, "an instruction to be displaced is spliced itself")
            if address in self.displaced:
                return Refusal(Reason.OVERLAP, address, "the patch of another splice runs a copy of this instruction")
        return None

    def displace(self, splice: PlannedSplice) -> None:
        """Take what the splice displaces by now."""
        self.displaced.add_range(splice.write_at + splice.written, splice.end)

    def claim(self, splice: PlannedSplice) -> None:
        """Take the splice's bytes."""
        middle = splice.write_at + splice.written
        self.written.add_range(splice.write_at, middle)
        if splice.borrowed:
            self.borrowed.update(range(middle, middle + splice.borrowed))
        self.displace(splice)
        if splice.pun is not None and self.places is not None:
            self.places.take(splice)
        if self._trial is not None:
            self._trial.claimed(splice)
        if splice.dead_springboard:
            end = splice.dead_springboard + JUMP_BYTES
            self.written.add_range(splice.dead_springboard, end)
            for host in splice.leans_on:
                host.hosts_until = max(host.hosts_until, end)

    def release(self, splice: PlannedSplice) -> None:
        """Give the splice's bytes back."""
        middle = splice.write_at + splice.written
        self.written.discard_range(splice.write_at, middle)
        for address in range(middle, middle + splice.borrowed):
            self.borrowed[address] -= 1
            if self.borrowed[address] <= 0:
                del self.borrowed[address]
        self.displaced.discard_range(middle, splice.end)
        if splice.pun is not None and self.places is not None:
            self.places.give_back(splice)
        if splice.dead_springboard:
            self.written.discard_range(splice.dead_springboard, splice.dead_springboard + JUMP_BYTES)

    @contextmanager
    def trial(self, without: Iterable[PlannedSplice] = ()) -> "Iterator[Claims]":
        """Yield a copy of the claims for a plan that is only shown, made as if some splices were not there.

        Nothing is ever taken from the claims themselves, so whatever ends the trial, an interrupt between any two
        instructions included, leaves what armed splices have written and borrowed protected. What the plan takes
        outside of the copy, places for springboards and room after its hosts, is given back.
        """
        copy = Claims(
            self.written.copy(), self.borrowed.copy(), self.displaced.copy(), self.landings.copy(), _trial=_Trial()
        )
        for splice in without:
            copy.release(splice)
        try:
            yield copy
        finally:
            assert copy._trial is not None
            copy._trial.undo(copy.places)


@dataclass
class _Trial:
    """What a plan on trial has changed outside of its copy of the claims."""

    splices: list[PlannedSplice] = field(default_factory=list)
    hosts: dict[int, tuple[PlannedSplice, int]] = field(default_factory=dict)

    def claimed(self, splice: PlannedSplice) -> None:
        """Note a splice, and how far its hosts reached before."""
        self.splices.append(splice)
        for host in splice.leans_on:
            self.hosts.setdefault(id(host), (host, host.hosts_until))

    def undo(self, places: Places | None) -> None:
        """Give back the places of springboards that were not written, and the room after hosts."""
        for splice in self.splices:
            if splice.pun is not None and places is not None:
                places.give_back(splice)
        for host, reached in self.hosts.values():
            host.hosts_until = reached
