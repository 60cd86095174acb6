"""Errors of bulk work on a target, as the errors of anyprobe."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from anyprobe.core.collection import collection_paused
from anyprobe.core.errors import TargetError, TargetExited, UnsupportedTarget
from anyprobe.core.memory import MemoryFault
from anyprobe.target.base import RunningProcess

_EXECUTING = 0.1
"""Seconds from the end of one program's memory to the next program."""


class Emulated(Protocol):
    """A process that another program may run in the processor's place."""

    pid: int

    def emulator(self) -> str | None:
        """Return the name of that program, if there is one."""
        ...


@contextmanager
def typed(process: RunningProcess, doing: str) -> Iterator[None]:
    """Do bulk work on the target, and turn errors of the system and of its memory into anyprobe's."""
    try:
        with process.translated(doing), collection_paused():
            yield
    except TargetError as error:
        of_both = isinstance(error, TargetExited | UnsupportedTarget)  # memory that is gone, a memory map half made
        program = _executed(process, _EXECUTING if of_both else 0.0)
        if not program:
            raise
        raise TargetExited(process.pid, became=program) from error
    except MemoryFault as fault:
        if process.exited():
            raise process.gone() from fault
        raise TargetError(f"{doing} process {process.pid} failed: {fault}") from fault


def _executed(process: RunningProcess, patience: float) -> str:
    """Return what a process has executed, once that is there; nothing if it has ended, or runs what it ran."""
    deadline = time.monotonic() + patience
    while process.held is None and not process.exited():
        if program := process.became():
            return program
        if time.monotonic() >= deadline:
            break
        time.sleep(0.001)
    return ""


def refuse_emulated(process: "Emulated") -> None:
    """Raise if a process's program is run by another one, not by the processor."""
    emulator = process.emulator()
    if emulator is not None:
        raise UnsupportedTarget(
            f"process {process.pid} is run by {emulator}, not by the processor: probes in its text would not be met, "
            f"or translated with it; probe the program without {emulator}"
        )
