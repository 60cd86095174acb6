"""The test before a store whether it goes to watched memory: one subtraction and one comparison for each range.

    lea r, [where the store goes, its last byte]; sub r, [rel low]; cmp r, [rel limit]; jb met

``low`` and the limits, one for each size of stores, are in words within reach of the code. Where a range is met, the
handler's routine is called, with the address pushed before the argument. Of a repeated string instruction both ends are
compared.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from iced_x86 import Code, Encoder, Instruction, MemoryOperand, Register

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import i32
from anyprobe.isa.registers import GPRS
from anyprobe.isa.stores import stored_bytes, string_bytes
from anyprobe.splice.codegen.handlers.inline import SCRATCH_ORDER, InPatch
from anyprobe.splice.codegen.patch import UndisplaceableError

if TYPE_CHECKING:
    from anyprobe.splice.codegen.patch import Action, PatchWriter
    from anyprobe.splice.plan.splices import Clobbers

_ICED: dict[str, Any] = {gpr.name: gpr.iced for gpr in GPRS}
_SIZES = (1, 2, 4, 8, 10, 16, 32, 64, 128, 256, 512)
"""Sizes of stores that have a limit of their own; others take that of the next larger one."""
_WORDS = 2 + len(_SIZES)
_LOW, _HIGH, _LIMITS = 0, 8, 16
_LARGEST = 1 << 31


def range_words(watched: Sequence[tuple[int, int]]) -> bytes:
    """Return the words for some ranges, by address and length."""
    words: list[int] = []
    for low, length in watched:
        words += [low, low + length, *(length + size - 1 for size in _SIZES)]
    return struct.pack(f"<{len(words)}Q", *words)


@dataclass(frozen=True, slots=True)
class StoreTest:
    """What a patch finds out before it calls a handler of stores."""

    insn: Instruction
    ranges: int
    words: int
    """Where the ranges' words are."""
    bias: int = 0
    """What is added to an address that the instruction has by itself."""

    def emit(self, writer: "PatchWriter", action: "Action", clobbers: "Clobbers") -> bool:
        """Append it; return whether that could be, as it can."""
        _Tested(writer, action, self, clobbers).run()
        return True


class _Tested(InPatch):
    """Writes one test."""

    def __init__(self, writer: "PatchWriter", action: "Action", test: StoreTest, clobbers: "Clobbers") -> None:
        super().__init__(writer, action, ())
        self._test, self._keeps_flags = test, not clobbers.flags
        used = {test.insn.memory_base, test.insn.memory_index}
        free = [name for name in SCRATCH_ORDER if name != "rax" and _ICED[name] not in used and name not in _IMPLIED]
        dead = [name for name in free if name in clobbers.registers]
        self._scratch = (*dead, *free)[0]
        self._pushed = ["rax"] * self._keeps_flags + [self._scratch] * (not dead)
        if self._keeps_flags and "rax" in clobbers.registers and dead:
            self._pushed = []
        self._after = 0

    def run(self) -> None:
        """Append it."""
        if self._test.insn.memory_base == Register.RIP:  # it is known to go there
            self._call()
            return
        writer, size = self._writer, stored_bytes(self._test.insn)
        repeated = string_bytes(self._test.insn) if self._test.insn.has_rep_prefix else 0
        if self._pushed:
            writer.code("lea rsp, [rsp-128]")
        for name in self._pushed:
            writer.code(f"push {name}")
        if not repeated:  # before rax has the flags: the store may go by it
            writer.raw(self._address(self._scratch, size - 1))
        if self._keeps_flags:
            writer.code("lahf; seto al")
        for number in range(self._test.ranges):
            words = self._test.words + 8 * _WORDS * number
            if repeated:
                self._compare_ends(words, repeated)
            else:
                self._compare(words, size, 8 * _WORDS if number else 0)
        self._restore()
        self._after = writer.here

    def _compare(self, words: int, size: int, before: int) -> None:
        writer, register = self._writer, self._scratch
        if before:
            writer.relative(f"add {register}, [rel low]", words - before + _LOW)
        writer.relative(f"sub {register}, [rel low]", words + _LOW)
        kind = next((at for at, each in enumerate(_SIZES) if each >= size), len(_SIZES) - 1)
        writer.relative(f"cmp {register}, [rel limit]", words + _LIMITS + 8 * kind)
        writer.cold("jb met", self._met)

    def _compare_ends(self, words: int, size: int) -> None:
        writer, register = self._writer, self._scratch
        writer.code(f"mov.s {register}, rdi")
        writer.relative(f"cmp {register}, [rel high]", words + _HIGH)
        writer.value("jae out", 0)
        at = len(writer.out)
        writer.code(f"lea {register}, [rdi+rcx*{size}]")
        writer.relative(f"cmp {register}, [rel low]", words + _LOW)
        writer.cold("ja met", self._met)
        writer.out[at - 4 : at] = i32(len(writer.out) - at)

    def _met(self) -> None:
        """Append: the handler is called, everything as it was; what is told it stands before the argument."""
        self._restore()
        self._call()
        self._writer.relative("jmp after", self._after)

    def _call(self) -> None:
        writer, action, insn = self._writer, self._action, self._test.insn
        writer.code("lea rsp, [rsp-128]; push rax; push rax")
        if insn.memory_base == Register.RIP:
            writer.relative("lea rax, [rel stored]", insn.memory_displacement + self._test.bias)
        else:
            writer.raw(self._address("rax", 0))
        writer.code("mov [rsp+8], rax; pop rax")
        writer.argument("push argument", action.offset)
        writer.relative("call routine", action.bank.handler)
        writer.code("lea rsp, [rsp+144]")
        writer.tell_place(action)

    def _address(self, register: str, more: int) -> bytes:
        """Return code by which a register gets where the store goes, and some bytes more."""
        insn = self._test.insn
        if string_bytes(insn):
            operand = MemoryOperand(Register.RDI, Register.NONE, 1, more, 8)
        else:
            displacement = insn.memory_displacement + more & (1 << 64) - 1
            signed = displacement - (1 << 64) if displacement >> 63 else displacement
            if not -_LARGEST <= signed < _LARGEST:
                detail = f"{insn}: its displacement is too large to test its last byte"
                raise UndisplaceableError(Refusal(Reason.NO_DISPLACED_FORM, insn.ip, detail))
            operand = MemoryOperand(insn.memory_base, insn.memory_index, insn.memory_index_scale, signed, 8)
        encoder = Encoder(64)
        encoder.encode(Instruction.create_reg_mem(Code.LEA_R64_M, _ICED[register], operand), 0)
        return encoder.take_buffer()


_IMPLIED = frozenset({"rdi", "rsi", "rcx"})
"""What string instructions use, and no operand names."""
