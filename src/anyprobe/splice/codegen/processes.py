"""The test in a kernel's patch whether the running task is of one of some processes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from anyprobe.isa.assemble import Assembler

if TYPE_CHECKING:
    from anyprobe.splice.codegen.patch import PatchWriter

_TAIL: Final = 8
"""Bytes of the last branch and of what restores registers."""
_TEST_BYTES, _EACH_BYTES = 48, 11


@dataclass(frozen=True, slots=True)
class Processes:
    """Processes by number, and where the kernel says which one a task is of."""

    numbers: tuple[int, ...]
    task: int
    """Where each processor has the address of the running task's structure, as an offset from ``gs``."""
    member: int
    """Offset of the process's number (``tgid``) in that structure."""
    are_left_out: bool = False
    """Whether all count but these."""

    @property
    def estimate(self) -> int:
        """An upper bound of the bytes of a test."""
        return _TEST_BYTES + _EACH_BYTES * len(self.numbers)


def emit_if_chosen(writer: "PatchWriter", chosen: Processes, emit: Callable[[], None]) -> None:
    """Append what ``emit`` appends, run in some processes only; registers and flags stay, where it is left out, too."""
    after: list[int] = []

    def other() -> None:
        writer.code("pop rax; popfq")
        writer.relative("jmp after", after[0])

    asm = Assembler()
    asm.code("pushfq; push rax; mov rax, gs:[task]; mov eax, [rax+member]", task=chosen.task, member=chosen.member)
    if chosen.are_left_out:
        writer.raw(asm.finish(writer.here))
        for number in chosen.numbers:
            writer.code(f"cmp eax, {number}")
            writer.cold("je other", other)
    else:
        for number in chosen.numbers[:-1]:
            asm.code(f"cmp eax, {number}; je chosen")
        asm.code(f"cmp eax, {chosen.numbers[-1]}; jne other\n chosen:\n pop rax; popfq\n other:")
        writer.raw(asm.finish(writer.here)[:-_TAIL])
        writer.cold("jne other", other)
    writer.code("pop rax; popfq")
    emit()
    after.append(writer.here)
