"""Where threads of the program wait for Python in the controller: shared memory, and the code that waits.

Each thread has a place of its own, by its number, or takes one that is free (``Room.taken``: where fork children wait,
too, whose threads have no numbers). It leaves its registers there, takes the next ticket, rings, and sleeps on the
place's *lock* until the answer to its ticket is there, or its time is up.

The locks are robust futexes that a thread of the controller holds for as long as it serves: each is on that thread's
robust list. When it ends, by whatever cause, the kernel takes its number out of all of them and wakes the threads that
sleep. So the program's threads go on at once, and none waits again. A lock's bit 31 (``FUTEX_WAITERS``) is set by who
is about to sleep and cleared by who has answered; what decides is the ticket, so a late answer to a hit that has given
up meets no other hit. Nothing here is trusted by the controller but numbers.

A place that is taken has its holder's token, a number that no other holder has. A thread that is killed, or whose
process executes meanwhile, leaves its token there: the controller frees the place when the token has stood for longer
than a holder waits. A holder that was merely stopped for so long gives back only what still has its own token.
"""

import errno
import time
from dataclasses import dataclass, replace
from functools import cache, lru_cache

from anyprobe.core.code import Input, InputKind, NativeCode
from anyprobe.data.layouts import layout as at
from anyprobe.isa.assemble import Assembler
from anyprobe.isa.registers import NUMBERS

BELL = 0
"""Head: rung with each hit; the controller sleeps on it."""
TIMEOUTS, ABSENT = 64, 72
"""Head: hits that were not answered in time, and those that found no controller to answer."""
CLOSED = 80
"""Head: whether the program filters its system calls by now, so that none may be made."""
TURN = 88
"""Head: how often a place was looked for, where places are taken."""
LATE = 96
"""Head: whether a hit was not answered in time since the controller was last awake, where others then do not wait."""
THREADS = 1024
TICKETS = 4096
"""Tickets of all threads, side by side, so that those with a new one are found at a glance."""
PLACES = TICKETS + (8 * (THREADS + 1) + 4095 & ~4095)
PLACE_BYTES = 512


@dataclass(frozen=True, slots=True)
class Room:
    """How many places the memory has, and whose they are."""

    places: int = THREADS + 1
    taken: bool = False
    """Whether a thread takes any that is free, a power of two of them; else each has the one with its number."""
    gives_up: bool = False
    """Whether no thread waits any more once one has waited in vain, until the controller is awake again."""

    @property
    def size(self) -> int:
        """Bytes of the memory."""
        return PLACES + self.places * PLACE_BYTES + 4095 & ~4095


NUMBERED = Room()
SIZE = NUMBERED.size

LOCK, ANSWERED, NODE, CHANGED, HOLDER, THREAD, BEGAN, CALLBACK, TID, ASKED, REPLY, RATE, OPEN = (
    0, 8, 16, 24, 32, 40, 48, 56, 60, 64, 240, 416, 424,
)  # fmt: skip
"""Place: the lock; the ticket that was answered; an element of the robust list; whether the reply is to be taken over;
its holder's token, 0 if no thread has taken it; whose blocks have the thread's calls, and since when it waits, in
nanoseconds of CLOCK_MONOTONIC; which callback is wanted, by which task; its words; the reply, as many words; how many
ticks a nanosecond has, in parts of which there are ``1 << RATE_BITS``; and in how many places the thread has calls open
that are timed, followed by these: the address of the first call's instance, and how many there are."""
WORDS_LIMIT = (REPLY - ASKED) // 8
RATE_BITS = 32
OPEN_LIMIT = (PLACE_BYTES - OPEN - 8) // 16
"""In so many places calls may be open: each bank has one for a thread."""
TID_MASK = 0x3FFFFFFF
WAITERS = 1 << 31
REGISTERS = tuple(NUMBERS)
"""The words: general purpose registers first."""
_FIRST = 2
_SYS_GETTID, _SYS_FUTEX, _SYS_CLOCK_GETTIME = 186, 202, 228
CALLS = frozenset({_SYS_GETTID, _SYS_FUTEX, _SYS_CLOCK_GETTIME})
"""The system calls of a thread that waits."""
_FUTEX_WAKE, _FUTEX_WAIT_BITSET = 1, 9
_BILLION = 1_000_000_000
_CLOBBERS = frozenset(
    {"rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "flags"}
)
_FRAME = 32
"""Bytes of the stack: when to give up, where the place's tickets are, the holder's token."""
_STACK = 48


def words(*, context: tuple[str, ...], writes: bool, goes: bool = False) -> tuple[Input, ...]:
    """Return what the code wants to be told: the memory, the thread's number, registers, attributes of ``ctx``.

    ``goes``: the last word, 0 at first, is where the thread goes on if the reply says so.
    """
    registers = tuple(Input(InputKind.REGISTER, name, written=writes and name != "rsp") for name in REGISTERS)
    others = tuple(Input(InputKind.CONTEXT, name) for name in context)
    last = (Input(InputKind.REGISTER, "rip", written=True),) if goes else ()
    return (Input(InputKind.STORAGE), Input(InputKind.THREAD), *registers, *others, *last)


@cache
def waiting_code(
    callback: int, nanoseconds: int, *, context: tuple[str, ...] = (), writes: bool = False, room: Room = NUMBERED,
    goes: bool = False,
) -> NativeCode:  # fmt: skip
    """Return the code that has a hit wait for a callback, at most for so long; ``goes``: as ``words`` says."""
    inputs = words(context=context, writes=writes, goes=goes)
    asm = Assembler()
    _Waiting(asm, callback, nanoseconds, len(inputs) - _FIRST, takes_over=writes or goes, room=room).emit()
    return NativeCode(asm.finish(0), inputs, _CLOBBERS, stack=_STACK, steps=len(asm))


@lru_cache(64)
def conditional(condition: NativeCode, waiting: NativeCode) -> NativeCode:
    """Return code that has a hit wait only if a condition leaves something else than 0.

    The condition's words are after the others, and its storages after the one where hits wait.
    """
    asm = Assembler()
    asm.code(
        """
            push rdi; add rdi, inputs; call condition; pop rdi
            test rax, rax; jnz waiting
            ret
        waiting:
        """,
        inputs=8 * len(waiting.inputs),
    )
    asm.raw(waiting.code, "the code that waits")
    asm.label("condition")
    asm.raw(condition.code, "the condition")
    moved = (
        replace(each, index=each.index + 1) if each.kind is InputKind.STORAGE else each for each in condition.inputs
    )
    only_if = tuple(
        each._replace(number=each.number._replace(word=each.number.word + len(waiting.inputs)))
        for each in condition.only_if
    )
    clobbers = condition.clobbers | waiting.clobbers | {"rdi", "rax", "flags"}
    stack, steps = max(waiting.stack, condition.stack + 16), waiting.steps + condition.steps
    inputs = (*waiting.inputs, *moved)
    return NativeCode(asm.finish(0), inputs, clobbers, stack, steps, vectors=condition.vectors, only_if=only_if)


class _Waiting:
    """Writes the code. r12 = the place, r13 = the memory, r14 = the words, r15 = the ticket."""

    def __init__(
        self, asm: Assembler, callback: int, nanoseconds: int, count: int, *, takes_over: bool, room: Room
    ) -> None:
        self._asm, self._callback, self._nanoseconds = asm, callback, nanoseconds
        self._count, self._takes_over, self._room = count, takes_over, room

    def emit(self) -> None:
        if self._room.taken:
            if self._room.gives_up:
                self._asm.code(f"mov rax, [rdi]; cmp dword [rax+{LATE}], 0; jne late")
            self._take_place()
        else:
            self._find_place()
        self._ask()
        self._wait()
        self._leave()

    def _find_place(self) -> None:
        asm = self._asm
        asm.code(f"""
            mov r14, rdi; mov r13, [r14]; mov rsi, [r14+8]
            lea rax, [rsi-1]; cmp rax, {THREADS}; jae absent
            cmp dword [r13+{CLOSED}], 0; jne absent
            mov r12, rsi; shl r12, 9
            lea r12, [r12+r13+{PLACES}]
            test dword [r12], {TID_MASK}; jz absent
        """)

    def _take_place(self) -> None:
        asm = self._asm
        asm.code(
            f"""
                mov r14, rdi; mov r13, [r14]
                cmp dword [r13+{CLOSED}], 0; jne absent
                mov ecx, places
            next:
                mov esi, 1; lock xadd [r13+{TURN}], rsi
                lea rdx, [rsi+1]
                and esi, last
                mov r12, rsi; shl r12, 9
                lea r12, [r12+r13+{PLACES}]
                test dword [r12], {TID_MASK}; jz absent
                xor eax, eax
                lock cmpxchg [r12+{HOLDER}], rdx; je short taken
                dec ecx; jnz short next
                jmp absent
            taken:
            """,
            places=self._room.places,
            last=self._room.places - 1,
        )

    def _give_place_back(self) -> None:
        if self._room.taken:
            self._asm.code(f"mov rax, [rsp+24]; xor edx, edx; lock cmpxchg [r12+{HOLDER}], rdx")

    def _ask(self) -> None:
        asm = self._asm
        asm.code(
            f"""
                sub rsp, {_FRAME}; mov [rsp+24], rdx
                lea rsi, [r13+rsi*8+{TICKETS}]; mov [rsp+16], rsi
                mov eax, {_SYS_GETTID}; syscall
                mov [r12+{TID}], eax
                mov rax, fs:[0x10]; mov [r12+{THREAD}], rax
                mov dword [r12+{CALLBACK}], callback
                mov qword [r12+{OPEN}], 0
                mov ecx, words
            give:
                mov rax, [r14+rcx*8+{8 * _FIRST - 8}]
                mov [r12+rcx*8+{ASKED - 8}], rax
                dec ecx; jnz short give
            """,
            callback=self._callback,
            words=self._count,
        )
        seconds, rest = divmod(self._nanoseconds, _BILLION)
        asm.code(
            f"""
                mov edi, {time.CLOCK_MONOTONIC}; mov rsi, rsp
                mov eax, {_SYS_CLOCK_GETTIME}; syscall
                imul rax, [rsp], {_BILLION}; add rax, [rsp+8]; mov [r12+{BEGAN}], rax
                add qword [rsp], seconds
                mov rax, [rsp+8]; add rax, nanoseconds
                cmp rax, {_BILLION}; jb short deadline
                sub rax, {_BILLION}; inc qword [rsp]
            deadline:
                mov [rsp+8], rax
                mov rsi, [rsp+16]; mov r15d, 1
                lock xadd [rsi], r15; inc r15
                lock inc dword [r13+{BELL}]
                mov rdi, r13; mov esi, {_FUTEX_WAKE}; mov edx, esi
                mov eax, {_SYS_FUTEX}; syscall
            """,
            seconds=seconds,
            nanoseconds=rest,
        )

    def _wait(self) -> None:
        asm = self._asm
        asm.code(f"""
        look:
            # first the bit, then the look at the answer: who answers writes the answer first, then clears the bit
            lock bts dword [r12], 31
            cmp [r12+{ANSWERED}], r15; je answered
            mov edx, [r12]
            test edx, {TID_MASK}; jz released
            test edx, edx; jns short look
            mov rdi, r12; mov esi, {_FUTEX_WAIT_BITSET}
            mov r10, rsp; xor r8d, r8d; or r9d, -1
            mov eax, {_SYS_FUTEX}; syscall
            test rax, rax; jz short look
            cmp rax, {-errno.EAGAIN}; je short look
            cmp rax, {-errno.EINTR}; je short look
            cmp [r12+{ANSWERED}], r15; je short answered
            lock btr dword [r12], 31
            lock inc qword [r13+{TIMEOUTS}]
        """)
        asm.code(f"mov dword [r13+{LATE}], 1; jmp short leave" if self._room.gives_up else "jmp short leave")

    def _leave_out(self) -> None:
        """Have the calls that the controller has found open begin as much later as the thread has waited.

        The thread does it, as only it knows when it goes on: who answers may wait for its own turn meanwhile.
        """
        self._asm.code(f"""
            cmp qword [r12+{OPEN}], 0; je short went
            mov edi, {time.CLOCK_MONOTONIC}; mov rsi, rsp
            mov eax, {_SYS_CLOCK_GETTIME}; syscall
            imul rax, [rsp], {_BILLION}; add rax, [rsp+8]; sub rax, [r12+{BEGAN}]
            mul qword [r12+{RATE}]; shrd rax, rdx, {RATE_BITS}
            lea rsi, [r12+{OPEN + 8}]
        calls:
            mov rdx, [rsi]; mov rcx, [rsi+8]; add rsi, 16
        call:
            cmp qword [rdx+{at.INSTANCE_SP}], {at.TOMBSTONE}; jbe short over
            add [rdx+{at.INSTANCE_T0}], rax
        over:
            add rdx, {at.INSTANCE_BYTES}; dec rcx; jnz short call
            dec qword [r12+{OPEN}]; jnz short calls
        went:
        """)

    def _leave(self) -> None:
        asm = self._asm
        asm.label("answered")
        asm.code("lock btr dword [r12], 31")
        if self._takes_over:
            asm.code(
                f"""
                    cmp qword [r12+{CHANGED}], 0; je short leave
                    mov ecx, words
                take:
                    mov rax, [r12+rcx*8+{REPLY - 8}]
                    mov [r14+rcx*8+{8 * _FIRST - 8}], rax
                    dec ecx; jnz short take
                """,
                words=self._count,
            )
        asm.label("leave")
        self._leave_out()
        self._give_place_back()
        asm.code(f"add rsp, {_FRAME}; ret")
        asm.label("released")
        self._give_place_back()
        asm.code(f"""
            add rsp, {_FRAME}
        absent:
            lock inc qword [r13+{ABSENT}]; ret
        """)
        if self._room.gives_up:
            asm.label("late")
            asm.code(f"lock inc qword [rax+{TIMEOUTS}]; ret")
