"""The generated routines that all patches of one bank share: first hits, timing at entry, timing at exits.

Patches call them with the stack pointer already below the red zone and one argument pushed. On entry the stack is
``[rsp]`` return address, ``[rsp+8]`` argument, and the site's own stack pointer is ``rsp + 144`` (128 bytes of red
zone, argument, return address). Every register and flag is preserved.

A signal may interrupt any instruction here and its handler may come through the same routines on the same thread:
every change of shared words is one read-modify-write instruction, an instance is reserved before it is filled, and a
reserved but unfilled instance holds stack pointer 0, which nothing matches.
"""

from collections.abc import Callable
from dataclasses import dataclass

from anyprobe.data.histogram import BUCKETS
from anyprobe.data.layout import BLOCK_HINTS, HINT_BITS, BankLayout
from anyprobe.isa.assemble import Assembler, i32, u64
from anyprobe.splice.codegen.clock_call import emit_now
from anyprobe.splice.translate.progress import Stretch, progress_in_routines, stretches_of

_HASH = -0x61C88647
"""Odd, and near to the golden section of 2**32."""
_TOMBSTONE = 1
"""Stack pointer of an instance freed from the middle of the stack."""


@dataclass(frozen=True, slots=True)
class RoutineFacts:
    """What the routines need to know of their bank."""

    layout: BankLayout
    data: int
    """Address of the bank's region in the target."""
    gate: int
    """Address of the bank's word on the wipe-on-fork page: a mask that every block pointer has, 0 in fork children."""
    slot: int
    """Offset of the thread slot from the thread pointer."""
    clock: int = 0
    """Address of the vdso's ``clock_gettime``, which is called for the time in nanoseconds; 0: ``rdtsc``."""
    numbered: int = 0
    """Numbers that threads may have by earlier banks: nobody gets one of these by this bank."""

    @property
    def shared(self) -> int:
        """Address of the shared block."""
        return self.data + self.layout.shared_offset


@dataclass(frozen=True, slots=True)
class Routines:
    """Addresses of the generated routines."""

    count: int
    enter: int
    leave: int
    leave_tail: int
    stretches: tuple[Stretch, ...] = ()
    finish: int = 0
    """How far behind the routines of exits the copies are that return when an exit is recorded, and restore nothing."""


def assemble_routines(facts: RoutineFacts, address: int) -> tuple[bytes, Routines, Callable[[], str]]:
    """Return the code of all routines placed at ``address``, where each begins, and the listing."""
    asm = Assembler()
    emit_acquire(asm, facts)
    _count(asm, facts)
    emit_enter(asm, facts)
    for name in ("leave", "leave_tail", "finish_leave", "finish_leave_tail"):
        _leave(asm, facts, name)
    if facts.clock:
        emit_now(asm, facts.clock)
    count, enter, leave, leave_tail = (
        address + asm.offset_of(name) for name in ("count", "enter", "leave", "leave_tail")
    )
    code = asm.finish(address)
    finish = address + asm.offset_of("finish_leave") - leave
    stretches = stretches_of(asm, address, len(code), progress_in_routines())
    routines = Routines(count, enter, leave, leave_tail, stretches, finish)
    return code, routines, asm.listing_at(address)


def emit_acquire(asm: Assembler, facts: RoutineFacts) -> None:
    """Emit ``acquire``: rcx = this thread's block, made on the first hit, or 0. Clobbers rax, rdx, flags.

    0 means: a fork child (its copy of the gate is wiped; the inherited slots belong to the parent's threads), or no
    block left. A signal handler that makes a block between ours and the store costs one block, never a count.

    Of threads with the same thread pointer only one is alive: it takes over the block of the one before it, as it does
    where glibc gives it the other's stack and with it the slot. So programs whose threads come and go need few blocks.
    """
    layout = facts.layout
    asm.label("acquire")
    asm.emit(b"\x48\xa1" + u64(facts.gate), "mov rax, [gate]")
    asm.emit(b"\x48\x85\xc0", "test rax, rax")
    asm.jump(b"\x0f\x84", "none", "jz none")
    asm.emit(b"\x64\x48\x8b\x0c\x25" + i32(facts.slot), "mov rcx, fs:[slot]")
    asm.emit(b"\x48\x85\xc8", "test rax, rcx")
    asm.jump(b"\x0f\x85", "acquired", "jnz acquired")
    asm.emit(b"\x48\xba" + u64(facts.data), "mov rdx, region")
    _emit_hint(asm)
    asm.emit(b"\x8b\x84\x82" + i32(BLOCK_HINTS), "mov eax, [rdx+rax*4+BLOCK_HINTS]")
    asm.emit(b"\x85\xc0", "test eax, eax")
    asm.jump(b"\x0f\x84", "new_block", "jz new_block")
    asm.emit(b"\x48\x69\xc8" + i32(layout.stride), "imul rcx, rax, stride")
    asm.emit(b"\x48\x8d\x8c\x0a" + i32(layout.shared_offset), "lea rcx, [rdx+rcx+shared_offset]")
    asm.emit(b"\x64\x48\x8b\x04\x25\x10\x00\x00\x00", "mov rax, fs:[0x10]")
    asm.emit(b"\x48\x39\x01", "cmp [rcx+BLOCK_OWNER], rax")
    asm.jump(b"\x0f\x84", "taken_over", "je taken_over")
    asm.label("new_block")
    asm.emit(b"\xb8\x01\x00\x00\x00", "mov eax, 1")
    asm.emit(b"\xf0\x48\x0f\xc1\x42\x40", "lock xadd [rdx+NEXT_BLOCK], rax")
    asm.emit(b"\x48\x3d" + i32(layout.blocks), "cmp rax, blocks")
    asm.jump(b"\x0f\x83", "none", "jae none")
    asm.emit(b"\xff\xc0", "inc eax")
    asm.emit(b"\x48\x69\xc8" + i32(layout.stride), "imul rcx, rax, stride")
    asm.emit(b"\x48\x8d\x8c\x0a" + i32(layout.shared_offset), "lea rcx, [rdx+rcx+shared_offset]")
    asm.emit(b"\x50", "push rax")
    _emit_hint(asm)
    asm.emit(b"\x48\x8d\x94\x82" + i32(BLOCK_HINTS), "lea rdx, [rdx+rax*4+BLOCK_HINTS]")
    asm.emit(b"\x64\x48\x8b\x04\x25\x10\x00\x00\x00", "mov rax, fs:[0x10]")
    asm.emit(b"\x48\x89\x01", "mov [rcx+BLOCK_OWNER], rax")
    asm.emit(b"\x58", "pop rax")
    asm.emit(b"\x89\x02", "mov [rdx], eax")
    asm.label("taken_over")
    asm.emit(b"\x64\x48\x89\x0c\x25" + i32(facts.slot), "mov fs:[slot], rcx")
    asm.label("acquired")
    asm.emit(b"\xc3", "ret")
    asm.label("none")
    asm.emit(b"\x31\xc9", "xor ecx, ecx")
    asm.emit(b"\xc3", "ret")


def _emit_hint(asm: Assembler) -> None:
    """Emit code for the number of the hint for this thread in rax; stacks lie at regular distances, so it is hashed."""
    asm.emit(b"\x64\x48\x8b\x04\x25\x10\x00\x00\x00", "mov rax, fs:[0x10]")
    asm.emit(b"\x48\xc1\xe8\x0c", "shr rax, 12")
    asm.emit(b"\x69\xc0" + i32(_HASH), "imul eax, eax, hash")
    asm.emit(b"\xc1\xe8" + bytes([32 - HINT_BITS]), "shr eax, 32 - HINT_BITS")


def _count(asm: Assembler, facts: RoutineFacts) -> None:
    """Emit ``count``: a hit of a counter by a thread without a block. Argument: offset of the counter."""
    asm.label("count")
    asm.emit(b"\x9c", "pushfq")
    asm.emit(b"\x50\x51\x52", "push rax; push rcx; push rdx")
    asm.jump(b"\xe8", "acquire", "call acquire")
    asm.emit(b"\x48\x8b\x54\x24\x28", "mov rdx, [rsp+0x28]")
    asm.emit(b"\x48\x85\xc9", "test rcx, rcx")
    asm.jump(b"\x0f\x84", "count_shared", "jz count_shared")
    asm.emit(b"\x48\xff\x04\x11", "inc qword [rcx+rdx]")
    asm.label("count_done")
    asm.emit(b"\x5a\x59\x58\x9d\xc3", "pop rdx; pop rcx; pop rax; popfq; ret")
    asm.label("count_shared")
    asm.emit(b"\x48\xb9" + u64(facts.shared), "mov rcx, shared block")
    asm.emit(b"\xf0\x48\xff\x04\x11", "lock inc qword [rcx+rdx]")
    asm.label("count_shared_done")
    asm.jump(b"\xe9", "count_done", "jmp count_done")


def emit_enter(asm: Assembler, facts: RoutineFacts, prepare: Callable[[], None] | None = None) -> None:
    """Emit ``enter``: push an instance of the calling function. Argument: offset of its timing record.

    ``prepare`` emits code that pushes the return address that is to replace the site's, 0 for none: then the call is
    missed. It is written once the instance is complete.
    """
    layout = facts.layout
    pushed = 8 if prepare else 0
    argument, site = _stack_at(b"\x8b", 0x30 + pushed), _stack_at(b"\x8d", 0xB8 + pushed)
    asm.label("enter")
    # lahf and seto keep all arithmetic flags at a fraction of the cost of pushf and popf
    asm.emit(b"\x50\x9f\x0f\x90\xc0\x50", "push rax; lahf; seto al; push rax")
    asm.emit(b"\x51\x52\x56", "push rcx; push rdx; push rsi")
    if prepare:
        prepare()
        asm.emit(b"\x48\x83\x3c\x24\x00", "cmp qword [rsp], 0")
        asm.jump(b"\x0f\x84", "enter_shared_miss", "je enter_shared_miss")
    asm.emit(b"\x64\x48\x8b\x0c\x25" + i32(facts.slot), "mov rcx, fs:[slot]")
    asm.emit(b"\x48\xb8" + u64(facts.gate), "mov rax, &gate")
    asm.emit(b"\x48\x85\x08", "test [rax], rcx")
    asm.jump(b"\x0f\x84", "enter_first", "jz enter_first")
    asm.label("enter_block")
    asm.emit(b"\xbe\x01\x00\x00\x00", "mov esi, 1")
    asm.emit(b"\x48\x0f\xc1\x71\x08", "xadd [rcx+BLOCK_TOP], rsi")
    asm.label("enter_reserved")
    asm.emit(b"\x48\x81\xfe" + i32(layout.maxactive), "cmp rsi, maxactive")
    asm.jump(b"\x0f\x83", "enter_full", "jae enter_full")
    asm.emit(b"\x48\xc1\xe6\x05", "shl rsi, 5")
    asm.emit(*argument)
    asm.emit(b"\x48\x89\x44\x31\x50", "mov [rcx+rsi+0x50], rax")
    if facts.clock:
        asm.jump(b"\xe8", "now", "call now")
    else:
        asm.emit(b"\x0f\x31", "rdtsc")
        asm.emit(b"\x48\xc1\xe2\x20\x48\x09\xd0", "shl rdx, 32; or rax, rdx")
    asm.emit(b"\x48\x89\x44\x31\x48", "mov [rcx+rsi+0x48], rax")
    asm.emit(*site)
    asm.emit(b"\x48\x89\x44\x31\x40", "mov [rcx+rsi+0x40], rax")
    if prepare:
        asm.emit(b"\x48\x8b\x34\x24\x48\x89\x30", "mov rsi, [rsp]; mov [rax], rsi")
    asm.label("enter_done")
    if prepare:
        asm.emit(b"\x5e", "pop rsi")
    asm.emit(b"\x5e\x5a\x59\x58", "pop rsi; pop rdx; pop rcx; pop rax")
    asm.emit(b"\x04\x7f\x9e\x58\xc3", "add al, 0x7f; sahf; pop rax; ret")
    asm.label("enter_first")
    asm.jump(b"\xe8", "acquire", "call acquire")
    asm.emit(b"\x48\x85\xc9", "test rcx, rcx")
    asm.jump(b"\x0f\x85", "enter_block", "jnz enter_block")
    asm.label("enter_shared_miss")
    asm.emit(b"\x48\xb9" + u64(facts.shared), "mov rcx, shared block")
    asm.emit(*argument)
    asm.emit(b"\xf0\x48\xff\x44\x01\x30", "lock inc qword [rcx+rax+RECORD_MISSED]")
    asm.label("enter_shared_missed")
    asm.jump(b"\xe9", "enter_done", "jmp enter_done")
    _enter_full(asm, layout, 0x30 + pushed, site)


def _stack_at(opcode: bytes, offset: int) -> tuple[bytes, str]:
    """Return ``mov`` (8b) or ``lea`` (8d) of rax from the stack, and its text."""
    name = "mov" if opcode == b"\x8b" else "lea"
    return b"\x48" + opcode + b"\x84\x24" + i32(offset), f"{name} rax, [rsp+{offset:#x}]"


def _enter_full(asm: Assembler, layout: BankLayout, argument_at: int, site: tuple[bytes, str]) -> None:
    """Emit the overflow path of ``enter``: drop instances that cannot be alive, try once more, else a miss.

    Two live functions never have the same stack pointer at their entry, so an instance with ours is a leftover of a
    longjmp or an exception, unless another probe at this entry has just pushed it: those are on the top, and none has
    our record. Nothing is ever concluded from other stack pointers: they may lie on other stacks. A zero is an
    instance that code below this signal handler has reserved and not filled yet: then nothing may move.
    """
    asm.label("enter_full")
    asm.emit(b"\x48\xff\x49\x08", "dec qword [rcx+BLOCK_TOP]")
    asm.label("enter_unreserved")
    asm.emit(b"\x83\x79\x10\x00", "cmp dword [rcx+BLOCK_PURGING], 0")
    asm.jump(b"\x0f\x85", "enter_missed", "jne enter_missed")
    asm.emit(b"\xff\x41\x10", "inc dword [rcx+BLOCK_PURGING]")
    asm.label("enter_purging")
    asm.emit(*site)
    asm.emit(b"\x57\x41\x50\x41\x51", "push rdi; push r8; push r9")
    asm.emit(b"\x4c\x8b\x8c\x24" + i32(argument_at + 24), f"mov r9, [rsp+{argument_at + 24:#x}]")
    asm.emit(b"\x48\x8d\x71\x40\x48\x89\xf7", "lea rsi, [rcx+0x40]; mov rdi, rsi")
    asm.emit(b"\xba" + i32(layout.maxactive), "mov edx, maxactive")
    asm.label("purge_check")
    asm.emit(b"\x48\x83\x3e\x00", "cmp qword [rsi], 0")
    asm.jump(b"\x0f\x84", "purge_not", "je purge_not")
    asm.emit(b"\x48\x83\xc6\x20", "add rsi, 32")
    asm.emit(b"\xff\xca", "dec edx")
    asm.jump(b"\x0f\x85", "purge_check", "jnz purge_check")
    asm.label("purge_top")
    asm.emit(b"\x48\x39\x46\xe0", "cmp [rsi-32], rax")
    asm.jump(b"\x0f\x85", "purge_begin", "jne purge_begin")
    asm.emit(b"\x4c\x39\x4e\xf0", "cmp [rsi-16], r9")
    asm.jump(b"\x0f\x84", "purge_begin", "je purge_begin")
    asm.emit(b"\x48\x83\xee\x20", "sub rsi, 32")
    asm.emit(b"\x48\x39\xfe", "cmp rsi, rdi")
    asm.jump(b"\x0f\x87", "purge_top", "ja purge_top")
    asm.label("purge_begin")
    asm.emit(b"\x49\x89\xf1", "mov r9, rsi")
    asm.emit(b"\x48\x89\xfe", "mov rsi, rdi")
    asm.emit(b"\xba" + i32(layout.maxactive), "mov edx, maxactive")
    asm.label("purge_next")
    asm.emit(b"\x4c\x8b\x06", "mov r8, [rsi]")
    asm.emit(b"\x49\x83\xf8\x01", "cmp r8, TOMBSTONE")
    asm.jump(b"\x0f\x86", "purge_skip", "jbe purge_skip")
    asm.emit(b"\x4c\x39\xce", "cmp rsi, r9")
    asm.jump(b"\x0f\x83", "purge_keep", "jae purge_keep")
    asm.emit(b"\x49\x39\xc0", "cmp r8, rax")
    asm.jump(b"\x0f\x84", "purge_skip", "je purge_skip")
    asm.label("purge_keep")
    asm.emit(b"\x4c\x89\x07", "mov [rdi], r8")
    asm.emit(b"\x4c\x8b\x46\x08\x4c\x89\x47\x08", "mov r8, [rsi+8]; mov [rdi+8], r8")
    asm.emit(b"\x4c\x8b\x46\x10\x4c\x89\x47\x10", "mov r8, [rsi+16]; mov [rdi+16], r8")
    asm.emit(b"\x48\x83\xc7\x20", "add rdi, 32")
    asm.label("purge_skip")
    asm.emit(b"\x48\x83\xc6\x20", "add rsi, 32")
    asm.emit(b"\xff\xca", "dec edx")
    asm.jump(b"\x0f\x85", "purge_next", "jnz purge_next")
    asm.emit(b"\x48\x89\xfa", "mov rdx, rdi")
    asm.label("purge_zero")
    asm.emit(b"\x48\x39\xf7", "cmp rdi, rsi")
    asm.jump(b"\x0f\x83", "purge_end", "jae purge_end")
    asm.emit(b"\x48\xc7\x07\x00\x00\x00\x00", "mov qword [rdi], 0")
    asm.emit(b"\x48\x83\xc7\x20", "add rdi, 32")
    asm.jump(b"\xe9", "purge_zero", "jmp purge_zero")
    asm.label("purge_end")
    asm.emit(b"\x48\x29\xca\x48\x83\xea\x40\x48\xc1\xea\x05", "sub rdx, rcx; sub rdx, 0x40; shr rdx, 5")
    asm.emit(b"\x48\x89\x51\x08", "mov [rcx+BLOCK_TOP], rdx")
    asm.emit(b"\x41\x59\x41\x58\x5f", "pop r9; pop r8; pop rdi")
    asm.emit(b"\xff\x49\x10", "dec dword [rcx+BLOCK_PURGING]")
    asm.label("enter_purged")
    asm.emit(b"\x48\x81\xfa" + i32(layout.maxactive), "cmp rdx, maxactive")
    asm.jump(b"\x0f\x82", "enter_block", "jb enter_block")
    asm.jump(b"\xe9", "enter_missed", "jmp enter_missed")
    asm.label("purge_not")  # nothing has been moved
    asm.emit(b"\x41\x59\x41\x58\x5f", "pop r9; pop r8; pop rdi")
    asm.emit(b"\xff\x49\x10", "dec dword [rcx+BLOCK_PURGING]")
    asm.label("enter_missed")
    asm.emit(*_stack_at(b"\x8b", argument_at))
    asm.emit(b"\x48\xff\x44\x01\x30", "inc qword [rcx+rax+RECORD_MISSED]")
    asm.label("enter_missed_done")
    asm.jump(b"\xe9", "enter_done", "jmp enter_done")


def _leave(asm: Assembler, facts: RoutineFacts, name: str) -> None:
    """Emit ``leave``: take the instance with our stack pointer and record its duration.

    The tail form only counts the exit: there is no return yet. Argument: offset of the timing record. The copies by
    which the signal view finishes what was begun are entered in the middle; they return with the registers as they are.
    """
    tail = name.endswith("tail")
    asm.label(name)
    asm.emit(b"\x50\x9f\x0f\x90\xc0\x50", "push rax; lahf; seto al; push rax")
    asm.emit(b"\x51\x52\x56\x57", "push rcx; push rdx; push rsi; push rdi")
    if facts.clock:
        asm.jump(b"\xe8", "now", "call now")
        asm.emit(b"\x48\x89\xc2", "mov rdx, rax")
    else:
        # unordered like the one at the entry: both mark when they are issued, so what is in flight cancels out
        asm.emit(b"\x0f\x31", "rdtsc")
        asm.emit(b"\x48\xc1\xe2\x20\x48\x09\xc2", "shl rdx, 32; or rdx, rax")
    asm.emit(b"\x64\x48\x8b\x3c\x25" + i32(facts.slot), "mov rdi, fs:[slot]")
    asm.emit(b"\x48\xb8" + u64(facts.gate), "mov rax, &gate")
    asm.emit(b"\x48\x85\x38", "test [rax], rdi")
    asm.jump(b"\x0f\x84", name + "_stranger", "jz stranger")
    asm.emit(b"\x48\x8d\x84\x24\xc0\x00\x00\x00", "lea rax, [rsp+0xc0]")
    asm.emit(b"\x48\x8b\x4c\x24\x38", "mov rcx, [rsp+0x38]")
    asm.emit(b"\x48\x8b\x77\x08", "mov rsi, [rdi+BLOCK_TOP]")
    asm.emit(b"\x48\x83\xee\x01", "sub rsi, 1")
    asm.jump(b"\x0f\x88", name + "_unmatched", "js unmatched")
    asm.emit(b"\x48\xc1\xe6\x05", "shl rsi, 5")
    asm.emit(b"\x48\x39\x44\x37\x40", "cmp [rdi+rsi+0x40], rax")
    asm.jump(b"\x0f\x85", name + "_search", "jne search")
    asm.emit(b"\x48\x39\x4c\x37\x50", "cmp [rdi+rsi+0x50], rcx")
    asm.jump(b"\x0f\x85", name + "_search", "jne search")
    asm.emit(b"\x48\x2b\x54\x37\x48", "sub rdx, [rdi+rsi+0x48]")
    asm.emit(b"\x48\xc7\x44\x37\x40\x00\x00\x00\x00", "mov qword [rdi+rsi+0x40], 0")
    asm.label(name + "_taken")
    asm.emit(b"\x48\xff\x4f\x08", "dec qword [rdi+BLOCK_TOP]")
    asm.label(name + "_found")
    asm.emit(b"\x48\x01\xcf", "add rdi, rcx")
    if tail:
        asm.emit(b"\x48\xff\x47\x20", "inc qword [rdi+RECORD_TAIL]")
    else:
        _record_duration(asm, name)
    asm.label(name + "_done")
    if name.startswith("finish"):
        asm.emit(b"\xc3" + b"\xcc" * 9, "; ".join(["ret", *["int3"] * 9]))
    else:
        asm.emit(b"\x5f\x5e\x5a\x59\x58", "pop rdi; pop rsi; pop rdx; pop rcx; pop rax")
        asm.emit(b"\x04\x7f\x9e\x58\xc3", "add al, 0x7f; sahf; pop rax; ret")
    _leave_search(asm, name)
    if not tail:
        _new_extremes(asm, name)
    asm.label(name + "_unmatched")
    asm.emit(b"\x48\xff\x44\x0f\x28", "inc qword [rdi+rcx+RECORD_UNMATCHED]")
    asm.label(name + "_unmatched_done")
    asm.jump(b"\xe9", name + "_done", "jmp done")
    asm.label(name + "_stranger")
    # a fork child times nothing (its entries are counted as missed); a thread without a block entered before us
    asm.emit(b"\x48\x83\x38\x00", "cmp qword [rax], 0")
    asm.jump(b"\x0f\x84", name + "_done", "je done")
    asm.emit(b"\x48\x8b\x4c\x24\x38", "mov rcx, [rsp+0x38]")
    asm.emit(b"\x48\xbf" + u64(facts.shared), "mov rdi, shared block")
    asm.emit(b"\xf0\x48\xff\x44\x0f\x28", "lock inc qword [rdi+rcx+RECORD_UNMATCHED]")
    asm.label(name + "_stranger_done")
    asm.jump(b"\xe9", name + "_done", "jmp done")


def _record_duration(asm: Assembler, name: str) -> None:
    """Emit: rdx = duration in ticks, rdi = record. A negative duration (skewed TSCs) counts as 0."""
    asm.emit(b"\x48\x85\xd2", "test rdx, rdx")
    asm.jump(b"\x0f\x88", name + "_negative", "js negative")
    asm.label(name + "_duration")
    asm.emit(b"\x48\xff\x47\x18", "inc qword [rdi+RECORD_COUNT]")
    asm.emit(b"\x48\x01\x17", "add [rdi+RECORD_SUM], rdx")
    asm.emit(b"\x48\x3b\x57\x10", "cmp rdx, [rdi+RECORD_MAX]")
    asm.jump(b"\x0f\x87", name + "_newmax", "ja newmax")
    asm.label(name + "_maxdone")
    asm.emit(b"\x48\x89\xd1\x48\xf7\xd1", "mov rcx, rdx; not rcx")
    asm.emit(b"\x48\x3b\x4f\x08", "cmp rcx, [rdi+RECORD_NOT_MIN]")
    asm.jump(b"\x0f\x87", name + "_newmin", "ja newmin")
    asm.label(name + "_mindone")
    # log-linear bucket: 64 per power of two; exact below 128
    asm.emit(b"\x48\x89\xd0\x48\x83\xc8\x40", "mov rax, rdx; or rax, 64")
    asm.emit(b"\x48\x0f\xbd\xc8\x83\xe9\x06", "bsr rcx, rax; sub ecx, 6")
    asm.emit(b"\x48\xd3\xea\xc1\xe1\x06\x48\x01\xca", "shr rdx, cl; shl ecx, 6; add rdx, rcx")
    asm.emit(b"\xb8" + i32(BUCKETS - 1), "mov eax, BUCKETS-1")
    asm.emit(b"\x48\x39\xc2\x48\x0f\x47\xd0", "cmp rdx, rax; cmova rdx, rax")
    asm.emit(b"\x48\xff\x44\xd7\x40", "inc qword [rdi+rdx*8+RECORD_BUCKETS]")


def _new_extremes(asm: Assembler, name: str) -> None:
    """Emit the rare paths of ``leave``: a new maximum or minimum, safe against handlers on the same thread."""
    asm.label(name + "_negative")
    asm.emit(b"\x31\xd2", "xor edx, edx")
    asm.jump(b"\xe9", name + "_duration", "jmp duration")
    asm.label(name + "_newmax")
    asm.emit(b"\x48\x8b\x47\x10", "mov rax, [rdi+RECORD_MAX]")
    asm.emit(b"\x48\x39\xd0", "cmp rax, rdx")
    asm.jump(b"\x0f\x83", name + "_maxdone", "jae maxdone")
    asm.emit(b"\x48\x0f\xb1\x57\x10", "cmpxchg [rdi+RECORD_MAX], rdx")
    asm.jump(b"\x0f\x85", name + "_newmax", "jne newmax")
    asm.jump(b"\xe9", name + "_maxdone", "jmp maxdone")
    asm.label(name + "_newmin")
    asm.emit(b"\x48\x8b\x47\x08", "mov rax, [rdi+RECORD_NOT_MIN]")
    asm.emit(b"\x48\x39\xc8", "cmp rax, rcx")
    asm.jump(b"\x0f\x83", name + "_mindone", "jae mindone")
    asm.emit(b"\x48\x0f\xb1\x4f\x08", "cmpxchg [rdi+RECORD_NOT_MIN], rcx")
    asm.jump(b"\x0f\x85", name + "_newmin", "jne newmin")
    asm.jump(b"\xe9", name + "_mindone", "jmp mindone")


def _leave_search(asm: Assembler, name: str) -> None:
    """Emit: look below the top for the instance (rax = stack pointer, rcx = record), then drop tombstones.

    Only tombstones are dropped, never zeros: a zero may be an instance that code below this signal handler has
    reserved and not filled yet.
    """
    asm.label(name + "_search")
    asm.emit(b"\x48\x39\x44\x37\x40", "cmp [rdi+rsi+0x40], rax")
    asm.jump(b"\x0f\x85", name + "_below", "jne below")
    asm.emit(b"\x48\x39\x4c\x37\x50", "cmp [rdi+rsi+0x50], rcx")
    asm.jump(b"\x0f\x84", name + "_hit", "je hit")
    asm.label(name + "_below")
    asm.emit(b"\x48\x83\xee\x20", "sub rsi, 32")
    asm.jump(b"\x0f\x89", name + "_search", "jns search")
    asm.jump(b"\xe9", name + "_unmatched", "jmp unmatched")
    asm.label(name + "_hit")
    asm.emit(b"\x48\x2b\x54\x37\x48", "sub rdx, [rdi+rsi+0x48]")
    asm.emit(b"\x48\xc7\x44\x37\x40" + i32(_TOMBSTONE), "mov qword [rdi+rsi+0x40], TOMBSTONE")
    asm.label(name + "_removed")
    asm.label(name + "_shrink")
    asm.emit(b"\x48\x8b\x77\x08", "mov rsi, [rdi+BLOCK_TOP]")
    asm.emit(b"\x48\x83\xee\x01", "sub rsi, 1")
    asm.jump(b"\x0f\x88", name + "_found", "js found")
    asm.emit(b"\x48\xc1\xe6\x05", "shl rsi, 5")
    asm.emit(b"\x48\x83\x7c\x37\x40\x01", "cmp qword [rdi+rsi+0x40], TOMBSTONE")
    asm.jump(b"\x0f\x85", name + "_found", "jne found")
    asm.emit(b"\x48\xc7\x44\x37\x40\x00\x00\x00\x00", "mov qword [rdi+rsi+0x40], 0")
    asm.emit(b"\x48\xff\x4f\x08", "dec qword [rdi+BLOCK_TOP]")
    asm.jump(b"\xe9", name + "_shrink", "jmp shrink")
