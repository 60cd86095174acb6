"""Errors of bulk work on a target, as the errors of anyprobe."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from anyprobe.core.collection import collection_paused
from anyprobe.core.errors import TargetError, UnsupportedTarget
from anyprobe.core.memory import MemoryFault
from anyprobe.target.base import ProcessTarget


class Emulated(Protocol):
    """A process that another program may run in the processor's place."""

    pid: int

    def emulator(self) -> str | None:
        """Return the name of that program, if there is one."""
        ...


@contextmanager
def typed(process: ProcessTarget, doing: str) -> Iterator[None]:
    """Do bulk work on the target, and turn errors of the system and of its memory into anyprobe's."""
    try:
        with process.translated(doing), collection_paused():
            yield
    except MemoryFault as fault:
        if process.exited():
            raise process.gone() from fault
        raise TargetError(f"{doing} process {process.pid} failed: {fault}") from fault


def refuse_emulated(process: "Emulated") -> None:
    """Raise if a process's program is run by another one, not by the processor."""
    emulator = process.emulator()
    if emulator is not None:
        raise UnsupportedTarget(
            f"process {process.pid} is run by {emulator}, not by the processor: probes in its text would not be met, "
            f"or translated with it; probe the program without {emulator}"
        )
