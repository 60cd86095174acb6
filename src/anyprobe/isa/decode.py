"""Bytes to instructions: a thin, fast view of what iced-x86 decodes, with the control flow that analysis needs."""

from enum import IntEnum
from typing import TYPE_CHECKING

from iced_x86 import Code, Decoder, FlowControl, Instruction

from anyprobe.core.refusal import Reason, Refusal

if TYPE_CHECKING:
    from iced_x86 import ConstantOffsets


class Flow(IntEnum):
    """Where control goes after an instruction."""

    NEXT = 0
    JUMP = 1
    """Direct unconditional jump."""
    JCC = 2
    """Direct conditional jump, ``loop`` and ``jrcxz`` included."""
    CALL = 3
    """Direct call."""
    INDIRECT_JUMP = 4
    INDIRECT_CALL = 5
    RET = 6
    """Near return."""
    SYSCALL = 7
    """``syscall``, ``sysenter``, ``int 0x80``: comes back after itself or, to restart, at itself."""
    TRAP = 8
    """``ud2`` and its kin, ``hlt``, ``int3``; only ``int3``, in one byte or two, goes on to the next instruction."""
    XBEGIN = 9
    """Next instruction, or its target after an abort."""
    OTHER = 10
    """Far branches, ``iret``, ``int n``: nothing is known."""
    INVALID = 11
    """Not an instruction that the decoder knows."""


_NEXT = Flow.NEXT
_NO_FALLTHROUGH = frozenset({Flow.JUMP, Flow.INDIRECT_JUMP, Flow.RET, Flow.TRAP, Flow.INVALID})
CALLS = frozenset({Flow.CALL, Flow.INDIRECT_CALL})
JUMPS = frozenset({Flow.JUMP, Flow.JCC, Flow.XBEGIN})
"""Direct ones: they may go where they say."""
DIRECT = JUMPS | {Flow.CALL}
"""The same, calls included."""

_BY_CODE: dict[int, Flow] = {
    Code.INVALID: Flow.INVALID,
    Code.HLT: Flow.TRAP,
    Code.INT3: Flow.TRAP,
    Code.SYSCALL: Flow.SYSCALL,
    Code.SYSENTER: Flow.SYSCALL,
    Code.XBEGIN_REL32: Flow.XBEGIN,
    Code.XABORT_IMM8: Flow.NEXT,
    Code.XEND: Flow.NEXT,
    Code.JMP_RM64: Flow.INDIRECT_JUMP,
    Code.CALL_RM64: Flow.INDIRECT_CALL,
    Code.JMP_REL8_64: Flow.JUMP,
    Code.JMP_REL32_64: Flow.JUMP,
    Code.CALL_REL32_64: Flow.CALL,
    Code.RETNQ: Flow.RET,
    Code.RETNQ_IMM16: Flow.RET,
}

_INTERRUPTS = {0x03: Flow.TRAP, 0x80: Flow.SYSCALL}
_BREAKPOINTS = frozenset({Code.INT3, Code.INT_IMM8})

_BY_FLOW_CONTROL: dict[int, Flow] = {
    FlowControl.NEXT: Flow.NEXT,
    FlowControl.CONDITIONAL_BRANCH: Flow.JCC,
    FlowControl.EXCEPTION: Flow.TRAP,
}


def _table() -> tuple[Flow, ...]:
    """Ask iced once for every kind of instruction (a millisecond), so that classifying is one look-up."""
    probe = Instruction()
    flows: list[Flow] = []
    for code in range(_KINDS):
        probe.code = code  # type: ignore[assignment]
        known = _BY_CODE.get(code)
        flows.append(_BY_FLOW_CONTROL.get(probe.flow_control, Flow.OTHER) if known is None else known)
    return tuple(flows)


def constants(kind: object) -> dict[str, int]:
    """Return iced's numbers of a kind, such as ``Code``, by name."""
    return {name: getattr(kind, name) for name in dir(kind) if name.isupper()}


_KINDS = 1 + max(constants(Code).values())
FLOWS = _table()
"""``Flow`` by iced's ``code``, for loops in which a call would cost too much; every ``int n`` is ``OTHER`` here."""


def flow_of(instruction: Instruction) -> Flow:
    """Return the control flow of an iced instruction."""
    flow = FLOWS[instruction.code]
    # of int n two are known: a system call, and what int3 is; one code for all numbers, so outside of the table
    if flow is Flow.OTHER and instruction.code == Code.INT_IMM8:
        return _INTERRUPTS.get(instruction.immediate8, flow)
    return flow


class Insn:
    """One decoded instruction at an address. Immutable by convention; made in great numbers, hence plain slots."""

    __slots__ = ("address", "flow", "iced", "length", "raw", "target")

    address: int
    length: int
    raw: bytes
    flow: Flow
    target: int | None
    """Where a direct branch goes."""
    iced: Instruction

    def __init__(self, iced: Instruction, raw: bytes, address: int, code: int) -> None:
        """Wrap what iced decoded from ``raw``; its ``ip`` and ``code`` are known to who has decoded many at once."""
        self.iced = iced
        self.raw = raw
        self.address = address
        self.length = len(raw)
        flow = FLOWS[code]
        if flow is _NEXT:
            self.flow, self.target = flow, None
            return
        if flow is Flow.OTHER:
            flow = flow_of(iced)
        self.flow = flow
        self.target = iced.near_branch_target if flow in DIRECT else None

    @property
    def end(self) -> int:
        """The address after the instruction."""
        return self.address + self.length

    @property
    def falls_through(self) -> bool:
        """Whether control can reach the next instruction (through a call that returns, too)."""
        return self.flow is _NEXT or self.flow not in _NO_FALLTHROUGH or self.iced.code in _BREAKPOINTS

    @property
    def may_go_on(self) -> bool:
        """Whether the next instruction may follow, be it by a signal handler that skips ``ud2`` or ``hlt``."""
        return self.flow is Flow.TRAP or self.flow not in _NO_FALLTHROUGH

    @property
    def is_call(self) -> bool:
        """Whether it is a direct or indirect near call."""
        return self.flow in CALLS

    @property
    def is_near_jump(self) -> bool:
        """Whether it is ``jmp`` with a 32-bit displacement."""
        return self.flow is Flow.JUMP and self.length >= 5 and self.raw[-5] == 0xE9

    @property
    def is_endbr(self) -> bool:
        """Whether it is ``endbr64``."""
        return self.raw == b"\xf3\x0f\x1e\xfa"

    @property
    def condition(self) -> int | None:
        """The condition code of a conditional jump; ``None`` for others, ``loop`` and ``jrcxz``. Skips prefixes."""
        raw = self.raw
        if len(raw) == 2 and raw[0] >> 4 == 7:
            return raw[0] & 15
        if len(raw) == 6 and raw[0] == 0x0F and raw[1] >> 4 == 8:
            return raw[1] & 15
        return None

    @property
    def text(self) -> str:
        """The assembly, Intel syntax."""
        from anyprobe.isa.disassemble import format_instruction

        return format_instruction(self.iced)

    @property
    def offsets(self) -> "ConstantOffsets":
        """Where in the bytes the displacement and the immediate lie."""
        decoder = Decoder(64, self.raw, ip=self.address)
        return decoder.get_constant_offsets(decoder.decode())

    def at(self, address: int) -> "Insn":
        """Return the same bytes decoded at another address, for instance at run time instead of link time."""
        iced = Decoder(64, self.raw, ip=address).decode()
        return Insn(iced, self.raw, address, iced.code)

    def __repr__(self) -> str:
        """Return address, bytes and assembly."""
        return f"<{self.address:#x}: {self.raw.hex()} {self.text}>"


def decode_range(content: bytes, address: int) -> list[Insn]:
    """Decode bytes from the first to the last. Undecodable bytes appear as instructions with ``Flow.INVALID``."""
    made: list[Insn] = []
    append = made.append
    offset = 0
    for iced in Decoder(64, content, ip=address):
        end = offset + iced.len
        append(Insn(iced, content[offset:end], address + offset, iced.code))
        offset = end
    return made


def decode_one(content: bytes, address: int) -> Insn | Refusal:
    """Decode the first instruction of some bytes."""
    iced = Decoder(64, content, ip=address).decode()
    if iced.code == Code.INVALID:
        shown = content[:15].hex(" ")
        return Refusal(Reason.UNDECODABLE, address, f"the decoder does not know the instruction {shown}")
    return Insn(iced, content[: iced.len], address, iced.code)


def decode_iced(content: bytes, address: int) -> list[Instruction]:
    """Decode bytes to plain iced instructions: several times cheaper, for whole functions."""
    return list(Decoder(64, content, ip=address))


def lengths_of(content: bytes, address: int) -> bytes:
    """Return the lengths of the instructions that bytes decode to: cheaper still, and small."""
    return bytes(map(len, Decoder(64, content, ip=address)))
