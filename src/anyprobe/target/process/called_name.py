"""The name by which a program was started, where that is a link: ``redis-server``, and not ``redis-check-rdb``."""

import os
from collections.abc import Iterator

from anyprobe.target.system import gateway, procfs


def called_name(pid: int, exe: str) -> str:
    """Return the last part of the path that was used, if that leads to the program's file, else the file's name."""
    name = os.path.basename(exe)
    try:
        first = os.fsdecode(procfs.read_file(f"/proc/{procfs.voice(pid)}/cmdline").partition(b"\0")[0])
        file = gateway.stat(f"/proc/{procfs.voice(pid)}/exe")
    except OSError:
        return name
    for used in dict.fromkeys((first, first.partition(" ")[0])):  # some write their state there, after a blank
        called = os.path.basename(used).removeprefix("-")
        if called in (name, ""):
            return name
        for path in _paths(pid, used, called, os.path.dirname(exe)):
            try:
                found = gateway.stat(path)
            except (OSError, ValueError):
                continue
            if (found.st_dev, found.st_ino) == (file.st_dev, file.st_ino):
                return called
    return name


def _paths(pid: int, used: str, called: str, folder: str) -> Iterator[str]:
    """Yield where the file may be that was named at the start, as the process sees it."""
    process = f"/proc/{procfs.voice(pid)}"
    if used.startswith("/"):
        yield f"{process}/root{used}"
        yield used
    elif "/" in used:
        yield f"{process}/cwd/{used}"
    else:
        yield f"{process}/root{folder}/{called}"
        yield from (os.path.join(each, called) for each in os.get_exec_path())
