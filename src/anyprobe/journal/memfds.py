"""What tells a session's memory in its target from other memory: the name of its memfds."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anyprobe.target.system.procfs import Mapping

MEMFD_NAME = b"anyprobe"
MEMFD_PATH = f"/memfd:{MEMFD_NAME.decode()}"
"""What ``maps`` calls a memfd of a session's."""


def is_ours(mapping: "Mapping") -> bool:
    """Return whether a mapping is a session's in its target; a controller maps its memfds whole and writable."""
    return mapping.path == MEMFD_PATH and not (mapping.offset == 0 and mapping.writable)
