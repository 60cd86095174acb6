"""Replaced return addresses: generated code for functions whose exits cannot all be spliced, on demand only.

At the entry the return address on the stack is replaced by the address of a *stub*. There is one stub for each pair of
a true return address and a probe, and a table says which. An entry of the table is written once and never changes, so
a stub leads to the same place for ever and in every address space: a thread that returns through it comes back right,
whatever thread he is on by then, whatever stacks were switched, left by ``longjmp``, copied by fork. No state of a call
is needed. Where the table has no room for a pair the return address is left alone and the call is missed.
"""

from collections.abc import Callable
from dataclasses import dataclass

from anyprobe.data.layouts.layout import GOLDEN, RETURN_BYTES
from anyprobe.isa.assemble import Assembler, i32
from anyprobe.isa.encode import head, machine_code
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
"""Bit of an argument that is the offset of a counter, not of a timing record; its misses are counted after it."""
HANDLED = 2
"""Bit of an argument that is how far after the stubs the code is that calls a handler and goes on to the caller."""
UNREPLACED = 16
"""Where returns that no stub could be had for are counted, after the counter of a handler's hits."""
_ARGUMENT_IN_CALL = 6
"""Where the call of a handler has the offset of its counters: after ``lea rsp, [rsp-128]`` and an opcode."""

_PROBES = 32
_DEEPEST = 4
"""Stubs that may lead to each other: one for each probe of a function, and for each function that ended in a jump."""


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
    emit_enter(asm, facts, lambda: _prepare(asm), purge=routines.purge, settle=routines.settle)
    from anyprobe.splice.codegen.timing.clocks import emit_called  # counts need none

    emit_called(asm, facts)
    _enter_counted(asm, facts.shared, address)
    _find_stub(asm, address, count, table)
    after = address + count * STUB_BYTES
    code = asm.finish(after)
    enter, counted = after + asm.offset_of("enter"), after + asm.offset_of("enter_counted")
    stubs = _stubs(count, after - address + asm.offset_of("come_back"))
    return stubs + code, Trampolines(address, count, table, enter, counted), asm.listing_at(after)


def _stubs(count: int, target: int) -> bytes:
    """Return ``count`` times ``call target``; ``target`` is an offset from the first.

    The call pushes its return address into the very word that the function's ``ret`` has consumed: from then on the
    stack pointer is the one that the function was entered with.
    """
    padding = machine_code("int3; int3; int3")
    each = (head("call come_back") + i32(target - at - 5) + padding for at in range(0, count * STUB_BYTES, STUB_BYTES))
    return b"".join(each)


def _come_back(asm: Assembler, stubs: int, table: int, routines: Routines) -> None:
    """Emit ``come_back``: put the true return address on the stack, have the return counted, and return there.

    The function is over, so nothing is below the stack pointer. The routines called are the ones that exits use.
    """
    asm.code(
        f"""
        come_back:
            lea rsp, [rsp-136]
            push rax; lahf; seto al; push rax; push rcx
            mov rax, [rsp+160]
            mov rcx, stubs+5; sub rax, rcx; add rax, rax
            mov rcx, table; add rax, rcx
            mov rcx, [rax]; mov [rsp+160], rcx
            mov rcx, [rax+8]
            test cl, {COUNTED}; jnz counted
            test cl, {HANDLED}; jnz handled
        """,
        stubs=stubs,
        table=table,
    )
    if routines.leave:
        _argue_and_call(asm, routines.leave)
    asm.label("counted")
    asm.code("and rcx, -2")
    _argue_and_call(asm, routines.count)
    _go_to_handler(asm, stubs)


def _argue_and_call(asm: Assembler, routine: int) -> None:
    asm.code(
        """
            mov [rsp+24], rcx
            pop rcx; pop rax; add al, 0x7f; sahf; pop rax
            call routine
            lea rsp, [rsp+136]; ret
        """,
        routine=routine,
    )


def _go_to_handler(asm: Assembler, stubs: int) -> None:
    """Emit: go to the code that calls a handler, with all as the function's ``ret`` found it."""
    asm.code(
        """
        handled:
            and rcx, -4
            mov rax, stubs; add rcx, rax
            mov [rsp+152], rcx
            pop rcx; pop rax; add al, 0x7f; sahf; pop rax
            lea rsp, [rsp+136]; jmp qword [rsp-8]
        """,
        stubs=stubs,
    )


def _prepare(asm: Assembler) -> None:
    """Emit, after the five pushes of an entry routine: find the stub and push it."""
    asm.code("lea rsi, [rsp+0xb8]; mov rdx, [rsp+0x30]; call find_stub; push rsi")


def _enter_counted(asm: Assembler, shared: int, stubs: int) -> None:
    """Emit ``enter_counted``: have a return counted, or handled.

    Argument: the offset of its counter, with the bit ``COUNTED``, or where the handler is called, with ``HANDLED``.
    """
    asm.label("enter_counted")
    asm.code("push rax; lahf; seto al; push rax; push rcx; push rdx; push rsi")
    _prepare(asm)
    asm.code(
        f"""
            test rsi, rsi; jz counted_missed
            mov [rsp+0xc0], rsi
        counted_done:
            pop rsi; pop rsi; pop rdx; pop rcx; pop rax
            add al, 0x7f; sahf; pop rax; ret
        counted_missed:
            mov rcx, shared
            mov rax, [rsp+0x38]
            test al, {HANDLED}; jnz handled_missed
            lock inc qword [rcx+rax+{8 - COUNTED}]; jmp counted_done
        handled_missed:
            and rax, -4; mov rsi, stubs
            mov eax, [rsi+rax+{_ARGUMENT_IN_CALL}]
            lock inc qword [rcx+rax+{UNREPLACED}]; jmp counted_done
        """,
        shared=shared,
        stubs=stubs,
    )


def _find_stub(asm: Assembler, stubs: int, count: int, table: int) -> None:
    """Emit ``find_stub``: rsi = the stub for the return address at [rsi] and argument rdx, or 0. Clobbers rax, rcx.

    A pair is claimed in two steps, each from 0: the address, then the argument. A thread that loses either step
    (another thread, a handler on this one) looks further; no thread uses a stub before both are there.
    """
    asm.code("""
    find_stub:
        push rdi; push r8
        test sil, 7  # detaching looks for stubs in aligned words
        jnz stub_none
        mov r8, [rsi]; test r8, r8; jz stub_none
    """)
    _refuse_deep(asm, stubs, count, table)
    asm.code(f"mov rcx, rdx; shl rcx, 32; xor rcx, r8; mov rax, {GOLDEN}; imul rcx, rax")
    shift = 64 - (count.bit_length() - 1)
    asm.code(
        f"""
            shr rcx, {shift}; shl ecx, 4
            mov edi, probes
        stub_probe:
            mov rsi, table; add rsi, rcx
            mov rax, [rsi]; cmp rax, r8; je stub_same
            test rax, rax; jnz stub_next
            lock cmpxchg [rsi], r8; je stub_same
            cmp rax, r8; jne stub_next
        stub_same:
            mov rax, [rsi+8]; cmp rax, rdx; je stub_found
            test rax, rax; jnz stub_next
            lock cmpxchg [rsi+8], rdx; je stub_found
            cmp rax, rdx; je stub_found
        stub_next:
            add ecx, 16; and ecx, last
            dec edi; jnz stub_probe
        stub_none:
            xor esi, esi
        stub_done:
            pop r8; pop rdi; ret
        stub_found:
            shr ecx, 1; mov rsi, stubs; add rsi, rcx; jmp stub_done
        """,
        probes=min(_PROBES, count),
        table=table,
        last=(count - 1) * RETURN_BYTES,
        stubs=stubs,
    )


def _refuse_deep(asm: Assembler, stubs: int, count: int, table: int) -> None:
    """Emit: give up where r8 is a stub that leads to a stub and so on, as when two functions jump to each other."""
    asm.code(
        f"""
            mov rax, r8; mov rcx, stubs
            mov rdi, table; mov esi, {_DEEPEST}
        stub_deeper:
            sub rax, rcx; cmp rax, stub_bytes; jae stub_true
            dec esi; jz stub_none
            mov rax, [rdi+rax*2]; jmp stub_deeper
        stub_true:
        """,
        stubs=stubs,
        table=table,
        stub_bytes=count * STUB_BYTES,
    )
