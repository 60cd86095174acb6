"""Ends of calls, recorded in the patch itself, by a word in the ring of the thread (``data.readers.call_rings``)."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from anyprobe.core.code import RecordedEnd
from anyprobe.data.layouts.layout import BLOCK_NUMBER, TID_OFFSET
from anyprobe.data.readers.call_rings import (
    CONTEXT,
    FRAME_BITS,
    GIVEN_UP,
    LIMIT,
    MOST_NUMBERS,
    NUMBER_AT,
    OWNER,
    TIME_AT,
    TIME_BITS,
)
from anyprobe.data.readers.rings import FULL, HEAD_BYTES, PRODUCED, RING, ROW_BYTES
from anyprobe.isa.assemble import Assembler
from anyprobe.isa.registers import part_of
from anyprobe.splice.codegen.handlers.inline import SCRATCH_ORDER, Inline, InPatch

if TYPE_CHECKING:
    from anyprobe.splice.codegen.patch import Action, PatchWriter
    from anyprobe.splice.plan.splices import Clobbers

_AHEAD = 512
"""Bytes that a record's place is fetched before it is written: the reader has had it last, on another processor."""


def numbered(update: RecordedEnd, function: int) -> int | None:
    """Return the number of a function, given it now if it has none; None where there are too many."""
    number = update.numbers.setdefault(function, len(update.numbers) + 1)
    return number if number <= MOST_NUMBERS else None


class Recorded(InPatch):
    """Writes one end of a call into the ring of the thread, as ``handlers.x86.recorder`` does.

    Threads without a ring, whose ring seems to be full, or that have to write a context, call the routine.
    ``data.readers.call_rings`` says why a signal handler may come in between anywhere.
    """

    def __init__(self, writer: "PatchWriter", action: "Action", inline: Inline, clobbers: "Clobbers") -> None:
        """Write nothing yet."""
        super().__init__(writer, action, ())
        assert isinstance(inline.update, RecordedEnd)
        self._inline, self._update = inline, inline.update
        self._keeps_flags = not clobbers.flags
        dead = [name for name in SCRATCH_ORDER if name in clobbers.registers]
        free = [name for name in SCRATCH_ORDER if name not in {"rax", "rdx"}]
        self._block, self._row = sorted(free, key=lambda name: name not in dead)[:2]
        used = ("rax", "rdx", self._block, self._row)
        self._pushed = [name for name in used if name not in dead]
        if self._keeps_flags and "rax" not in self._pushed:
            self._pushed.insert(0, "rax")

    @property
    def _depth(self) -> int:
        return super()._depth + 8 * self._keeps_flags

    def _save(self) -> None:
        super()._save()
        if self._keeps_flags:  # which are in rax
            self._writer.code("push rax")

    def _restore(self) -> None:
        if self._keeps_flags:
            self._writer.code("pop rax")
        super()._restore()

    def run(self) -> None:
        """Append it."""
        writer, position, row = self._writer, self._block, self._row
        slot = self._action.bank.slot
        assert slot is not None
        after: list[int] = []

        def rare() -> None:
            self._call_routine(after[0])

        self._save()
        writer.value(f"mov {position}, fs:[slot]", slot)
        writer.relative(f"test [rel gate], {position}", self._action.bank.gate)
        writer.cold("jz rare", rare)
        self._load_row(position, row)
        # a thread without a number, or without a ring, has a row in which there is no room
        writer.code(f"mov {position}, [{row}+{HEAD_BYTES + PRODUCED}]; cmp {position}, [{row}+{HEAD_BYTES + LIMIT}]")
        writer.cold("jae rare", rare)
        writer.raw(_assembled(f"mov eax, fs:[tid]; cmp eax, [{row}+{HEAD_BYTES + OWNER}]", tid=TID_OFFSET))
        writer.cold("jne rare", rare)
        if self._inline.dark:
            writer.raw(_assembled("mov rdx, dark; cmp dword [rdx], 0", dark=self._inline.dark))
            writer.cold("jne rare", rare)
        writer.code(f"rdtsc; shl rdx, 32; or rax, rdx; xor rax, [{row}+{HEAD_BYTES + CONTEXT}]")
        writer.code(f"cmp rax, {(1 << TIME_BITS) - 1}")
        writer.cold("ja rare", rare)
        writer.value("lea edx, [rsp+frame]", self._depth)
        writer.code(f"shr edx, {FRAME_BITS}; cmp dx, [{row}+{HEAD_BYTES + CONTEXT}]")
        writer.cold("jne rare", rare)
        self._take_place(rare)
        self._fill()
        self._restore()
        after.append(writer.here)

    def _load_row(self, block: str, row: str) -> None:
        """Append: a register gets the address of the rows before that of a thread, by its block."""
        self._writer.code(f"movsxd {row}, dword [{block}+{BLOCK_NUMBER}]; shl {row}, {ROW_BYTES.bit_length() - 1}")
        self._writer.relative(f"add {row}, [rel storage]", self._inline.storage)

    def _take_place(self, rare: Callable[[], None]) -> None:
        """Append: rdx gets the word, rax the position, and the row's register the address of its place."""
        writer, row, position, update = self._writer, self._row, self._block, self._update
        slot = self._action.bank.slot
        assert slot is not None
        listing = f"""
            lea rdx, [rsp+frame]; shl rdx, {63 - FRAME_BITS}; shl rax, {TIME_AT - 1}; lea rdx, [rdx+rax+what]
            bt {part_of(position, 32)}, laps; cmc; adc rdx, rdx
            mov.s rax, {position}; inc {position}; cmpxchg [{row}+{HEAD_BYTES + PRODUCED}], {position}
        """
        what = update.end | self._inline.function << NUMBER_AT - 1
        writer.raw(_assembled(listing, frame=self._depth, what=what, laps=self._laps))
        writer.cold("jne rare", rare)
        writer.value(f"mov {position}, fs:[slot]", slot)
        writer.argument(f"inc qword [{position}+hits]", self._action.offset)
        writer.code(f"mov {position}, [{row}+{HEAD_BYTES + RING}]; mov.s {part_of(row, 32)}, eax")
        writer.relative(f"add {position}, [rel storage]", self._inline.storage)
        writer.value(f"and {part_of(row, 32)}, last", update.words - 1)
        writer.code(f"lea {row}, [{position}+{row}*8]")

    @property
    def _laps(self) -> int:
        """Which bit of a position says of the lap whether it is odd."""
        return self._update.words.bit_length() - 1

    def _fill(self) -> None:
        """Append: the place gets the word, unless it is not used again."""
        writer, place, block = self._writer, self._row, self._block
        after: list[int] = []

        def given_up() -> None:
            slot = self._action.bank.slot
            assert slot is not None
            listing = f"shr rax, laps; shl rax, 8; or rax, {GIVEN_UP}; cmp [{place}], rax"
            writer.raw(_assembled(listing, laps=self._laps))
            writer.relative("je after", after[0])
            writer.value(f"mov {block}, fs:[slot]", slot)
            self._load_row(block, place)
            writer.code(f"mov qword [{place}+{HEAD_BYTES + CONTEXT}], -1; lock inc qword [{place}+{HEAD_BYTES + FULL}]")
            writer.code(f"mov qword [{place}+{HEAD_BYTES + CONTEXT}], -1")
            writer.relative("jmp after", after[0])

        writer.code(f"cmp byte [{place}], {GIVEN_UP}")
        writer.cold("jae given_up", given_up)
        writer.code(f"prefetchw byte [{place}+{_AHEAD}]; mov [{place}], rdx")
        after.append(writer.here)


def _assembled(listing: str, **values: int) -> bytes:
    """Return the code of a listing in which nothing depends on where it is."""
    asm = Assembler()
    asm.code(listing, **values)
    return asm.finish(0)
