"""Descriptors of what the kernel makes: as many as this process may have."""

import errno
import resource
from collections.abc import Callable

from anyprobe.core.errors import KernelRefused

TOO_MANY = frozenset({errno.EMFILE, errno.ENFILE})
"""What the kernel says where it is not the request that is refused, but one more descriptor."""


def made(what: str, make: Callable[[], int]) -> int:
    """Return what a system call returns; raise ``KernelRefused`` where it fails, ``what`` as there.

    The soft limit on open files, which is there for programs that use ``select``, is raised where it is in the way.
    """
    try:
        return make()
    except OSError as failure:
        number = failure.errno or 0
    if number == errno.EMFILE and _raised():
        return made(what, make)
    raise KernelRefused(what, number, _detail(number)) from None


def _raised() -> bool:
    """Raise the soft limit to the hard one; return whether that is more than before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return False
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return True


def _detail(number: int) -> str:
    if number == errno.EMFILE:
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        return f"this process may have {most} open files; ask for fewer places, or raise RLIMIT_NOFILE (ulimit -n)"
    if number == errno.ENFILE:
        return "the machine has as many open files as fs.file-max permits"
    return locked_down() if number in {errno.EPERM, errno.EACCES} else ""


def locked_down() -> str:
    """Return what to say where the kernel forbids even root something, nothing where it is not locked down."""
    from anyprobe.target.kernel import switches

    mode = switches.lockdown()
    return "" if mode == "none" else f"the kernel is locked down ({mode}); boot without lockdown= and secure boot"
