"""The driver as a module of the running kernel: loaded, unloaded, and what keeps it from either."""

import errno
import os
import re
import time
from contextlib import suppress
from typing import Final

from anyprobe.core.errors import KernelRefused
from anyprobe.target.kernel import descriptors, loaded_modules
from anyprobe.target.kernel.driver import permission
from anyprobe.target.kernel.driver.device import PATH, Driver
from anyprobe.target.system import gateway

NAME: Final = "anyprobe"
_REMEDIES: Final = {
    errno.EPERM: "be root (CAP_SYS_MODULE)",
    errno.ENOEXEC: "it was built for another kernel",
    errno.ENOENT: "this kernel lacks what the driver needs: see dmesg",
    errno.EBUSY: "it is in use: an anyprobe session, or a task that is still in a patch",
    errno.EAGAIN: "it is in use: an anyprobe session, or a task that is still in a patch",
}
_UNSIGNED: Final = (
    "this kernel takes signed modules only: sign what anyprobe driver build prints, with sign-file of the kernel's "
    "headers and a key that is enrolled (mokutil --import)"
)
_UNKNOWN_KEY: Final = (
    "the kernel does not know the key that it is signed with: enrol that (mokutil --import) and boot again"
)
_SIGNATURE: Final = b"~Module signature appended~\n"
_LOG: Final = "/dev/kmsg"
_PATIENCE: Final = 2.0
"""Seconds to wait for what has been left."""
_GUARD: Final = "ftrace"
_MISSING: Final = re.compile(r"anyprobe: this kernel has no (\w+)")


def is_loaded() -> bool:
    """Return whether the driver is in the kernel."""
    return NAME in loaded_modules.loaded()


def load(file: str) -> None:
    """Load the driver from its file; nothing happens if one is loaded. Raise ``KernelRefused`` with what would help."""
    fd = descriptors.made(f"open {file}", lambda: gateway.open_file(file, os.O_RDONLY | os.O_CLOEXEC))
    log = _log_from_now_on()
    try:
        gateway.finit_module(fd)
    except OSError as failure:
        if failure.errno == errno.ENOENT and (missing := _missing(log)):
            detail = f"this kernel has no {', '.join(missing)}, which the driver needs"
            if _GUARD in missing:
                detail = f"{detail} to keep kprobes off; is ftrace switched off (sysctl kernel.ftrace_enabled)?"
            raise KernelRefused("load the driver", errno.ENOENT, detail) from None
        if failure.errno == errno.EKEYREJECTED:
            detail = _UNKNOWN_KEY if _is_signed(fd) else _UNSIGNED
            raise KernelRefused("load the driver", errno.EKEYREJECTED, detail) from None
        if failure.errno != errno.EEXIST:
            raise _refused("load the driver", failure) from None
    finally:
        for each in (fd, log):
            if each >= 0:
                gateway.close(each)


def _is_signed(fd: int) -> bool:
    """Return whether a module's file ends in a signature."""
    return os.pread(fd, len(_SIGNATURE), max(0, os.fstat(fd).st_size - len(_SIGNATURE))) == _SIGNATURE


def _log_from_now_on() -> int:
    """Return a descriptor of the kernel's log, -1 if it cannot be read: what comes from now on is read from it."""
    with suppress(OSError):
        log = gateway.open_file(_LOG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.lseek(log, 0, os.SEEK_END)
        return log
    return -1


def _missing(log: int) -> list[str]:
    """Return what the driver has named in the log when it found that it was not there."""
    found: list[str] = []
    with suppress(OSError):  # a record a call, and EAGAIN at the end
        while record := os.read(log, 8192):
            found += _MISSING.findall(record.decode(errors="replace"))
    return found


def unload() -> None:
    """Remove the driver; raise ``KernelRefused`` while it is in use, nothing happens if there is none.

    What a session has left is given up a moment after its end: on preemptible kernels each task has to have slept.
    """
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            gateway.delete_module(NAME)
        except OSError as failure:
            if failure.errno == errno.ENOENT:
                return
            if failure.errno not in {errno.EAGAIN, errno.EBUSY} or time.monotonic() >= until:
                raise _refused("unload the driver", failure) from None
        else:
            return
        time.sleep(0.05)


def may_open() -> str:
    """Return why ``/dev/anyprobe`` cannot be opened by this user, nothing if it can."""
    try:
        gateway.close(gateway.open_file(PATH, os.O_RDWR | os.O_CLOEXEC))
    except OSError as failure:
        if failure.errno == errno.ENOENT:
            return "it is not loaded"
        said = os.strerror(failure.errno or errno.EIO)
        why = permission.obstacle() if failure.errno == errno.EPERM else ""
        return f"{said}; {why}" if why else said
    return ""


def _refused(what: str, failure: OSError) -> KernelRefused:
    number = failure.errno or errno.EIO
    detail = _REMEDIES.get(number, "")
    if number == errno.EPERM:
        detail = descriptors.locked_down(writing=True) or detail
    return KernelRefused(what, number, detail)


def status(release: str, built: str) -> dict[str, str | bool | int | None]:
    """Return how it is with the driver: for which kernel, built where, loaded, and what is written with it."""
    loaded, live, obstacle = is_loaded(), None, may_open()
    if loaded and not obstacle:
        with Driver() as driver:
            live = driver.live
    return {
        "release": release,
        "built": built if os.path.exists(built) else None,
        "loaded": loaded,
        "obstacle": obstacle or None,
        "writes": live,
    }
