"""Where threads of the program wait for Python in the controller: shared memory, and the code that waits.

Each thread has a place of its own, by its number. It leaves its registers there, takes the next ticket, rings, and
sleeps on the place's *lock* until the answer to its ticket is there, or its time is up.

The locks are robust futexes that a thread of the controller holds for as long as it serves: each is on that thread's
robust list. When it ends, by whatever cause, the kernel takes its number out of all of them and wakes whoever sleeps.
So the program's threads go on at once, and none waits again. A lock's bit 31 (``FUTEX_WAITERS``) is set by who is
about to sleep and cleared by who has answered; what decides is the ticket, so a late answer to a hit that has given up
meets no other hit. Nothing here is trusted by the controller but numbers.
"""

from dataclasses import replace
from functools import cache

from anyprobe.core.code import Input, InputKind, NativeCode
from anyprobe.isa.assemble import Assembler, i32
from anyprobe.isa.registers import NUMBERS

BELL = 0
"""Head: rung with each hit; the controller sleeps on it."""
TIMEOUTS, ABSENT = 64, 72
"""Head: hits that were not answered in time, and those that found nobody to answer."""
CLOSED = 80
"""Head: whether the program filters its system calls by now, so that none may be made."""
THREADS = 1024
TICKETS = 4096
"""Tickets of all threads, side by side, so that those with a new one are found at a glance."""
PLACES = TICKETS + (8 * (THREADS + 1) + 4095 & ~4095)
PLACE_BYTES = 512
SIZE = PLACES + (THREADS + 1) * PLACE_BYTES + 4095 & ~4095

LOCK, ANSWERED, NODE, CHANGED, CALLBACK, TID, ASKED, REPLY = 0, 8, 16, 24, 56, 60, 64, 288
"""Place: the lock; the ticket that was answered; an element of the robust list; whether the reply is to be taken over;
which callback is wanted, by which task; its words; the reply, as many words."""
WORDS_LIMIT = (PLACE_BYTES - REPLY) // 8
TID_MASK = 0x3FFFFFFF
WAITERS = 1 << 31
REGISTERS = tuple(NUMBERS)
"""The words: general purpose registers first."""
_FIRST = 2
_SYS_GETTID, _SYS_FUTEX, _SYS_CLOCK_GETTIME = 186, 202, 228
_BILLION = 1_000_000_000
_CLOBBERS = frozenset(
    {"rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "flags"}
)
_STACK = 40


def words(*, context: tuple[str, ...], writes: bool) -> tuple[Input, ...]:
    """Return what the code wants to be told: the memory, the thread's number, registers, attributes of ``ctx``."""
    registers = tuple(Input(InputKind.REGISTER, name, written=writes and name != "rsp") for name in REGISTERS)
    others = tuple(Input(InputKind.CONTEXT, name) for name in context)
    return (Input(InputKind.STORAGE), Input(InputKind.THREAD), *registers, *others)


@cache
def waiting_code(callback: int, nanoseconds: int, *, context: tuple[str, ...] = (), writes: bool = False) -> NativeCode:
    """Return the code that has a hit wait for a callback, at most for so long."""
    inputs = words(context=context, writes=writes)
    asm = Assembler()
    _Waiting(asm, callback, nanoseconds, len(inputs) - _FIRST, takes_over=writes).emit()
    return NativeCode(asm.finish(0), inputs, _CLOBBERS, stack=_STACK, steps=len(asm))


def conditional(condition: NativeCode, waiting: NativeCode) -> NativeCode:
    """Return code that has a hit wait only if a condition leaves something else than 0.

    The condition's words are behind the others, and its storages behind the one where hits wait.
    """
    asm = Assembler()
    asm.emit(b"\x57", "push rdi")
    asm.emit(b"\x48\x81\xc7" + i32(8 * len(waiting.inputs)), "add rdi, bytes of the other words")
    asm.jump(b"\xe8", "condition", "call condition")
    asm.emit(b"\x5f", "pop rdi")
    asm.emit(b"\x48\x85\xc0", "test rax, rax")
    asm.jump(b"\x0f\x85", "waiting", "jnz waiting")
    asm.emit(b"\xc3", "ret")
    asm.label("waiting")
    asm.emit(waiting.code, "the code that waits")
    asm.label("condition")
    asm.emit(condition.code, "the condition")
    moved = (
        replace(each, index=each.index + 1) if each.kind is InputKind.STORAGE else each for each in condition.inputs
    )
    clobbers = condition.clobbers | waiting.clobbers | {"rdi", "rax", "flags"}
    stack, steps = max(waiting.stack, condition.stack + 16), waiting.steps + condition.steps
    return NativeCode(asm.finish(0), (*waiting.inputs, *moved), clobbers, stack, steps, vectors=condition.vectors)


class _Waiting:
    """Writes the code. r12 = the place, r13 = the memory, r14 = the words, r15 = the ticket."""

    def __init__(self, asm: Assembler, callback: int, nanoseconds: int, count: int, *, takes_over: bool) -> None:
        self._asm, self._callback, self._nanoseconds = asm, callback, nanoseconds
        self._count, self._takes_over = count, takes_over

    def emit(self) -> None:
        self._find_place()
        self._ask()
        self._wait()
        self._leave()

    def _find_place(self) -> None:
        asm = self._asm
        asm.emit(b"\x49\x89\xfe\x4d\x8b\x2e", "mov r14, rdi; mov r13, [r14]")
        asm.emit(b"\x49\x8b\x76\x08", "mov rsi, [r14+8]")
        asm.emit(b"\x48\x8d\x46\xff", "lea rax, [rsi-1]")
        asm.emit(b"\x48\x3d" + i32(THREADS), "cmp rax, THREADS")
        asm.jump(b"\x0f\x83", "absent", "jae absent")
        asm.emit(b"\x41\x83\x7d" + bytes([CLOSED, 0]), "cmp dword [r13+CLOSED], 0")
        asm.jump(b"\x0f\x85", "absent", "jne absent")
        asm.emit(b"\x49\x89\xf4\x49\xc1\xe4\x09", "mov r12, rsi; shl r12, 9")
        asm.emit(b"\x4f\x8d\xa4\x2c" + i32(PLACES), "lea r12, [r12+r13+PLACES]")
        asm.emit(b"\x41\xf7\x04\x24" + i32(TID_MASK), "test dword [r12], TID_MASK")
        asm.jump(b"\x0f\x84", "absent", "jz absent")

    def _ask(self) -> None:
        asm = self._asm
        asm.emit(b"\x48\x83\xec\x18", "sub rsp, 24")
        asm.emit(
            b"\x49\x8d\xb4\xf5" + i32(TICKETS) + b"\x48\x89\x74\x24\x10",
            "lea rsi, [r13+rsi*8+TICKETS]; mov [rsp+16], rsi",
        )
        asm.emit(b"\xb8" + i32(_SYS_GETTID) + b"\x0f\x05", "mov eax, GETTID; syscall")
        asm.emit(b"\x41\x89\x44\x24" + bytes([TID]), "mov [r12+TID], eax")
        asm.emit(b"\x41\xc7\x44\x24" + bytes([CALLBACK]) + i32(self._callback), "mov dword [r12+CALLBACK], callback")
        asm.emit(b"\xb9" + i32(self._count), "mov ecx, words")
        asm.label("give")
        asm.emit(b"\x49\x8b\x44\xce" + bytes([8 * _FIRST - 8]), "mov rax, [r14+rcx*8+FIRST-8]")
        asm.emit(b"\x49\x89\x44\xcc" + bytes([ASKED - 8]), "mov [r12+rcx*8+ASKED-8], rax")
        asm.emit(b"\xff\xc9", "dec ecx")
        asm.jump(b"\x75", "give", "jnz give")
        seconds, rest = divmod(self._nanoseconds, _BILLION)
        asm.emit(b"\xbf\x01\x00\x00\x00\x48\x89\xe6", "mov edi, CLOCK_MONOTONIC; mov rsi, rsp")
        asm.emit(b"\xb8" + i32(_SYS_CLOCK_GETTIME) + b"\x0f\x05", "mov eax, CLOCK_GETTIME; syscall")
        asm.emit(b"\x48\x81\x04\x24" + i32(seconds), "add qword [rsp], seconds")
        asm.emit(b"\x48\x8b\x44\x24\x08\x48\x05" + i32(rest), "mov rax, [rsp+8]; add rax, nanoseconds")
        asm.emit(b"\x48\x3d" + i32(_BILLION), "cmp rax, 1000000000")
        asm.jump(b"\x72", "deadline", "jb deadline")
        asm.emit(b"\x48\x2d" + i32(_BILLION) + b"\x48\xff\x04\x24", "sub rax, 1000000000; inc qword [rsp]")
        asm.label("deadline")
        asm.emit(b"\x48\x89\x44\x24\x08", "mov [rsp+8], rax")
        asm.emit(b"\x48\x8b\x74\x24\x10\x4c\x8b\x3e", "mov rsi, [rsp+16]; mov r15, [rsi]")
        asm.emit(b"\x49\xff\xc7\x4c\x89\x3e", "inc r15; mov [rsi], r15")
        asm.emit(b"\xf0\x41\xff\x45\x00", "lock inc dword [r13+BELL]")
        asm.emit(b"\x4c\x89\xef\xbe\x01\x00\x00\x00\x89\xf2", "mov rdi, r13; mov esi, FUTEX_WAKE; mov edx, esi")
        asm.emit(b"\xb8" + i32(_SYS_FUTEX) + b"\x0f\x05", "mov eax, FUTEX; syscall")

    def _wait(self) -> None:
        asm = self._asm
        asm.label("look")
        # first the bit, then the look at the answer: who answers writes the answer first, then clears the bit
        asm.emit(b"\xf0\x41\x0f\xba\x2c\x24\x1f", "lock bts dword [r12], 31")
        asm.emit(b"\x4d\x39\x7c\x24" + bytes([ANSWERED]), "cmp [r12+ANSWERED], r15")
        asm.jump(b"\x0f\x84", "answered", "je answered")
        asm.emit(b"\x41\x8b\x14\x24", "mov edx, [r12]")
        asm.emit(b"\xf7\xc2" + i32(TID_MASK), "test edx, TID_MASK")
        asm.jump(b"\x0f\x84", "released", "jz released")
        asm.emit(b"\x85\xd2", "test edx, edx")
        asm.jump(b"\x79", "look", "jns look")
        asm.emit(b"\x4c\x89\xe7\xbe\x09\x00\x00\x00", "mov rdi, r12; mov esi, FUTEX_WAIT_BITSET")
        asm.emit(b"\x49\x89\xe2\x45\x31\xc0\x41\x83\xc9\xff", "mov r10, rsp; xor r8d, r8d; or r9d, -1")
        asm.emit(b"\xb8" + i32(_SYS_FUTEX) + b"\x0f\x05", "mov eax, FUTEX; syscall")
        asm.emit(b"\x48\x85\xc0", "test rax, rax")
        asm.jump(b"\x74", "look", "jz look")
        asm.emit(b"\x48\x83\xf8\xf5", "cmp rax, -EAGAIN")
        asm.jump(b"\x74", "look", "je look")
        asm.emit(b"\x48\x83\xf8\xfc", "cmp rax, -EINTR")
        asm.jump(b"\x74", "look", "je look")
        asm.emit(b"\x4d\x39\x7c\x24" + bytes([ANSWERED]), "cmp [r12+ANSWERED], r15")
        asm.jump(b"\x74", "answered", "je answered")
        asm.emit(b"\xf0\x41\x0f\xba\x34\x24\x1f", "lock btr dword [r12], 31")
        asm.emit(b"\xf0\x49\xff\x45" + bytes([TIMEOUTS]), "lock inc qword [r13+TIMEOUTS]")
        asm.jump(b"\xeb", "leave", "jmp leave")

    def _leave(self) -> None:
        asm = self._asm
        asm.label("answered")
        asm.emit(b"\xf0\x41\x0f\xba\x34\x24\x1f", "lock btr dword [r12], 31")
        if self._takes_over:
            asm.emit(b"\x49\x83\x7c\x24" + bytes([CHANGED]) + b"\x00", "cmp qword [r12+CHANGED], 0")
            asm.jump(b"\x74", "leave", "je leave")
            asm.emit(b"\xb9" + i32(self._count), "mov ecx, words")
            asm.label("take")
            asm.emit(b"\x49\x8b\x84\xcc" + i32(REPLY - 8), "mov rax, [r12+rcx*8+REPLY-8]")
            asm.emit(b"\x49\x89\x44\xce" + bytes([8 * _FIRST - 8]), "mov [r14+rcx*8+FIRST-8], rax")
            asm.emit(b"\xff\xc9", "dec ecx")
            asm.jump(b"\x75", "take", "jnz take")
        asm.label("leave")
        asm.emit(b"\x48\x83\xc4\x18\xc3", "add rsp, 24; ret")
        asm.label("released")
        asm.emit(b"\x48\x83\xc4\x18", "add rsp, 24")
        asm.label("absent")
        asm.emit(b"\xf0\x49\xff\x45" + bytes([ABSENT]) + b"\xc3", "lock inc qword [r13+ABSENT]; ret")
