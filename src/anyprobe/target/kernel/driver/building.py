"""Building the driver for one kernel: with the kernel's headers and the system's compiler, kept per kernel release."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from typing import Final

from anyprobe.core.errors import TargetError

_HERE: Final = os.path.dirname(__file__)
_SOURCES: Final = ("anyprobe.c", "anyprobe.h", "Kbuild")
_HEADERS: Final = "/lib/modules/{}/build"
_SECONDS: Final = 600
_LINES: Final = 12
"""How much of a compiler's message is shown."""


def running_release() -> str:
    """Return the release of the running kernel, as in ``/lib/modules``."""
    return os.uname().release


def headers(release: str) -> str:
    """Return where a kernel's headers are; raise ``TargetError`` with the package that has them."""
    found = _HEADERS.format(release)
    if not os.path.exists(os.path.join(found, "Makefile")):
        raise TargetError(
            f"the headers of Linux {release} are not there ({found}); Debian has them in linux-headers-{release}"
        )
    return found


def module_file(release: str, folder: str) -> str:
    """Return where the driver for a kernel is kept in ``folder``, built or not."""
    digest = hashlib.sha256()
    for name in _SOURCES:
        with open(os.path.join(_HERE, name), "rb") as file:
            digest.update(file.read())
    return os.path.join(folder, f"{release}-{digest.hexdigest()[:16]}", "anyprobe.ko")


def build(release: str, folder: str, *, made_with: str | None = None) -> str:
    """Return the driver's file for a kernel, built now if it is not in ``folder`` yet.

    Args:
        release: The kernel's release, as ``uname -r`` prints it.
        folder: Where drivers are kept.
        made_with: The kernel's headers, if they are not where the kernel's modules are.

    Raises:
        TargetError: the headers, ``make`` or a compiler are missing, or the driver does not compile; with the
            compiler's words.
    """
    built = module_file(release, folder)
    if os.path.exists(built):
        return built
    source = made_with or headers(release)
    if shutil.which("make") is None:
        raise TargetError("make is not installed; the driver is built with it and a C compiler")
    os.makedirs(os.path.dirname(built), mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=os.path.dirname(built)) as work:
        for name in _SOURCES:
            shutil.copy(os.path.join(_HERE, name), work)
        # type information of modules is made from the kernel's own file, which headers do not contain
        command = ["make", "-s", "-C", source, f"M={work}", "CONFIG_DEBUG_INFO_BTF_MODULES=", "modules"]
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, errors="replace", timeout=_SECONDS,
            stdin=subprocess.DEVNULL,
        )  # fmt: skip
        made = os.path.join(work, "anyprobe.ko")
        if done.returncode or not os.path.exists(made):
            said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-_LINES:])
            raise TargetError(f"the driver does not compile for Linux {release}:\n{said}")
        os.replace(made, built)  # whole or not at all: another process may build the same
    return built
