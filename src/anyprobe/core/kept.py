"""Files that are kept in the user's cache: losing them costs only time.

They are written aside and renamed, so a reader sees all of one or nothing. What another user wrote is not read.
"""

import contextlib
import os
import stat
import time
from typing import NamedTuple

_DAY = 86_400


def directory() -> str:
    """Return the folder of the cache: ``$XDG_CACHE_HOME/anyprobe``, ``~/.cache/anyprobe``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "anyprobe")


def read(name: str, start: int = 0, size: int | None = None) -> bytes | None:
    """Return the content of a file, or a part of it; None if it is not there, or is another user's."""
    try:
        descriptor = os.open(os.path.join(directory(), name), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        with open(descriptor, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if status.st_uid != os.geteuid():
                return None
            if time.time() - status.st_mtime > _DAY:  # where there is too much, what was not used for longest goes
                os.utime(file.fileno())
            file.seek(start)
            return file.readall() if size is None else file.read(size)
    except OSError:
        return None


def write(name: str, content: bytes) -> bool:
    """Keep a file that only this user can read; return False where the cache cannot be written."""
    folder, temporary = directory(), ""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        aside = os.path.join(folder, f".new-{os.getpid()}-{os.urandom(8).hex()}")
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        temporary = aside
        with open(descriptor, "wb") as file:
            file.write(content)
        os.rename(temporary, os.path.join(folder, name))
    except OSError:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return False
    return True


class Entry(NamedTuple):
    """One file of the cache."""

    name: str
    size: int
    """In bytes."""
    written: float
    """When it was written, or used on a later day, in seconds since the epoch."""


def entries() -> list[Entry]:
    """Return the files of the cache, none where there is no such folder; folders in it are not of it."""
    found = []
    with contextlib.suppress(OSError), os.scandir(directory()) as listing:
        for each in listing:
            with contextlib.suppress(FileNotFoundError):  # another anyprobe has replaced it just now
                status = each.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    found.append(Entry(each.name, status.st_size, status.st_mtime))
    return found


def clear() -> list[Entry]:
    """Remove the files of the cache and return them; raise ``OSError`` where one cannot be removed."""
    found = entries()
    for each in found:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(directory(), each.name))
    return found
