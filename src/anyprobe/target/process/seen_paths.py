"""Files by the paths that another task uses: in its own mount namespace, below its own root, from where it stands.

``/proc/PID/root`` leads into both, but the kernel resolves a symbolic link's absolute text from the root of the one who
asks. So links are followed here. In ``/proc`` the kernel's own links lead where they lead for everybody, and ``self``
is the task.
"""

import errno
import os
import stat
from collections import deque
from contextlib import ExitStack

from anyprobe.target.system import gateway, procfs

AT_FDCWD = -100
_MOST_LINKS = 40
"""As many as the kernel follows."""
_PLACE = os.O_PATH | os.O_CLOEXEC
_ITSELF = frozenset({"self", "thread-self"})


def sees_as_here(tid: int) -> bool:
    """Return whether a task's absolute paths mean what they mean for this process."""
    try:
        if gateway.readlink(f"/proc/{tid}/ns/mnt") != gateway.readlink("/proc/self/ns/mnt"):
            return False
        mine, other = gateway.stat("/proc/self/root"), gateway.stat(f"/proc/{tid}/root")
        return (mine.st_dev, mine.st_ino) == (other.st_dev, other.st_ino)
    except OSError:
        return False


def open_as_seen(tid: int, path: str, directory: int = AT_FDCWD) -> int:
    """Return a descriptor, of the kind ``O_PATH``, of the file that a path of a task's means; the caller closes it.

    ``directory`` is the task's descriptor from which a relative path goes. Raises ``OSError``.
    """
    start = f"/proc/{tid}/cwd" if directory == AT_FDCWD else f"/proc/{tid}/fd/{directory}"
    with ExitStack() as opened:

        def kept(descriptor: int) -> int:
            opened.callback(gateway.close, descriptor)
            return descriptor

        root = kept(gateway.open_file(f"/proc/{tid}/root", _PLACE))
        here = root if path.startswith("/") else kept(gateway.open_file(start, _PLACE))
        steps, links = deque(path.split("/")), 0
        while steps:
            name = steps.popleft()
            if name in {"", "."} or (name == ".." and _is_same(here, root)):
                continue
            there = kept(gateway.open_file(name, _PLACE | os.O_NOFOLLOW, dir_fd=here))
            status = gateway.fstat(there)
            if stat.S_ISLNK(status.st_mode):
                links += 1
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
                text = _text(tid, name, here, status.st_size)
                if text is not None:
                    steps.extendleft(reversed(text.split("/")))
                    here = root if text.startswith("/") else here
                    continue
                there = kept(gateway.open_file(name, _PLACE, dir_fd=here))
            here = there
        return os.dup(here)


def _text(tid: int, name: str, directory: int, size: int) -> str | None:
    """Return what a symbolic link says to a task; None: the kernel knows by itself where it leads.

    Those links of ``/proc`` have a size that is not that of their text.
    """
    text = gateway.readlink(name, dir_fd=directory)
    if size == len(os.fsencode(text)):
        return text
    if name not in _ITSELF:
        return None
    group = procfs.group_of(tid)
    own = str(procfs.own_id(group))
    if name == "self":
        return own
    return f"{own}/task/{procfs.own_id(tid)}"


def _is_same(one: int, other: int) -> bool:
    first, second = gateway.fstat(one), gateway.fstat(other)
    return (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)
