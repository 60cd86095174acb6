"""What a process is about to execute: which file that is, and whether it may be probed there.

A thread that is traced executes a set-uid program without its rights, so this is looked at before.
"""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass

from anyprobe.core.memory import Memory, MemoryFault, read_text
from anyprobe.target.process.seen_paths import AT_FDCWD, open_as_seen, sees_as_here
from anyprobe.target.system import gateway

AT_EMPTY_PATH = 0x1000
_PATH_MAX = 4096
_INTERPRETERS = 5
"""How many interpreters of interpreters the kernel goes through."""
_SHEBANG = 256
_EXECUTABLE = 0o111
_UNREADABLE = "it may not be read"


@dataclass(frozen=True, slots=True)
class NextProgram:
    """The file that a call names."""

    path: str
    """As messages show it; empty where the call names nothing that can be executed."""
    refusal: str = ""
    """Why it is left alone."""


NOTHING = NextProgram("")
"""The call fails: there is no such file, or it is not executable."""


def next_program(tid: int, path: bytes, directory: int = AT_FDCWD, flags: int = 0) -> NextProgram:
    """Return what a task executes by ``execveat(directory, path, …, flags)``."""
    if not path:
        if not flags & AT_EMPTY_PATH:
            return NOTHING
        way = f"/proc/{tid}/fd/{directory}"
        shown = way
        with suppress(OSError):
            shown = gateway.readlink(way)
        return _looked_at(tid, way, shown, _INTERPRETERS)
    return _named(tid, os.fsdecode(path), directory, _INTERPRETERS)


def program_of(tid: int, memory: Memory, address: int, directory: int = AT_FDCWD, flags: int = 0) -> NextProgram:
    """Return what a task executes whose path is at an address."""
    try:
        return next_program(tid, read_text(memory, address, _PATH_MAX), directory, flags)
    except MemoryFault:
        return NOTHING


def _named(tid: int, path: str, directory: int, left: int) -> NextProgram:
    """Return what a path of a task's names; ``left``: how many interpreters may follow."""
    try:
        if sees_as_here(tid):
            start = f"/proc/{tid}/cwd" if directory == AT_FDCWD else f"/proc/{tid}/fd/{directory}"
            return _looked_at(tid, path if path.startswith("/") else f"{start}/{path}", path, left)
        place = open_as_seen(tid, path, directory)
    except PermissionError:
        return NextProgram(path, _UNREADABLE)
    except (OSError, ValueError):
        return NOTHING
    try:
        return _looked_at(tid, f"/proc/self/fd/{place}", path, left)
    finally:
        gateway.close(place)


def _looked_at(tid: int, way: str, shown: str, left: int) -> NextProgram:
    """Look at the file that is reached by a way of this process's."""
    try:
        status = gateway.stat(way)
    except PermissionError:
        return NextProgram(os.path.realpath(way), _UNREADABLE)
    except (OSError, ValueError):
        return NOTHING
    if not stat.S_ISREG(status.st_mode) or not status.st_mode & _EXECUTABLE:
        return NOTHING
    try:
        fd = gateway.open_file(way, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return NextProgram(os.path.realpath(way), _UNREADABLE)
    try:
        # the file's own name, whatever links, directories and threads it was named by: messages add up by it
        with suppress(OSError):
            shown = gateway.readlink(f"/proc/self/fd/{fd}")
        head = gateway.read(fd, _SHEBANG)
        capable = not head.startswith(b"#!") and _has_capabilities(fd)
    finally:
        gateway.close(fd)
    if head.startswith(b"#!"):
        interpreter = head[2:].partition(b"\n")[0].split()
        if not interpreter or not left:
            return NOTHING
        by = _named(tid, os.fsdecode(interpreter[0]), AT_FDCWD, left - 1)
        return NextProgram(shown, by.refusal and f"{by.path}, which runs it: {by.refusal}") if by.path else NOTHING
    if status.st_mode & stat.S_ISUID or (status.st_mode & stat.S_ISGID and status.st_mode & stat.S_IXGRP):
        return NextProgram(shown, "it is set-uid or set-gid, and a traced process does not get its rights")
    if capable:
        return NextProgram(shown, "it has capabilities, and a traced process does not get them")
    return NextProgram(shown)


def _has_capabilities(fd: int) -> bool:
    with suppress(OSError):
        return bool(os.getxattr(fd, "security.capability"))
    return False
