"""Errors of bulk work on a target, as the errors of anyprobe."""

from collections.abc import Iterator
from contextlib import contextmanager

from anyprobe.core.collection import collection_paused
from anyprobe.core.errors import TargetError
from anyprobe.core.memory import MemoryFault
from anyprobe.target.base import ProcessTarget


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
