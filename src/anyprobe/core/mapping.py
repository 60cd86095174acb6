"""The protocol of one line of ``/proc/PID/maps``."""

from typing import Protocol


class MappingLike(Protocol):
    """A line of ``/proc/PID/maps``."""

    @property
    def start(self) -> int:
        """First address."""
        ...

    @property
    def end(self) -> int:
        """The address after the last byte."""
        ...

    @property
    def perms(self) -> str:
        """The four letters, ``r-xp``."""
        ...

    @property
    def offset(self) -> int:
        """Offset in the file."""
        ...

    @property
    def device(self) -> str:
        """Numbers of the file's device, ``fe:01``."""
        ...

    @property
    def inode(self) -> int:
        """Inode of the file, 0 without one."""
        ...

    @property
    def path(self) -> str:
        """Path of the file, ``[vdso]``, or nothing."""
        ...
