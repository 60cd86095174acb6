"""Descriptors of what the kernel makes: as many as this process may have."""

import errno
import resource
from collections.abc import Callable
from typing import TypeVar

from anyprobe.core.errors import KernelRefused

_Made = TypeVar("_Made")

TOO_MANY = frozenset({errno.EMFILE, errno.ENFILE})
"""What the kernel says where it is not the request that is refused, but one more descriptor."""


def made(what: str, make: Callable[[], _Made]) -> _Made:
    """Return what is made by a system call; raise ``KernelRefused`` where that fails, ``what`` as there.

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
    return _forbidden() if number in {errno.EPERM, errno.EACCES} else ""


def _forbidden() -> str:
    """Return why the kernel forbids what sets and reads probes: the user, or that it is locked down."""
    from anyprobe.target.kernel import switches

    if not (switches.has_capability(switches.CAP_BPF) and switches.has_capability(switches.CAP_PERFMON)):
        return "be root, or have CAP_BPF and CAP_PERFMON"
    return locked_down()


def locked_down(*, writing: bool = False) -> str:
    """Return what to say where the kernel forbids even root something, nothing if it is not locked down so far.

    ``integrity`` forbids modules that are not signed and files of debugfs that can be written (``writing``);
    ``confidentiality`` also kprobes, tracefs and what reads the kernel's memory.
    """
    from anyprobe.target.kernel import switches

    mode = switches.lockdown()
    if mode == "none" or (mode == "integrity" and not writing):
        return ""
    return f"the kernel is locked down ({mode}); boot without lockdown= and secure boot"
