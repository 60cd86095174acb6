"""Recorders of calls: handlers whose code is written here, one for each end of a call, and the ring of both.

A patch does the same in its stead where it can (``splice.codegen.handlers.inline``).
"""

from typing import NoReturn

from anyprobe.core.code import Input, InputKind, NativeCode, RecordedEnd
from anyprobe.core.errors import UsageError
from anyprobe.data.readers.call_rings import (
    CONTEXT,
    COUNT_AT,
    FRAME_BITS,
    GIVEN_UP,
    IS_CONTEXT,
    IS_FUNCTION,
    IS_IDENTITY,
    LIMIT,
    OWNER,
    OWNER_AT,
    TIME_AT,
    TIME_BITS,
    WINDOW_AT,
    CallLayout,
)
from anyprobe.data.readers.rings import CONSUMED, FULL, PRODUCED
from anyprobe.handlers.types.storages import EndRecorder, Ring
from anyprobe.handlers.x86.records import emit_own_ring, emit_record
from anyprobe.isa.assemble import Assembler

_CHANGED = frozenset({"rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "flags"})
_TID, _FUNCTION, _FRAME, _STORAGE, _THREAD = range(0, 40, 8)
"""Words of the context."""


class CallRecorder(EndRecorder):
    """The handler of one end of calls: where they begin (0), return (1), or go on in another function (2)."""

    def __init__(self, ring: Ring, end: int) -> None:
        """Write to a ring, which both ends share."""
        self.__name__, self.storage, self._end = "recorder", ring, end

    def __call__(self, *_: object) -> NoReturn:
        """Refuse: it runs in programs."""
        raise UsageError("a recorder runs in the program that is probed; it cannot be called here")

    def compiled(self, *, at_jump: bool = False) -> NativeCode:
        """Return the code; ``at_jump``: where the function ends by a jump to another one."""
        asm, layout = Assembler(), self.storage.layout
        assert isinstance(layout, CallLayout)
        end = self._end + at_jump
        asm.code(
            f"""
                push rbx; mov rbx, rdi; sub rsp, 32
                mov rax, [rbx+{_TID}]; mov [rsp], rax
                mov rax, [rbx+{_FUNCTION}]; mov [rsp+8], rax
                mov rax, [rbx+{_FRAME}]; add rax, end; mov [rsp+16], rax
                mov rdi, [rbx+{_STORAGE}]
            """,
            end=end,
        )
        emit_own_ring(asm, layout, _THREAD)
        _emit_word(asm, layout.words, end)
        emit_record(asm, layout, _STORAGE, _THREAD, None, is_shared=True)
        asm.label("out")
        asm.code("add rsp, 32; pop rbx; ret")
        inputs = (
            Input(InputKind.CONTEXT, "tid"),
            Input(InputKind.CONTEXT, "func"),
            Input(InputKind.REGISTER, "rsp"),
            Input(InputKind.STORAGE),
            Input(InputKind.THREAD),
        )
        update = RecordedEnd(0, layout.threads + 1, layout.words, end, layout.numbers)
        return NativeCode(asm.finish(0), inputs, _CHANGED, 48, 0, update=update)


def _emit_word(asm: Assembler, words: int, end: int) -> None:
    """Emit: an event goes to the ring at rdi + r8, whose row is rsi, with what has to be said before; on to ``out``.

    Its function is named by a word of its own, right before it.
    """
    asm.code("add r8, rdi")
    asm.label("again")
    _position(asm, words)
    asm.code(f"mov eax, [rbx+{_TID}]; cmp eax, [rsi+{OWNER}]; jne unknown")
    _part_of_time(asm)
    asm.code(f"mov r10, [rbx+{_FUNCTION}]; shl r10, 32; or r10, {IS_FUNCTION}")
    _put(asm, "function", words)
    # the place after it, or both are written again
    asm.code(f"inc r9; cmp r9, [rsi+{LIMIT}]; jae again")
    _part_of_time(asm)
    asm.code(
        f"""
            mov edx, [rbx+{_FRAME}]; shl rdx, {64 - FRAME_BITS}; shl rax, {TIME_AT}; lea r10, [rax+rdx+end]
        """,
        end=2 * end,
    )
    _put(asm, "event", words)
    asm.code(
        f"""
            jmp out
        unknown:
            mov r11, [rsi+{FULL}]
            mov rax, r9; not rax; mov [rsi+{CONTEXT}], rax
            mov r10, r11; shl r10, {COUNT_AT}; mov eax, [rbx+{_TID}]; shl eax, {OWNER_AT}; or r10, rax
            or r10, {IS_IDENTITY}
        """
    )
    _put(asm, "identity", words)
    asm.code(f"mov eax, [rbx+{_TID}]; mov [rsi+{OWNER}], eax")
    _position(asm, words, "context_")
    asm.code(
        f"""
            cmp r11, [rsi+{FULL}]; jne again
            rdtsc; shl rdx, 32; or rax, rdx; and rax, {-1 << TIME_BITS}
            mov edx, [rbx+{_FRAME}]; shr edx, {FRAME_BITS}
            mov rdi, rax; or rdi, rdx; shl edx, {WINDOW_AT}; mov r10, rax; or r10, rdx; or r10, {IS_CONTEXT}
            mov rax, r9; not rax; mov [rsi+{CONTEXT}], rax
        """
    )
    _put(asm, "context", words)
    asm.code(
        f"""
            mov rax, r9; not rax; cmpxchg [rsi+{CONTEXT}], rdi; jmp again
        no_room:
            mov qword [rsi+{CONTEXT}], -1; lock inc qword [rsi+{FULL}]; mov qword [rsi+{CONTEXT}], -1; jmp out
        """
    )


def _position(asm: Assembler, words: int, name: str = "") -> None:
    """Emit: r9 = the next position, where there is room."""
    asm.code(
        f"""
            mov r9, [rsi+{PRODUCED}]; cmp r9, [rsi+{LIMIT}]; jb {name}room
            mov rax, [rsi+{CONSUMED}]; add rax, words; mov [rsi+{LIMIT}], rax; cmp r9, rax; jae no_room
        {name}room:
        """,
        words=words,
    )


def _part_of_time(asm: Assembler) -> None:
    """Emit: rax = what an event has of the time; on to ``unknown`` where the context is another one."""
    asm.code(
        f"""
            rdtsc; shl rdx, 32; or rax, rdx; xor rax, [rsi+{CONTEXT}]; cmp rax, {(1 << TIME_BITS) - 1}; ja unknown
            mov edx, [rbx+{_FRAME}]; shr edx, {FRAME_BITS}; cmp dx, [rsi+{CONTEXT}]; jne unknown
        """
    )


def _put(asm: Assembler, name: str, words: int) -> None:
    """Emit: the word r10 gets position r9 and its place, unless a signal handler has taken that.

    A place that the reader gives up meanwhile is lost with the event, which is counted as such: it ends here.
    """
    asm.code(
        f"""
            mov rax, r9; lea rcx, [r9+1]; cmpxchg [rsi+{PRODUCED}], rcx; jne again
            mov ecx, r9d; and ecx, last; lea rcx, [r8+rcx*8]; mov rdx, r9; shr rdx, laps
            mov rax, [rcx]; cmp al, {GIVEN_UP}; jb {name}_usable
            shl rdx, 8; or rdx, {GIVEN_UP}; cmp rdx, rax; je out
            jmp again
        {name}_usable:
            not edx; and edx, 1; or r10, rdx; lock cmpxchg [rcx], r10; jne out
        """,
        last=words - 1,
        laps=words.bit_length() - 1,
    )


def recorders(ring_bytes: int, *, threads: int = 1024) -> tuple[CallRecorder, CallRecorder]:
    """Return the recorders of both ends of calls, with rings of a size; what is larger than all is shared."""
    ring = Ring(CallLayout.of_bytes(ring_bytes, threads=threads))
    return CallRecorder(ring, 0), CallRecorder(ring, 1)
