"""System calls of which the code does not say that they make no task: the number comes from elsewhere, or the flags do.

What makes tasks for certain is found by ``raw_clones``. Here is what is to be watched while the program runs.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from iced_x86 import Mnemonic, OpKind

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.binary.objects.functions import FunctionTable
from anyprobe.core.address import AddressRange
from anyprobe.core.memory import MemoryFault
from anyprobe.isa.decode import Flow, Insn, decode_range
from anyprobe.isa.effects import effects
from anyprobe.isa.registers import NUMBERS, SYSV_CLOBBERED, mask_of

_CLONE, _CLONE3 = 56, 435
_CLONE_32 = 120
"""``clone`` for ``int 0x80``."""
_SYSCALL = b"\x0f\x05"
_SIGRETURN = b"\x48\xc7\xc0\x0f\0\0\0"
"""What the C library's return from signal handlers begins with: its unwinding table begins a byte before."""
_INT_80 = b"\xcd\x80"
_RAX, _RDI = NUMBERS["rax"], NUMBERS["rdi"]
_BY_KERNEL = mask_of(("rax", "rcx", "r11"))
_IMMEDIATES = frozenset({
    OpKind.IMMEDIATE8, OpKind.IMMEDIATE32, OpKind.IMMEDIATE64, OpKind.IMMEDIATE8TO32, OpKind.IMMEDIATE8TO64,
    OpKind.IMMEDIATE32TO64,
})  # fmt: skip
_PADDING = frozenset({Mnemonic.NOP, Mnemonic.INT3})
_MOST_BYTES = 1 << 20
_PAIRS = 4096
"""Pairs of instruction and register that are looked at for one call: what is not known by then is not known."""


def open_calls(elf: ElfFile, ranges: Sequence[AddressRange], functions: FunctionTable) -> Iterator[int]:
    """Yield the ``syscall`` and ``int 0x80`` of functions that may make a task whose flags the code does not tell.

    Also where unwinding tables have a function end before it, as glibc's end ``clone``, in a program without symbols.
    """
    for each in ranges:
        content = elf.read(each.start, len(each))
        for call in (_SYSCALL, _INT_80):
            at = content.find(call)
            while at >= 0:
                code, number = _code_around(elf, functions, each.start + at)
                if code and not content.endswith(_SIGRETURN, 0, at) and _is_open(code, number):
                    yield each.start + at
                at = content.find(call, at + 1)


class Watched(NamedTuple):
    """Where a thread is to wait that comes to a system call."""

    function: int
    address: int
    number: int | None
    """The system call's number if it is not in its register yet, since the place is the instruction before."""


def watched(elf: ElfFile, functions: FunctionTable, at: int) -> Watched:
    """Return where a thread is to wait that comes to one of ``open_calls``; what is in no function is its own."""
    function = functions.containing(at) or functions.containing(at - 1)
    if function is None or at < function.end:
        return Watched(at if function is None else function.start, at, None)
    code, number = _code_around(elf, functions, at)
    before = code[number - 1]
    found = _source(code, number - 1, _RAX)
    return Watched(function.start, before.address if found is not None and found[0] else at, found and found[1])


def _code_around(elf: ElfFile, functions: FunctionTable, at: int) -> tuple[list[Insn], int]:
    """Return the code of the function that a system call is in, or ends, and its number there; none: it is none.

    What is in no function begins after the one before, and is code if all of it can be decoded.
    """
    function = functions.containing(at) or functions.containing(at - 1)
    if function is None:
        row = int(functions.starts.searchsorted(at, side="right")) - 1
        start, end = int(functions.ends[row]) if row >= 0 else at, at + 2
    else:
        start, end = function.start, max(function.end, at + 2)
    if end - start > _MOST_BYTES:
        return [], 0
    try:
        code = decode_range(elf.read(start, end - start), start)
    except MemoryFault:
        return [], 0
    number = next((number for number, insn in enumerate(code) if insn.address == at), -1)
    if number < 1 or code[number].flow is not Flow.SYSCALL:
        return [], 0
    is_code = function is not None or all(insn.flow is not Flow.INVALID for insn in code)
    return (code, number) if is_code else ([], 0)


def _is_open(code: Sequence[Insn], number: int) -> bool:
    asked = values_at(code, number, _RAX)
    if asked is None or _CLONE3 in asked:
        return True
    if code[number].raw == _INT_80:
        return _CLONE_32 in asked
    return _CLONE in asked and values_at(code, number, _RDI) is None


def values_at(code: Sequence[Insn], number: int, register: int) -> set[int] | None:
    """Return all values that a register may have before an instruction of a function; None: they are not known.

    What reaches the instruction by an indirect jump only is not known.
    """
    sources = _sources(code)
    found: set[int] = set()
    seen: set[tuple[int, int]] = set()
    left = [(number, register)]
    while left:
        pair = left.pop()
        if pair in seen:
            continue
        seen.add(pair)
        if len(seen) > _PAIRS or not sources.get(pair[0]):
            return None
        for before in sources[pair[0]]:
            source = _source(code, before, pair[1])
            if source is None:
                return None
            if source[0]:
                found.add(source[1])
            else:
                left.append((before, source[1]))
    return found


def _sources(code: Sequence[Insn]) -> dict[int, list[int]]:
    """Return by the numbers of instructions those from which control comes there; none: it is not known."""
    by_address = {insn.address: number for number, insn in enumerate(code)}
    found: dict[int, list[int]] = {}
    for number, insn in enumerate(code):
        if insn.target in by_address and not insn.is_call:
            found.setdefault(by_address[insn.target], []).append(number)
    for number, insn in enumerate(code):
        is_padding = number and number not in found and insn.iced.mnemonic in _PADDING
        if insn.falls_through and not is_padding:
            found.setdefault(number + 1, []).append(number)
    found.pop(0, None)  # the caller comes there, too
    return found


def _source(code: Sequence[Insn], number: int, register: int) -> tuple[bool, int] | None:
    """Return what an instruction leaves in a register: a constant, or what is in a register before; None: something."""
    insn = code[number]
    does = effects(insn)
    changed = does.may_write | (SYSV_CLOBBERED if insn.is_call else _BY_KERNEL if insn.flow is Flow.SYSCALL else 0)
    if not changed >> register & 1:
        return False, register
    iced = insn.iced
    if iced.mnemonic == Mnemonic.XOR and does.writes >> register & 1 and not does.reads >> register & 1:
        return True, 0
    if iced.mnemonic == Mnemonic.POP and number and code[number - 1].iced.mnemonic == Mnemonic.PUSH:
        before = code[number - 1].iced
        return (True, before.immediate(0) & 0xFFFFFFFF) if before.op0_kind in _IMMEDIATES else None
    if iced.mnemonic != Mnemonic.MOV or not does.writes >> register & 1:
        return None
    if iced.op1_kind in _IMMEDIATES:
        return True, iced.immediate(1) & 0xFFFFFFFF
    return (False, does.reads.bit_length() - 1) if iced.op1_kind == OpKind.REGISTER and does.reads else None
