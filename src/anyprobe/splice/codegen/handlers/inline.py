"""Trivial handlers in the patch itself: no call, only what is used is saved, and that by liveness.

What is done is one instruction for each word, on words that only this thread changes, so it needs no guard: a signal
handler that comes in between and hits the same probe does all of it, before or after each of these. Hence it also runs
where it interrupts another handler, and misses nothing. An extreme is read, compared, and exchanged by one instruction
if it still is what was read; what has come in between was larger than that, and is compared with again.

Threads that have no number yet, fork children and threads that are left out call the routine, as all other handlers do.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from anyprobe.core.code import Comparison, Input, InputKind, NativeCode, Number, RecordedEnd, Update
from anyprobe.data.layouts.cells import added_exactly
from anyprobe.data.layouts.layout import BLOCK_NUMBER
from anyprobe.isa.assemble import Assembler, i32
from anyprobe.isa.registers import NUMBERS, part_of

if TYPE_CHECKING:
    from anyprobe.splice.codegen.patch import Action, PatchWriter
    from anyprobe.splice.plan.splices import Clobbers

INLINE_ESTIMATE = 352
"""Bytes that one takes in a patch at most, its call for rare cases included."""
SCRATCH_ORDER = ("r11", "r10", "rax", "rcx", "rdx", "r8", "r9", "rsi", "rdi")
_RED_ZONE = 128
_UNLESS = {"==": "ne", "!=": "e", "<": "ge", "<=": "g", ">": "le", ">=": "l"}
"""Conditions of jumps that are taken where a comparison does not hold, of signed numbers."""
_UNLESS_UNSIGNED = _UNLESS | {"<": "ae", "<=": "a", ">": "be", ">=": "b"}
_EXTEND = {
    (8, True): ("movsx", 64), (16, True): ("movsx", 64), (32, True): ("movsxd", 64),
    (8, False): ("movzx", 32), (16, False): ("movzx", 32), (32, False): ("mov.s", 32),
}  # fmt: skip
"""Conversions of a number, and how wide what comes out is."""


@dataclass(frozen=True, slots=True)
class Inline:
    """What a patch does in the stead of a handler."""

    update: Update | RecordedEnd
    sources: tuple[str, ...]
    """Where the handler's words are at the site: a register, or ``stack+8``; empty for what needs none."""
    storage: int
    """Where, within reach of the code, the address of the rows is written."""
    function: int = 0
    """The number of the function whose call is recorded."""
    dark: int = 0
    """The address of the word that says whether the time stamp counter cannot be read; 0: it always can."""

    def emit(self, writer: "PatchWriter", action: "Action", clobbers: "Clobbers") -> bool:
        """Append the work of a handler; return whether that could be: flags are kept in rax where they live."""
        if not clobbers.flags and "rax" in self.sources:
            return False
        if isinstance(self.update, RecordedEnd):
            from anyprobe.splice.codegen.handlers.recorded import Recorded

            Recorded(writer, action, self, clobbers).run()
            return True
        inlined = _Inlined(writer, action, self, clobbers)
        if not inlined.possible:
            return False
        inlined.run()
        return True


def sources_of(code: NativeCode) -> tuple[str, ...] | None:
    """Return where the words of a handler are that a patch can do the work of, ``None`` for all other handlers."""
    if code.update is None:
        return None
    if isinstance(code.update, RecordedEnd):  # what it needs is the same at all places
        return ()
    found = tuple(source_of(each) for each in code.inputs)
    return None if None in found else cast("tuple[str, ...]", found)


def registers_read(code: NativeCode) -> frozenset[str]:
    """Return the registers that the work of a handler needs to find as they are."""
    return frozenset(each for each in sources_of(code) or () if each in NUMBERS)


def source_of(each: Input) -> str | None:
    """Return where a word of a handler is at the site, ``None`` where no patch finds it."""
    if each.written:
        return None
    match each.kind:
        case InputKind.STORAGE | InputKind.THREAD:
            return ""
        case InputKind.PARAMETER:
            return None if each.place.startswith("xmm") else each.place
        case InputKind.REGISTER:
            return each.name if each.name in NUMBERS and each.name != "rsp" else None
        case InputKind.CONTEXT:
            return "rax" if each.name == "retval" else None
        case _:
            return None


class InPatch:
    """Writes what a patch does by itself, with some registers saved."""

    _scratch: str
    _pushed: Sequence[str]
    _keeps_flags: bool

    def __init__(self, writer: "PatchWriter", action: "Action", sources: Sequence[str]) -> None:
        """Write nothing yet."""
        self._writer, self._action, self._sources = writer, action, sources

    def _leave_unless(self, only_if: Comparison) -> int:
        """Append a comparison; return where the jump ends that is taken where it does not hold."""
        register = self._register(only_if.number)
        if register is None:
            register = self._scratch
            self._load(only_if.number, register)
        self._writer.value(f"cmp {register}, constant", only_if.constant)
        condition = (_UNLESS if only_if.number.signed else _UNLESS_UNSIGNED)[only_if.symbol]
        self._writer.value(f"j{condition} out", 0)
        return len(self._writer.out)

    def _register(self, number: Number) -> str | None:
        """Return the register that has a number as it is to be compared, if one has."""
        source = self._sources[number.word]
        return source if source in NUMBERS and not number.steps else None

    def _load(self, number: Number, register: str) -> None:
        """Append: a register gets a word, converted."""
        source = self._sources[number.word]
        if source not in NUMBERS:
            place = int(source.removeprefix("stack+")) + self._depth
            self._writer.value(f"mov {register}, [rsp+place]", place)
            source = register
        elif not number.steps:
            self._writer.code(f"mov.s {register}, {source}")
        self._convert(number, source, register)

    def _convert(self, number: Number, source: str, register: str) -> None:
        """Append: a register gets what another one has, converted."""
        for bits, signed in number.steps:
            mnemonic, wide = _EXTEND[bits, signed]
            self._writer.code(f"{mnemonic} {part_of(register, wide)}, {part_of(source, bits)}")
            source = register

    @property
    def _depth(self) -> int:
        """How far below the site's stack pointer the stack pointer is."""
        return _RED_ZONE + 8 * len(self._pushed) if self._pushed else 0

    def _save(self) -> None:
        if self._pushed:
            self._writer.code("lea rsp, [rsp-128]")
        for name in self._pushed:
            self._writer.code(f"push {name}")
        if self._keeps_flags:
            self._writer.code("lahf; seto al")

    def _restore(self) -> None:
        if self._keeps_flags:
            self._writer.code("add al, 0x7f; sahf")
        for name in reversed(self._pushed):
            self._writer.code(f"pop {name}")
        if self._pushed:
            self._writer.code("lea rsp, [rsp+128]")

    def _call_routine(self, after: int) -> None:
        """Append: everything is as it was, and the routine does it."""
        self._restore()
        self._writer.call_handler(self._action)
        self._writer.relative("jmp after", after)


class _Inlined(InPatch):
    """Writes one."""

    def __init__(self, writer: "PatchWriter", action: "Action", inline: Inline, clobbers: "Clobbers") -> None:
        super().__init__(writer, action, inline.sources)
        assert isinstance(inline.update, Update)
        self._inline, self._update = inline, inline.update
        self._keeps_flags = not clobbers.flags
        dead = [name for name in SCRATCH_ORDER if name in clobbers.registers]
        uses_rax = self._keeps_flags or bool(self._update.extreme)
        taken = (*inline.sources, *(("rax",) if uses_rax else ()))
        free = sorted((name for name in SCRATCH_ORDER if name not in taken), key=lambda name: name not in dead)
        needed = free[: 1 + self._copies_value + self._moves_flags]
        self.possible = len(needed) == 1 + self._copies_value + self._moves_flags
        """Whether there are registers enough."""
        self._scratch, self._value, self._flags = (*free, "rax", "rax")[:3]
        self._pushed = [name for name in (*(["rax"] if uses_rax else []), *needed) if name not in dead]

    @property
    def _copies_value(self) -> bool:
        """Whether the value has to be brought into a register of its own."""
        update = self._update
        value = update.value
        if value is None:
            return False
        return bool(update.extreme or value.steps) or self._inline.sources[value.word] not in NUMBERS

    @property
    def _moves_flags(self) -> bool:
        """Whether rax, which has the flags, is needed for something else meanwhile."""
        return self._keeps_flags and bool(self._update.extreme)

    def run(self) -> None:
        writer, action, update = self._writer, self._action, self._update
        self._save()
        self._load_block()
        writer.relative(f"test [rel gate], {self._scratch}", action.bank.gate)
        after: list[int] = []

        def rare() -> None:
            self._call_routine(after[0])

        writer.cold("jz rare", rare)
        writer.code(f"cmp dword [{self._scratch}+{BLOCK_NUMBER}], 0")
        writer.cold("je rare", rare)
        writer.argument(f"inc qword [{self._scratch}+hits]", action.offset)
        leaving = [self._leave_unless(each) for each in update.only_if]
        if leaving:
            self._load_block()
        self._count()
        for at in leaving:
            writer.out[at - 4 : at] = i32(len(writer.out) - at)
        self._restore()
        after.append(writer.here)

    def _count(self) -> None:
        """Append: the thread's own row is changed; the scratch register holds the block."""
        update, row, writer = self._update, self._scratch, self._writer
        writer.code(f"movsxd {row}, dword [{row}+{BLOCK_NUMBER}]; shl {row}, {update.stride.bit_length() - 1}")
        writer.relative(f"add {row}, [rel storage]", self._inline.storage)
        writer.value(f"inc qword [{row}+count]", update.count)
        if update.value is not None:
            held = self._value
            if self._copies_value:
                self._load(update.value, held)
            else:
                held = self._inline.sources[update.value.word]
            if update.extreme:
                self._raise(held)
            else:
                asm = Assembler()
                listing = added_exactly("sum", f"[{row}+total]", f"[{row}+wraps]", held, signed=update.signed)
                asm.code(listing, total=update.total, wraps=update.wraps)
                writer.raw(asm.finish(0))

    def _raise(self, held: str) -> None:
        """Append: a word becomes the larger of itself and the code of a value; no other thread's changes last."""
        update, writer = self._update, self._writer
        if update.signed:
            writer.code(f"btc {held}, 63")
        if update.extreme == "min":
            writer.code(f"not {held}")
        if self._moves_flags:
            writer.code(f"mov.s {self._flags}, rax")
        writer.value(f"mov rax, [{self._scratch}+extreme]", update.total)
        asm = Assembler()
        asm.code(
            f"""
            again:
                cmp.s {held}, rax; jbe short out
                cmpxchg [{self._scratch}+extreme], {held}; jne short again
            out:
            """,
            extreme=update.total,
        )
        writer.raw(asm.finish(0))
        if self._moves_flags:
            writer.code(f"mov.s rax, {self._flags}")

    def _load_block(self) -> None:
        """Append: the scratch register gets the thread's block."""
        slot = self._action.bank.slot
        assert slot is not None
        self._writer.value(f"mov {self._scratch}, fs:[slot]", slot)
