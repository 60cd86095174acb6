"""What a process is about to execute: which file that is, and whether it may be probed there.

A thread that is traced executes a set-uid program without its rights, so this is looked at before.
"""

import os
import stat
from contextlib import suppress
from dataclasses import dataclass

from anyprobe.core.memory import Memory, MemoryFault, read_text
from anyprobe.target.system import gateway

AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
_PATH_MAX = 4096
_INTERPRETERS = 5
"""How many interpreters of interpreters the kernel goes through."""
_SHEBANG = 256
_EXECUTABLE = 0o111


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
        return _looked_at(tid, f"/proc/{tid}/fd/{directory}", _INTERPRETERS)
    return _looked_at(tid, _outside(tid, os.fsdecode(path), directory), _INTERPRETERS)


def program_of(tid: int, memory: Memory, address: int, directory: int = AT_FDCWD, flags: int = 0) -> NextProgram:
    """Return what a task executes whose path is at an address."""
    try:
        return next_program(tid, read_text(memory, address, _PATH_MAX), directory, flags)
    except MemoryFault:
        return NOTHING


def _outside(tid: int, path: str, directory: int) -> str:
    """Return where a path of the task's is for this process."""
    if path.startswith("/"):
        return path if _same_root(tid) else f"/proc/{tid}/root{path}"
    return f"/proc/{tid}/cwd/{path}" if directory == AT_FDCWD else f"/proc/{tid}/fd/{directory}/{path}"


def _same_root(tid: int) -> bool:
    try:
        mine, other = gateway.stat("/proc/self/root"), gateway.stat(f"/proc/{tid}/root")
        return (mine.st_dev, mine.st_ino) == (other.st_dev, other.st_ino)
    except OSError:
        return False


def _looked_at(tid: int, path: str, left: int) -> NextProgram:
    try:
        status = gateway.stat(path)
    except PermissionError:
        return NextProgram(os.path.realpath(path), "it may not be read")
    except (OSError, ValueError):
        # in another root a link may lead elsewhere than it seems from here: then the call itself tells
        return NOTHING if _same_root(tid) else NextProgram(path)
    if not stat.S_ISREG(status.st_mode) or not status.st_mode & _EXECUTABLE:
        return NOTHING
    try:
        fd = gateway.open_file(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return NextProgram(os.path.realpath(path), "it may not be read")
    shown = path
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
        by = _looked_at(tid, _outside(tid, os.fsdecode(interpreter[0]), AT_FDCWD), left - 1)
        return NextProgram(shown, by.refusal and f"{by.path}, which runs it: {by.refusal}") if by.path else NOTHING
    if status.st_mode & stat.S_ISUID or (status.st_mode & stat.S_ISGID and status.st_mode & stat.S_IXGRP):
        return NextProgram(shown, "it is set-uid or set-gid, and whoever is traced does not get its rights")
    if capable:
        return NextProgram(shown, "it has capabilities, and whoever is traced does not get them")
    return NextProgram(shown)


def _has_capabilities(fd: int) -> bool:
    with suppress(OSError):
        return bool(os.getxattr(fd, "security.capability"))
    return False
