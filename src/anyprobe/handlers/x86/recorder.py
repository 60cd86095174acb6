"""Recorders of calls: handlers whose code is written here, one for each end of a call, and the ring of both.

A patch does the same in its stead where it can (``splice.codegen.handlers.inline``).
"""

from typing import NoReturn

from anyprobe.core.code import Input, InputKind, NativeCode, RecordedEnd
from anyprobe.core.errors import UsageError
from anyprobe.data.aggregates.records import Field, RecordType
from anyprobe.data.readers.rings import CALL_FIELDS, RingLayout
from anyprobe.handlers.types.storages import Ring
from anyprobe.handlers.x86.records import emit_record
from anyprobe.isa.assemble import Assembler

CALLS = RecordType("call", tuple(Field(name, "i32" if name == "tid" else "u32", 4) for name in CALL_FIELDS))
_CHANGED = frozenset({"rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11", "flags"})
_TID, _FUNCTION, _FRAME, _STORAGE, _THREAD = range(0, 40, 8)
"""Words of the context."""


class CallRecorder:
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
        end = self._end + at_jump
        asm.code(
            f"""
                push rbx; mov rbx, rdi; sub rsp, 32
                mov rax, [rbx+{_TID}]; mov [rsp], rax
                mov rax, [rbx+{_FUNCTION}]; mov [rsp+8], rax
                mov rax, [rbx+{_FRAME}]; add rax, end; mov [rsp+16], rax
            """,
            end=end,
        )
        emit_record(asm, layout, _STORAGE, _THREAD, None, tells_losses=True)
        asm.label("out")
        asm.code("add rsp, 32; pop rbx; ret")
        inputs = (
            Input(InputKind.CONTEXT, "tid"),
            Input(InputKind.CONTEXT, "func"),
            Input(InputKind.REGISTER, "rsp"),
            Input(InputKind.STORAGE),
            Input(InputKind.THREAD),
        )
        update = RecordedEnd(0, layout.threads + 1, layout.slots, end)
        return NativeCode(asm.finish(0), inputs, _CHANGED, 48, 0, update=update)


def recorders(ring_bytes: int, *, threads: int = 1024) -> tuple[CallRecorder, CallRecorder]:
    """Return the recorders of both ends of calls, with rings of a size; what is larger than all is shared."""
    ring = Ring(RingLayout.of_size(CALLS, ring_bytes, threads=threads))
    return CallRecorder(ring, 0), CallRecorder(ring, 1)
