"""Replaced return addresses: generated code for functions whose exits cannot all be spliced, on demand only.

At the entry the return address on the stack is replaced by the address of a *stub*. There is one stub for each pair of
a true return address and a probe, and a table says which. An entry of the table is written once and never changes, so
a stub leads to the same place for ever and in every address space: whoever returns through it comes back right,
whatever thread he is on by then, whatever stacks were switched, left by ``longjmp``, copied by fork. No state of a call
is needed. Where the table has no room for a pair the return address is left alone and the call is missed.
"""

from collections.abc import Callable
from dataclasses import dataclass

from anyprobe.data.layout import RETURN_BYTES
from anyprobe.isa.assemble import Assembler, i32, u64
from anyprobe.splice.codegen.clock_call import emit_now
from anyprobe.splice.codegen.routines import RoutineFacts, Routines, emit_acquire, emit_enter

RETURNS = 4096
"""Pairs of a return address and a probe that one bank can hold."""
STUB_BYTES = 8
_ROUTINE_BYTES = 4096
TRAMPOLINE_BYTES = RETURNS * STUB_BYTES + _ROUTINE_BYTES
"""Room for the stubs and routines of one bank."""
AT_RETURN_BYTES = 64
"""Room for the code by which a handler is called at replaced return addresses."""
COUNTED = 1
"""Bit of an argument that is the offset of a counter, not of a timing record; its misses are counted behind it."""
HANDLED = 2
"""Bit of an argument that is how far behind the stubs the code is that calls a handler and goes on to the caller."""
UNREPLACED = 16
"""Where returns that no stub could be had for are counted, behind the counter of a handler's hits."""
_ARGUMENT_IN_CALL = 6
"""Where the call of a handler has the offset of its counters: behind ``lea rsp, [rsp-128]`` and an opcode."""

_PROBES = 32
_DEEPEST = 4
"""Stubs that may lead to each other: one for each probe of a function, and for each function that ended in a jump."""
_GOLDEN = 0x9E37_79B9_7F4A_7C15
_PADDING = b"\xcc"


@dataclass(frozen=True, slots=True)
class Trampolines:
    """Addresses of the stubs, their table and the entry routines."""

    stubs: int
    count: int
    table: int
    enter: int
    enter_counted: int


def assemble_trampolines(
    facts: RoutineFacts, routines: Routines, address: int
) -> tuple[bytes, Trampolines, Callable[[], str]]:
    """Return the code of stubs and routines placed at ``address``, where each begins, and the listing."""
    count = facts.layout.returns
    table = facts.data + facts.layout.returns_offset
    asm = Assembler()
    _come_back(asm, address, table, routines)
    emit_acquire(asm, facts)
    emit_enter(asm, facts, lambda: _prepare(asm))
    if facts.clock:
        emit_now(asm, facts.clock)
    _enter_counted(asm, facts.shared, address)
    _find_stub(asm, address, count, table)
    behind = address + count * STUB_BYTES
    code = asm.finish(behind)
    enter, counted = behind + asm.offset_of("enter"), behind + asm.offset_of("enter_counted")
    stubs = _stubs(count, behind - address + asm.offset_of("come_back"))
    return stubs + code, Trampolines(address, count, table, enter, counted), asm.listing_at(behind)


def _stubs(count: int, target: int) -> bytes:
    """Return ``count`` times ``call target``; ``target`` is an offset from the first.

    The call pushes its return address into the very word that the function's ``ret`` has consumed: from then on the
    stack pointer is the one that the function was entered with.
    """
    each = (b"\xe8" + i32(target - at - 5) + _PADDING * 3 for at in range(0, count * STUB_BYTES, STUB_BYTES))
    return b"".join(each)


def _come_back(asm: Assembler, stubs: int, table: int, routines: Routines) -> None:
    """Emit ``come_back``: put the true return address on the stack, have the return counted, and return there.

    The function is over, so nothing is below the stack pointer. The routines called are the ones that exits use.
    """
    asm.label("come_back")
    asm.emit(b"\x48\x8d\xa4\x24\x78\xff\xff\xff", "lea rsp, [rsp-136]")
    asm.emit(b"\x50\x9f\x0f\x90\xc0\x50\x51", "push rax; lahf; seto al; push rax; push rcx")
    asm.emit(b"\x48\x8b\x84\x24" + i32(160), "mov rax, [rsp+160]")
    asm.emit(b"\x48\xb9" + u64(stubs + 5), "mov rcx, stubs+5")
    asm.emit(b"\x48\x29\xc8\x48\x01\xc0", "sub rax, rcx; add rax, rax")
    asm.emit(b"\x48\xb9" + u64(table), "mov rcx, table")
    asm.emit(b"\x48\x01\xc8", "add rax, rcx")
    asm.emit(b"\x48\x8b\x08\x48\x89\x8c\x24" + i32(160), "mov rcx, [rax]; mov [rsp+160], rcx")
    asm.emit(b"\x48\x8b\x48\x08", "mov rcx, [rax+8]")
    asm.emit(b"\xf6\xc1\x01", "test cl, COUNTED")
    asm.jump(b"\x0f\x85", "counted", "jnz counted")
    asm.emit(b"\xf6\xc1\x02", "test cl, HANDLED")
    asm.jump(b"\x0f\x85", "handled", "jnz handled")
    _argue_and_call(asm, routines.leave, "leave")
    asm.label("counted")
    asm.emit(b"\x48\x83\xe1\xfe", "and rcx, -2")
    _argue_and_call(asm, routines.count, "count")
    _go_to_handler(asm, stubs)


def _argue_and_call(asm: Assembler, routine: int, name: str) -> None:
    asm.emit(b"\x48\x89\x4c\x24\x18", "mov [rsp+24], rcx")
    asm.emit(b"\x59\x58\x04\x7f\x9e\x58", "pop rcx; pop rax; add al, 0x7f; sahf; pop rax")
    asm.jump(b"\xe8", routine, f"call {name}")
    asm.emit(b"\x48\x8d\xa4\x24\x88\x00\x00\x00\xc3", "lea rsp, [rsp+136]; ret")


def _go_to_handler(asm: Assembler, stubs: int) -> None:
    """Emit: go to the code that calls a handler, with all as the function's ``ret`` found it."""
    asm.label("handled")
    asm.emit(b"\x48\x83\xe1\xfc", "and rcx, -4")
    asm.emit(b"\x48\xb8" + u64(stubs) + b"\x48\x01\xc1", "mov rax, stubs; add rcx, rax")
    asm.emit(b"\x48\x89\x8c\x24" + i32(152), "mov [rsp+152], rcx")
    asm.emit(b"\x59\x58\x04\x7f\x9e\x58", "pop rcx; pop rax; add al, 0x7f; sahf; pop rax")
    asm.emit(b"\x48\x8d\xa4\x24\x88\x00\x00\x00\xff\x64\x24\xf8", "lea rsp, [rsp+136]; jmp qword [rsp-8]")


def _prepare(asm: Assembler) -> None:
    """Emit, behind the five pushes of an entry routine: find the stub and push it."""
    asm.emit(b"\x48\x8d\xb4\x24\xb8\x00\x00\x00", "lea rsi, [rsp+0xb8]")
    asm.emit(b"\x48\x8b\x54\x24\x30", "mov rdx, [rsp+0x30]")
    asm.jump(b"\xe8", "find_stub", "call find_stub")
    asm.emit(b"\x56", "push rsi")


def _enter_counted(asm: Assembler, shared: int, stubs: int) -> None:
    """Emit ``enter_counted``: have a return counted, or handled.

    Argument: the offset of its counter, with the bit ``COUNTED``, or where the handler is called, with ``HANDLED``.
    """
    asm.label("enter_counted")
    asm.emit(b"\x50\x9f\x0f\x90\xc0\x50", "push rax; lahf; seto al; push rax")
    asm.emit(b"\x51\x52\x56", "push rcx; push rdx; push rsi")
    _prepare(asm)
    asm.emit(b"\x48\x85\xf6", "test rsi, rsi")
    asm.jump(b"\x0f\x84", "counted_missed", "jz counted_missed")
    asm.emit(b"\x48\x89\xb4\x24\xc0\x00\x00\x00", "mov [rsp+0xc0], rsi")
    asm.label("counted_done")
    asm.emit(b"\x5e\x5e\x5a\x59\x58", "pop rsi; pop rsi; pop rdx; pop rcx; pop rax")
    asm.emit(b"\x04\x7f\x9e\x58\xc3", "add al, 0x7f; sahf; pop rax; ret")
    asm.label("counted_missed")
    asm.emit(b"\x48\xb9" + u64(shared), "mov rcx, shared block")
    asm.emit(b"\x48\x8b\x44\x24\x38", "mov rax, [rsp+0x38]")
    asm.emit(b"\xa8\x02", "test al, HANDLED")
    asm.jump(b"\x0f\x85", "handled_missed", "jnz handled_missed")
    asm.emit(b"\xf0\x48\xff\x44\x01\x07", "lock inc qword [rcx+rax-COUNTED+8]")
    asm.jump(b"\xe9", "counted_done", "jmp counted_done")
    asm.label("handled_missed")
    asm.emit(b"\x48\x83\xe0\xfc\x48\xbe" + u64(stubs), "and rax, -4; mov rsi, stubs")
    asm.emit(b"\x8b\x44\x06" + bytes([_ARGUMENT_IN_CALL]), "mov eax, [rsi+rax+6]")
    asm.emit(b"\xf0\x48\xff\x44\x01" + bytes([UNREPLACED]), "lock inc qword [rcx+rax+UNREPLACED]")
    asm.jump(b"\xe9", "counted_done", "jmp counted_done")


def _find_stub(asm: Assembler, stubs: int, count: int, table: int) -> None:
    """Emit ``find_stub``: rsi = the stub for the return address at [rsi] and argument rdx, or 0. Clobbers rax, rcx.

    A pair is claimed in two steps, each from 0: the address, then the argument. Whoever loses either step (another
    thread, a handler on this one) looks further; nobody uses a stub before both are there.
    """
    asm.label("find_stub")
    asm.emit(b"\x57\x41\x50", "push rdi; push r8")
    asm.emit(b"\x40\xf6\xc6\x07", "test sil, 7")  # detaching looks for stubs in aligned words
    asm.jump(b"\x0f\x85", "stub_none", "jnz stub_none")
    asm.emit(b"\x4c\x8b\x06\x4d\x85\xc0", "mov r8, [rsi]; test r8, r8")
    asm.jump(b"\x0f\x84", "stub_none", "jz stub_none")
    _refuse_deep(asm, stubs, count, table)
    asm.emit(b"\x48\x89\xd1\x48\xc1\xe1\x20\x4c\x31\xc1", "mov rcx, rdx; shl rcx, 32; xor rcx, r8")
    asm.emit(b"\x48\xb8" + u64(_GOLDEN) + b"\x48\x0f\xaf\xc8", "mov rax, golden; imul rcx, rax")
    shift = 64 - (count.bit_length() - 1)
    asm.emit(b"\x48\xc1\xe9" + bytes([shift]) + b"\xc1\xe1\x04", f"shr rcx, {shift}; shl ecx, 4")
    asm.emit(b"\xbf" + i32(min(_PROBES, count)), "mov edi, probes")
    asm.label("stub_probe")
    asm.emit(b"\x48\xbe" + u64(table) + b"\x48\x01\xce", "mov rsi, table; add rsi, rcx")
    asm.emit(b"\x48\x8b\x06\x4c\x39\xc0", "mov rax, [rsi]; cmp rax, r8")
    asm.jump(b"\x0f\x84", "stub_same", "je stub_same")
    asm.emit(b"\x48\x85\xc0", "test rax, rax")
    asm.jump(b"\x0f\x85", "stub_next", "jnz stub_next")
    asm.emit(b"\xf0\x4c\x0f\xb1\x06", "lock cmpxchg [rsi], r8")
    asm.jump(b"\x0f\x84", "stub_same", "je stub_same")
    asm.emit(b"\x4c\x39\xc0", "cmp rax, r8")
    asm.jump(b"\x0f\x85", "stub_next", "jne stub_next")
    asm.label("stub_same")
    asm.emit(b"\x48\x8b\x46\x08\x48\x39\xd0", "mov rax, [rsi+8]; cmp rax, rdx")
    asm.jump(b"\x0f\x84", "stub_found", "je stub_found")
    asm.emit(b"\x48\x85\xc0", "test rax, rax")
    asm.jump(b"\x0f\x85", "stub_next", "jnz stub_next")
    asm.emit(b"\xf0\x48\x0f\xb1\x56\x08", "lock cmpxchg [rsi+8], rdx")
    asm.jump(b"\x0f\x84", "stub_found", "je stub_found")
    asm.emit(b"\x48\x39\xd0", "cmp rax, rdx")
    asm.jump(b"\x0f\x84", "stub_found", "je stub_found")
    asm.label("stub_next")
    asm.emit(b"\x83\xc1\x10\x81\xe1" + i32((count - 1) * RETURN_BYTES), "add ecx, 16; and ecx, last")
    asm.emit(b"\xff\xcf", "dec edi")
    asm.jump(b"\x0f\x85", "stub_probe", "jnz stub_probe")
    asm.label("stub_none")
    asm.emit(b"\x31\xf6", "xor esi, esi")
    asm.label("stub_done")
    asm.emit(b"\x41\x58\x5f\xc3", "pop r8; pop rdi; ret")
    asm.label("stub_found")
    asm.emit(b"\xd1\xe9\x48\xbe" + u64(stubs) + b"\x48\x01\xce", "shr ecx, 1; mov rsi, stubs; add rsi, rcx")
    asm.jump(b"\xe9", "stub_done", "jmp stub_done")


def _refuse_deep(asm: Assembler, stubs: int, count: int, table: int) -> None:
    """Emit: give up where r8 is a stub that leads to a stub and so on, as when two functions jump to each other."""
    asm.emit(b"\x4c\x89\xc0\x48\xb9" + u64(stubs), "mov rax, r8; mov rcx, stubs")
    asm.emit(b"\x48\xbf" + u64(table) + b"\xbe" + i32(_DEEPEST), "mov rdi, table; mov esi, deepest")
    asm.label("stub_deeper")
    asm.emit(b"\x48\x29\xc8\x48\x3d" + i32(count * STUB_BYTES), "sub rax, rcx; cmp rax, size of the stubs")
    asm.jump(b"\x0f\x83", "stub_true", "jae stub_true")
    asm.emit(b"\xff\xce", "dec esi")
    asm.jump(b"\x0f\x84", "stub_none", "jz stub_none")
    asm.emit(b"\x48\x8b\x04\x47", "mov rax, [rdi+rax*2]")
    asm.jump(b"\xe9", "stub_deeper", "jmp stub_deeper")
    asm.label("stub_true")
