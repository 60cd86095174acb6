"""The kernel's switches of kprobes, and what else decides whether it takes probes."""

import errno
import gzip
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Final

from anyprobe.core.errors import KernelRefused, PermissionDenied, TargetError

_LOCKDOWN = "/sys/kernel/security/lockdown"
_CONFIGURATIONS = ("/proc/config.gz", "/boot/config-{}", "/lib/modules/{}/config", "/lib/modules/{}/build/.config")
_OPTION = re.compile(r"^CONFIG_(\w+)=(.*)$", re.MULTILINE)
CAP_SYS_MODULE: Final = 16
CAP_SYS_ADMIN: Final = 21
CAP_PERFMON: Final = 38
CAP_BPF: Final = 39


@dataclass(frozen=True, slots=True)
class Switch:
    """A file of the kernel with 0 or 1 in it."""

    path: str
    what: str
    remedy: str
    """What to do where the file is not there."""

    def read(self) -> bool | None:
        """Return whether it is on, None where there is no such switch or it may not be read."""
        try:
            with open(self.path) as file:
                return file.read().strip() not in {"0", ""}
        except OSError:
            return None

    def write(self, *, on: bool) -> None:
        """Switch; raise ``PermissionDenied`` or ``TargetError`` with what would help."""
        try:
            with open(self.path, "w") as file:
                file.write("1" if on else "0")
        except PermissionError as failure:
            from anyprobe.target.kernel.descriptors import locked_down

            remedy = locked_down(writing=True) if os.geteuid() == 0 else ""
            raise PermissionDenied(self.path, f"{self.path} may not be written", remedy or "be root") from failure
        except OSError as failure:
            if failure.errno == errno.ENOENT:
                raise TargetError(f"{self.path} is not there: {self.remedy}") from None
            raise KernelRefused(f"write {self.path}", failure.errno or errno.EIO) from None

    @contextmanager
    def held(self, *, on: bool) -> Iterator[bool | None]:
        """Switch for a while, and give back the state that was found; what was found is what one is given."""
        found = self.read()
        self.write(on=on)
        try:
            yield found
        finally:
            if found is not None:
                self.write(on=found)


ARMED: Final = Switch(
    "/sys/kernel/debug/kprobes/enabled", "kprobes", "mount debugfs (mount -t debugfs debugfs /sys/kernel/debug), "
    "or the kernel was built without CONFIG_KPROBES",
)  # fmt: skip
"""Whether kprobes are armed at all."""
OPTIMIZATION: Final = Switch(
    "/proc/sys/debug/kprobes-optimization", "jumps in place of traps", "the kernel was built without CONFIG_OPTPROBES"
)
"""Whether kprobes are reached by jumps where that is possible."""
FTRACE: Final = Switch(
    "/proc/sys/kernel/ftrace_enabled", "ftrace", "the kernel was built without CONFIG_DYNAMIC_FTRACE"
)
"""Whether ftrace patches the calls at the beginnings of functions."""


def lockdown() -> str:
    """Return how far the kernel is locked down: ``none``, ``integrity`` or ``confidentiality``."""
    try:
        with open(_LOCKDOWN) as file:
            chosen = re.search(r"\[(\w+)\]", file.read())
    except OSError:
        return "none"
    return chosen[1] if chosen else "none"


@cache
def configuration() -> Mapping[str, str]:
    """Return with which options the kernel was built; nothing where no file tells it."""
    for form in _CONFIGURATIONS:
        path = form.format(os.uname().release)
        try:
            with open(path, "rb") as file:
                data = file.read()
            return dict(_OPTION.findall((gzip.decompress(data) if path.endswith(".gz") else data).decode()))
        except (OSError, ValueError):
            continue
    return {}


def number_at(path: str) -> int | None:
    """Return the number in a file of the kernel, None where there is none."""
    try:
        with open(path) as file:
            return int(file.read())
    except (OSError, ValueError):
        return None


def has_capability(number: int) -> bool:
    """Return whether this process has a capability, or CAP_SYS_ADMIN, which has included it before."""
    held = capabilities()
    return bool(held >> number & 1 or held >> CAP_SYS_ADMIN & 1)


def capabilities() -> int:
    """Return the capabilities that are in effect, a bit each."""
    with open("/proc/self/status") as file:
        return next((int(line.split()[1], 16) for line in file if line.startswith("CapEff:")), 0)
