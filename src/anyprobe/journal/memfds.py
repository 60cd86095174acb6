"""The memfds of sessions: what tells them from other memory of a target, and which of their pages were written."""

import errno
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anyprobe.target.system.procfs import Mapping

MEMFD_NAME = b"anyprobe"
MEMFD_PATH = f"/memfd:{MEMFD_NAME.decode()}"
"""What ``maps`` calls a memfd of a session's."""


def is_ours(mapping: "Mapping") -> bool:
    """Return whether a mapping is a session's in its target; a controller maps its memfds whole and writable."""
    return mapping.path == MEMFD_PATH and not (mapping.offset == 0 and mapping.writable)


def written_extents(fd: int, offset: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield which pages of a part of a memfd were ever written, relative to ``offset``; swapped-out ones too."""
    end = at = offset
    while end < offset + size:
        try:
            at = os.lseek(fd, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:  # which says that there is no more
                raise
            return
        if at >= offset + size:
            return
        end = min(os.lseek(fd, at, os.SEEK_HOLE), offset + size)
        yield at - offset, end - offset
