"""Generated code that leaves out of times what a thread was not on a processor: the clock of ``--clock cpu``.

Each thread maps the page of a perf event of its own that measures nothing (``PERF_COUNT_SW_DUMMY``). The kernel
changes the page's lock whenever it gives the thread a processor. So as long as the lock is what it was, the time stamp
counter alone tells how far the thread's own clock has come. Where it is not, that clock (``CLOCK_THREAD_CPUTIME_ID``)
is asked once, and the block takes note of how far the counter is ahead of it. By how much more that is than before, the
thread was not on a processor since the last probe: in the innermost call that was open. Where no page is to be had (no
locked memory or descriptors left, ``perf_event_paranoid``), that clock is asked at each reading.
"""

import time

from anyprobe.data.layouts import layout as at
from anyprobe.data.layouts.layout import BankLayout
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen.timing.clocks import LOCK, emit_if_changed, leave_out

_CLOCK_GETTIME, _PERF_EVENT_OPEN, _MMAP, _MUNMAP, _CLOSE = 228, 298, 9, 11, 3
_SOFTWARE, _DUMMY, _EXCLUDED, _ATTRIBUTES, _CLOEXEC = 1, 9, 0x60, 64, 8
"""Type, configuration, flags (neither kernel nor hypervisor), size of the attributes; and the flag of the call."""
_READ, _SHARED, _PAGE = 1, 1, 4096
_LONGEST = 1 << 13
"""Ticks that asking for the time may take: of what is above it another thread had the processor."""
_SECOND = 1_000_000_000


def emit_routines(asm: Assembler, data: int, rate: int, layout: BankLayout) -> None:
    """Emit ``waited`` and ``moment``, which are called where a thread was not on a processor, and now and then.

    ``data``, ``rate`` and ``layout`` are as in ``RoutineFacts``.
    """
    _emit_waited(asm, rate, layout)
    _emit_mapping(asm, data)
    _emit_moment(asm)


def _emit_waited(asm: Assembler, rate: int, layout: BankLayout) -> None:
    """Emit ``waited``: rax = the time stamp counter, once it is known how far it is ahead (rdi = block).

    Preserves all else. The counter is read again after the clock was asked: what that took is a cost of
    probes. A signal handler that comes in between finds a thread without a page; or what it has noted is overwritten
    here, and then the lock is another one at the next reading.
    """
    asm.code(
        f"""
        waited:
            pushfq; push rcx; push rdx; push rsi; push rdi; push r8; push r9; push r10; push r11; push rbx
            mov rbx, rdi
            mov eax, fs:[{at.TID_OFFSET}]; cmp [rbx+{at.BLOCK_PAGE_OF}], eax; jne waited_thread
        waited_again:
            mov r8, [rbx+{at.BLOCK_PAGE}]; mov r9d, [r8+{LOCK}]
            rdtsc; shl rdx, 32; or rax, rdx; mov r10, rax
            lea rsp, [rsp-16]
            mov edi, {time.CLOCK_THREAD_CPUTIME_ID}; mov rsi, rsp; mov eax, {_CLOCK_GETTIME}; syscall
            pop rsi; pop rdi
            rdtsc; shl rdx, 32; or rax, rdx
            cmp [r8+{LOCK}], r9d; jne waited_again
            mov rcx, rax
            imul rsi, rsi, {_SECOND}; add rsi, rdi
            mov rax, rate; mul rsi; shrd rax, rdx, 32
            # the clock was read in the middle, and nothing else has had the processor, or not for long
            mov rdx, rcx; sub rdx, r10; mov esi, {_LONGEST}; cmp rdx, rsi; cmova rdx, rsi
            mov rsi, rdx; shr rsi, 1; mov rdi, rcx; sub rdi, rsi; sub rdi, rax
            mov r10, rdi; xchg [rbx+{at.BLOCK_OFF}], r10
            cmp r9d, {at.NO_LOCK}; je waited_pageless
            mov [rbx+{at.BLOCK_LOCK}], r9d
        waited_pageless:
            shl rdx, {at.COST_BITS}; add [rbx+{at.BLOCK_COST}], rdx
            {_charge_off(layout) if layout.nested else ""}
            mov rax, rcx
            pop rbx; pop r11; pop r10; pop r9; pop r8; pop rdi; pop rsi; pop rdx; pop rcx; popfq; ret
        """,
        rate=rate,
    )


def _charge_off(layout: BankLayout) -> str:
    """Return code that tells the innermost open call for how long its thread was not on a processor.

    That is what rdi, as far as the counter is ahead by now, has more than r10 before; 0: nothing was known before.
    """
    node, tree = "", layout.nodes and layout.tree_offset
    if tree:
        node = f"""movsxd r8, dword [rbx+rsi+{at.NODE}]; shl r8, {at.NODE_BYTES.bit_length() - 1}
            add [rbx+r8+{tree + at.NODE_OFF}], rdi"""
    return f"""
            test r10, r10; jz waited_charged
            sub rdi, r10
            mov rsi, [rbx+{at.BLOCK_TOP}]; shl rsi, 6
        waited_call:  # one that has ended, has not begun, or is no function's is passed over
            sub rsi, {at.INSTANCE_BYTES}; js waited_charged
            cmp qword [rbx+rsi+{at.SP}], {at.RESUMED}; jbe waited_call
            mov r8d, [rbx+rsi+{at.RECORD}]; and r8d, -8; add [rbx+r8+{at.RECORD_OFF}], rdi
            {node}
        waited_charged:
    """


def _emit_moment(asm: Assembler) -> None:
    """Emit ``moment``: rax = the time without what the thread was not on processors (rdi = block); rdx changes."""
    asm.code("moment:\n rdtsc; shl rdx, 32; or rax, rdx")
    emit_if_changed(asm, "rdi", "rdx", "moment_waited")
    asm.code(f"""
        moment_known:
            {leave_out("rax", "rdi")}; ret
        moment_waited:
            call waited; jmp moment_known
    """)


def _emit_mapping(asm: Assembler, data: int) -> None:
    """Emit: the thread maps a page of its own, instead of that of the one before it (rbx = block, eax = its id).

    First the block is the thread's, and has no page: so it is for a signal handler that comes in between.
    """
    asm.code(
        f"""
        waited_thread:
            mov rdi, [rbx+{at.BLOCK_PAGE}]
            mov rcx, nowhere; mov [rbx+{at.BLOCK_PAGE}], rcx
            mov dword [rbx+{at.BLOCK_LOCK}], 0; mov [rbx+{at.BLOCK_PAGE_OF}], eax
            mov qword [rbx+{at.BLOCK_OFF}], 0
            cmp rdi, rcx; je waited_no_other
            mov esi, {_PAGE}; mov eax, {_MUNMAP}; syscall
        waited_no_other:
            push 0; push 0; push {_EXCLUDED}; push 0; push 0; push 0; push {_DUMMY}
            mov rax, attributes; push rax
            mov rdi, rsp; xor esi, esi; or rdx, -1; or r10, -1; mov r8d, {_CLOEXEC}
            mov eax, {_PERF_EVENT_OPEN}; syscall
            lea rsp, [rsp+{_ATTRIBUTES}]
            test eax, eax; js waited_again
            mov r8d, eax
            xor edi, edi; mov esi, {_PAGE}; mov edx, {_READ}; mov r10d, {_SHARED}; xor r9d, r9d
            mov eax, {_MMAP}; syscall
            mov rdx, rax; mov edi, r8d; mov eax, {_CLOSE}; syscall
            cmp rdx, -4096; ja waited_again
            mov [rbx+{at.BLOCK_PAGE}], rdx
        waited_mapped:
            jmp waited_again
        """,
        nowhere=data + at.NOWHERE,
        attributes=_ATTRIBUTES << 32 | _SOFTWARE,
    )
