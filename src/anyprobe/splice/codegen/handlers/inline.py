"""Trivial handlers in the patch itself: no call, only what is used is saved, and that by liveness.

What is done is one instruction for each word, on words that only this thread changes, so it needs no guard: a signal
handler that comes in between and hits the same probe does all of it, before or after each of ours. Hence it also runs
where it interrupts another handler, and misses nothing. An extreme is read, compared, and exchanged by one instruction
if it still is what was read; what has come in between was larger than that, and is compared with again.

Threads that have no number yet, fork children and threads that are left out call the routine, as all other handlers do.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from iced_x86 import Code, Encoder, Instruction, MemoryOperand, Register

from anyprobe.core.code import Comparison, Input, InputKind, NativeCode, Number, Update
from anyprobe.data.layout import BLOCK_NUMBER
from anyprobe.isa.assemble import i32
from anyprobe.isa.registers import NUMBERS

if TYPE_CHECKING:
    from iced_x86 import Code_, Register_

    from anyprobe.splice.codegen.patch import Action, Clobbers, PatchWriter

INLINE_ESTIMATE = 352
"""Bytes that one takes in a patch at most, its call for rare cases included."""
_SCRATCH_ORDER = ("r11", "r10", "rax", "rcx", "rdx", "r8", "r9", "rsi", "rdi")
_RED_ZONE = 128
_UNLESS = {"==": 5, "!=": 4, "<": 13, "<=": 15, ">": 14, ">=": 12}
"""Conditions of jumps that are taken where a comparison does not hold, of signed numbers."""
_UNLESS_UNSIGNED = _UNLESS | {"<": 3, "<=": 7, ">": 6, ">=": 2}
_EXTEND: "dict[tuple[int, bool], tuple[Code_, bool]]" = {
    (8, True): (Code.MOVSX_R64_RM8, True), (16, True): (Code.MOVSX_R64_RM16, True),
    (32, True): (Code.MOVSXD_R64_RM32, True), (8, False): (Code.MOVZX_R32_RM8, False),
    (16, False): (Code.MOVZX_R32_RM16, False), (32, False): (Code.MOV_R32_RM32, False),
}  # fmt: skip
"""Conversions of a number, and whether what comes out is a 64-bit register."""


@dataclass(frozen=True, slots=True)
class Inline:
    """What a patch does in the stead of a handler."""

    update: Update
    sources: tuple[str, ...]
    """Where the handler's words are at the site: a register, or ``stack+8``; empty for what needs none."""
    storage: int
    """Where, within reach of the code, the address of the rows is written."""


def sources_of(code: NativeCode) -> tuple[str, ...] | None:
    """Return where the words of a handler are that a patch can do the work of, ``None`` for all other handlers."""
    if code.update is None:
        return None
    found = tuple(_source(each) for each in code.inputs)
    return None if None in found else cast("tuple[str, ...]", found)


def registers_read(code: NativeCode) -> frozenset[str]:
    """Return the registers that the work of a handler needs to find as they are."""
    return frozenset(each for each in sources_of(code) or () if each in NUMBERS)


def _source(each: Input) -> str | None:
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


def emit_inline(writer: "PatchWriter", action: "Action", inline: Inline, clobbers: "Clobbers") -> bool:
    """Append the work of a handler to a patch; return whether that could be: flags are kept in rax where they live."""
    if not clobbers.flags and "rax" in inline.sources:
        return False
    inlined = _Inlined(writer, action, inline, clobbers)
    if not inlined.possible:
        return False
    inlined.run()
    return True


class _Inlined:
    """Writes one."""

    def __init__(self, writer: "PatchWriter", action: "Action", inline: Inline, clobbers: "Clobbers") -> None:
        self._writer, self._action, self._inline = writer, action, inline
        self._encoder = Encoder(64)
        self._keeps_flags = not clobbers.flags
        dead = [name for name in _SCRATCH_ORDER if name in clobbers.registers]
        uses_rax = self._keeps_flags or bool(inline.update.extreme)
        taken = (*inline.sources, *(("rax",) if uses_rax else ()))
        free = sorted((name for name in _SCRATCH_ORDER if name not in taken), key=lambda name: name not in dead)
        needed = free[: 1 + self._copies_value + self._moves_flags]
        self.possible = len(needed) == 1 + self._copies_value + self._moves_flags
        """Whether there are registers enough."""
        self._scratch, self._value, self._flags = (Register.RAX + NUMBERS[name] for name in (*free, "rax", "rax")[:3])
        self._pushed = [name for name in (*(["rax"] if uses_rax else []), *needed) if name not in dead]

    @property
    def _copies_value(self) -> bool:
        """Whether the value has to be brought into a register of its own."""
        update = self._inline.update
        value = update.value
        if value is None:
            return False
        return bool(update.extreme or value.steps) or self._inline.sources[value.word] not in NUMBERS

    @property
    def _moves_flags(self) -> bool:
        """Whether rax, which has the flags, is needed for something else meanwhile."""
        return self._keeps_flags and bool(self._inline.update.extreme)

    def run(self) -> None:
        writer, action, update = self._writer, self._action, self._inline.update
        self._save()
        self._load_block()
        number = self._scratch - Register.RAX
        test = bytes((0x48 | number >> 3 << 2, 0x85, 0x05 | (number & 7) << 3))
        writer.relative(test, action.bank.gate)  # test [rip+gate], block
        behind: list[int] = []

        def rare() -> None:
            self._call_routine(behind[0])

        writer.cold(b"\x0f\x84", rare)  # jz rare
        own = MemoryOperand(cast("Register_", self._scratch), displ=BLOCK_NUMBER, displ_size=1)
        self._one(Instruction.create_mem_i32(Code.CMP_RM64_IMM8, own, 0))  # cmp qword [block+NUMBER], 0
        writer.cold(b"\x0f\x84", rare)  # je rare
        writer.argument(bytes((0x48 | number >> 3, 0xFF, 0x80 | number & 7)), action.offset)  # inc qword [block+hits]
        leaving = [self._leave_unless(each) for each in update.only_if]
        if leaving:
            self._load_block()
        self._count()
        for at in leaving:
            writer.out[at - 4 : at] = i32(len(writer.out) - at)
        self._restore()
        behind.append(writer.here)

    def _count(self) -> None:
        """Append: the thread's own row is changed; the scratch register holds the block."""
        update, row = self._inline.update, cast("Register_", self._scratch)
        own = MemoryOperand(row, displ=BLOCK_NUMBER, displ_size=1)
        self._one(Instruction.create_reg_mem(Code.MOV_R64_RM64, row, own))  # mov row, [block+NUMBER]
        shift = update.stride.bit_length() - 1
        self._one(Instruction.create_reg_i32(Code.SHL_RM64_IMM8, row, shift))  # shl row, shift
        number = row - Register.RAX
        opcode = bytes((0x48 | number >> 3 << 2, 0x03, 0x05 | (number & 7) << 3))
        self._writer.relative(opcode, self._inline.storage)  # add row, [rip+storage]
        self._one(Instruction.create_mem(Code.INC_RM64, self._in_row(update.count)))  # inc qword [row+COUNT]
        if update.value is not None:
            held = cast("Register_", self._value)
            if self._copies_value:
                self._load(update.value, held)
            else:
                held = _sized(NUMBERS[self._inline.sources[update.value.word]], 64)
            place = self._in_row(update.total)
            if update.extreme:
                self._raise(place, held)
            else:
                self._one(Instruction.create_mem_reg(Code.ADD_RM64_R64, place, held))  # add [row+SUM], value

    def _raise(self, place: MemoryOperand, held: "Register_") -> None:
        """Append: a word becomes the larger of itself and the code of a value; nobody else's changes last."""
        update, saved = self._inline.update, cast("Register_", self._flags)
        if update.signed:
            self._one(Instruction.create_reg_i32(Code.BTC_RM64_IMM8, held, 63))  # btc value, 63
        if update.extreme == "min":
            self._one(Instruction.create_reg(Code.NOT_RM64, held))  # not value
        if self._moves_flags:
            self._one(Instruction.create_reg_reg(Code.MOV_R64_RM64, saved, Register.RAX))  # mov saved, rax
        self._one(Instruction.create_reg_mem(Code.MOV_R64_RM64, Register.RAX, place))  # mov rax, [row+EXTREME]
        compare = self._encoded(Instruction.create_reg_reg(Code.CMP_R64_RM64, held, Register.RAX))
        exchange = self._encoded(Instruction.create_mem_reg(Code.CMPXCHG_RM64_R64, place, held))
        out = bytes((0x76, len(exchange) + 2))
        again = bytes((0x75, 0x100 - len(compare + out + exchange) - 2))
        # again: cmp value, rax; jbe out; cmpxchg [row+EXTREME], value; jne again; out:
        self._writer.raw(compare + out + exchange + again)
        if self._moves_flags:
            self._one(Instruction.create_reg_reg(Code.MOV_R64_RM64, Register.RAX, saved))  # mov rax, saved

    def _in_row(self, offset: int) -> MemoryOperand:
        return MemoryOperand(cast("Register_", self._scratch), displ=offset, displ_size=8)

    def _leave_unless(self, only_if: Comparison) -> int:
        """Append a comparison; return where the jump ends that is taken where it does not hold."""
        scratch = cast("Register_", self._scratch)
        self._load(only_if.number, scratch)
        self._one(Instruction.create_reg_i32(Code.CMP_RM64_IMM32, scratch, only_if.constant))  # cmp scratch, constant
        condition = (_UNLESS if only_if.number.signed else _UNLESS_UNSIGNED)[only_if.symbol]
        self._writer.raw(bytes((0x0F, 0x80 | condition)) + i32(0))  # jcc out
        return len(self._writer.out)

    # -- words

    def _load(self, number: Number, register: "Register_") -> None:
        """Append: a register gets a word, converted."""
        source, at = self._inline.sources[number.word], register - Register.RAX
        if source in NUMBERS:
            at = NUMBERS[source]
            if not number.steps:
                self._one(Instruction.create_reg_reg(Code.MOV_R64_RM64, register, _sized(at, 64)))
        else:
            place = int(source.removeprefix("stack+")) + self._depth
            memory = MemoryOperand(Register.RSP, displ=place, displ_size=8)
            self._one(Instruction.create_reg_mem(Code.MOV_R64_RM64, register, memory))
        for bits, signed in number.steps:
            code, whole = _EXTEND[bits, signed]
            into = register if whole else _sized(register - Register.RAX, 32)
            self._one(Instruction.create_reg_reg(code, into, _sized(at, bits)))
            at = register - Register.RAX

    def _load_block(self) -> None:
        """Append: mov scratch, fs:[slot]."""
        number, slot = self._scratch - Register.RAX, self._action.bank.slot
        assert slot is not None
        self._writer.raw(bytes((0x64, 0x48 | number >> 3 << 2, 0x8B, 0x04 | (number & 7) << 3, 0x25)) + i32(slot))

    def _one(self, instruction: Instruction) -> None:
        self._writer.raw(self._encoded(instruction))

    def _encoded(self, instruction: Instruction) -> bytes:
        self._encoder.encode(instruction, 0)
        return self._encoder.take_buffer()

    # -- what is saved

    @property
    def _depth(self) -> int:
        """How far below the site's stack pointer the stack pointer is."""
        return _RED_ZONE + 8 * len(self._pushed) if self._pushed else 0

    def _save(self) -> None:
        if self._pushed:
            self._writer.raw(b"\x48\x8d\x64\x24\x80")  # lea rsp, [rsp-128]
        for name in self._pushed:
            self._one(Instruction.create_reg(Code.PUSH_R64, _sized(NUMBERS[name], 64)))
        if self._keeps_flags:
            self._writer.raw(b"\x9f\x0f\x90\xc0")  # lahf; seto al

    def _restore(self) -> None:
        if self._keeps_flags:
            self._writer.raw(b"\x04\x7f\x9e")  # add al, 0x7f; sahf
        for name in reversed(self._pushed):
            self._one(Instruction.create_reg(Code.POP_R64, _sized(NUMBERS[name], 64)))
        if self._pushed:
            self._writer.raw(b"\x48\x8d\xa4\x24" + i32(_RED_ZONE))  # lea rsp, [rsp+128]

    def _call_routine(self, behind: int) -> None:
        """Append: everything is as it was, and the routine does it."""
        self._restore()
        self._writer.call_handler(self._action)
        self._writer.relative(b"\xe9", behind)  # jmp behind


def _sized(number: int, bits: int) -> "Register_":
    """Return a register by its number and size."""
    first = {64: Register.RAX, 32: Register.EAX, 16: Register.AX, 8: Register.AL if number < 4 else Register.SPL - 4}
    return cast("Register_", first[bits] + number)
