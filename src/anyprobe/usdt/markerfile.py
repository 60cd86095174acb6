"""Files with markers: where tools can open them, for as long as a process uses them.

Tools open what ``/proc/PID/maps`` names, so that memory without a file will not do. Each file lies in a folder of its
own. A process holds a shared lock on the files that it uses, its fork children hold their own. The process that ends
last, and finds the lock free, removes the file; what killed processes left is removed by the next that makes a file.
"""

import atexit
import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from anyprobe.core.errors import TargetError

_TRIES = 8


class MarkerFile:
    """A file of markers that this process uses."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """Keep a file whose lock is held by ``descriptor``; it is removed when the process ends."""
        self.path = path
        self._descriptor, self._childs = descriptor, -1
        _USED.append(self)

    def prepare(self) -> None:
        """Lock once more before a fork, for the child: the parent may end before the child runs at all."""
        with suppress(OSError):
            self._childs = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            fcntl.flock(self._childs, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def leave_to_child(self) -> None:
        """Close what a fork child has now."""
        if self._childs >= 0:
            os.close(self._childs)
            self._childs = -1

    def inherit(self) -> None:
        """Take over the lock that was made for this fork child; the other one is the parent's."""
        if self._childs >= 0:
            os.close(self._descriptor)
            self._descriptor, self._childs = self._childs, -1

    def remove(self) -> None:
        """Give the file back; it goes away unless another process uses it."""
        if self not in _USED:
            return
        _USED.remove(self)
        with suppress(OSError):
            _remove_unused(self.path, self._descriptor)
        os.close(self._descriptor)


_USED: list[MarkerFile] = []


def written(name: str, content: bytes, load: Callable[[str], None]) -> MarkerFile:
    """Write a file and have it loaded from the first folder that permits it; say what each said if none does."""
    problems = []
    for base in _bases():
        try:
            folder = _folder(base)
            _remove_left(folder)
            file = _written_in(folder, name, content)
        except OSError as error:
            problems.append(f"{base}: {error.strerror or error}")
            continue
        try:
            load(str(file.path))
            return file
        except OSError as error:  # a file system that does not permit code to run is one of the reasons
            file.remove()
            problems.append(f"{base}: {error}")
    raise TargetError("there is no folder for a file with markers: " + "; ".join(problems))


def _bases() -> Iterator[Path]:
    """Yield the folders that are tried, best first."""
    candidates = (os.environ.get("XDG_RUNTIME_DIR"), tempfile.gettempdir(), "/var/tmp", os.path.expanduser("~/.cache"))  # noqa: S108 - a folder of one's own in it, see _folder
    yield from dict.fromkeys(Path(each) for each in candidates if each and os.path.isdir(each))


def _folder(base: Path) -> Path:
    """Return anyprobe's folder there; one that another user made, or may write, is none."""
    folder = base / f"anyprobe-usdt-{os.geteuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(1, f"{folder} is not this user's alone")
    return folder


def _written_in(folder: Path, name: str, content: bytes) -> MarkerFile:
    for _ in range(_TRIES):
        place = Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=folder))
        path = place / name
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:  # another process took the empty folder for one that was left
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH)
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
            if os.stat(path).st_ino == os.fstat(descriptor).st_ino:
                return MarkerFile(path, descriptor)
        except FileNotFoundError:  # the same, before the lock was taken
            os.close(descriptor)
        except BaseException:
            os.close(descriptor)
            shutil.rmtree(place, ignore_errors=True)
            raise
    raise OSError(11, "others remove what is made there")


def _remove_left(folder: Path) -> None:
    """Remove the files that no process has a lock on."""
    for place in folder.iterdir():
        for path in place.iterdir():
            with suppress(OSError):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    _remove_unused(path, descriptor)
                finally:
                    os.close(descriptor)
        with suppress(OSError):
            place.rmdir()


def _remove_unused(path: Path, descriptor: int) -> None:
    """Remove a file if no descriptor but ``descriptor`` holds its lock."""
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    path.unlink(missing_ok=True)
    with suppress(OSError):
        path.parent.rmdir()


def _prepare_all() -> None:
    for each in _USED:
        each.prepare()


def _leave_all() -> None:
    for each in _USED:
        each.leave_to_child()


def _inherit_all() -> None:
    for each in _USED:
        each.inherit()


@atexit.register
def _remove_all() -> None:
    while _USED:
        _USED[-1].remove()


os.register_at_fork(before=_prepare_all, after_in_parent=_leave_all, after_in_child=_inherit_all)
