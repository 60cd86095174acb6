"""Threads of the program that are anyprobe's own: they count nowhere and run no handlers."""

from contextlib import suppress
from typing import TYPE_CHECKING

from anyprobe.core.errors import AnyprobeError
from anyprobe.core.memory import MemoryFault
from anyprobe.data.layouts.layout import BLOCK_GUARD, BLOCK_HEAD_BYTES, BLOCK_OWNER, BLOCK_REFUSED

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.splice.regions.code_region import SlotBank

MOST_UNCOUNTED = 4
_NEVER = (1 << 64) - 1


class UncountedThreads:
    """Some threads, by their thread pointers."""

    def __init__(self) -> None:
        """Have none."""
        self._pointers: list[int] = []
        self._hidden: set[tuple[int, int]] = set()

    def add(self, pointer: int) -> None:
        """See that one more thread, which waits for anyprobe, counts nowhere from the next ``leave_out`` on."""
        if len(self._pointers) < MOST_UNCOUNTED:
            self._pointers.append(pointer)

    def leave_out(self, host: "ProbeHost") -> None:
        """Give the slot of each thread one of the blocks of each bank that no thread gets and that are not read.

        Its guard says that a handler is running.
        """
        for bank in host.splicing.holdings.banks:
            for number, pointer in enumerate(self._pointers):
                if pointer:
                    self._leave_out_of(host, bank, number, pointer)

    def _leave_out_of(self, host: "ProbeHost", bank: "SlotBank", number: int, pointer: int) -> None:
        block = bank.layout.blocks_offset + number * bank.layout.stride
        head = bank.arena.view(bank.piece.offset + block, BLOCK_HEAD_BYTES).cast("Q")
        # a handler that is refused too often takes the guard for a stale one; it never comes to that
        head[BLOCK_GUARD // 8] = _NEVER
        head.cast("B").cast("I")[BLOCK_REFUSED // 4] = 0
        if (bank.index, pointer) not in self._hidden:
            self._hidden.add((bank.index, pointer))
            with suppress(MemoryFault, AnyprobeError):
                address = bank.piece.address + block
                head[BLOCK_OWNER // 8] = pointer  # by which what removes the probes finds the slot
                host.process.mem.write(pointer + bank.slot, address.to_bytes(8, "little"))
