"""Kprobes by tracefs, for kernels and containers where perf has none: events that are defined, opened and removed.

A definition outlives the process that made it, though nothing is set in the kernel any more as soon as the event is
closed. So its group says whose it is, and those of processes that are gone are removed before the next one is made.
"""

import errno
import itertools
import os
import re
from collections.abc import Iterator

from anyprobe.core.errors import KernelRefused
from anyprobe.target.kernel import tracefs

_GROUP = "anyprobe_"
_DEFINITION = rf"(?m)^[pr]\d*:({_GROUP}(\d+)/\S+)"
_numbers = itertools.count()


def define(address: int, *, returning: bool = False) -> tuple[str, int]:
    """Define a kprobe or kretprobe; return its name for ``remove``, and its number, by which perf opens it."""
    for name in list(_orphans()):
        remove(name)
    name = f"{_GROUP}{os.getpid()}/at_{next(_numbers)}"
    _write(f"{'r' if returning else 'p'}:{name} {address:#x}")
    number = tracefs.tracepoint_number(*name.split("/"))
    if number is None:
        raise KernelRefused("define a kprobe in tracefs", errno.ENOENT)
    return name, number


def remove(name: str) -> None:
    """Remove a definition that no event is open of."""
    _write(f"-:{name}")


def _orphans() -> Iterator[str]:
    """Yield the definitions of processes that are gone."""
    try:
        with open(_path()) as file:
            listed = file.read()
    except OSError as failure:
        if failure.errno == errno.ENOENT:  # tracefs itself is there
            detail = "it was built without CONFIG_KPROBE_EVENTS"
            raise KernelRefused("set a kprobe", failure.errno, detail) from None
        raise KernelRefused("list the kprobes of tracefs", failure.errno or 0) from None
    for name, pid in re.findall(_DEFINITION, listed):
        if not os.path.exists(f"/proc/{pid}"):
            yield name


def _path() -> str:
    return f"{tracefs.root()}/kprobe_events"


def _write(command: str) -> None:
    try:  # not by Python's own mode for appending: that looks for the end, which there is none
        file = os.open(_path(), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        try:
            os.write(file, command.encode() + b"\n")
        finally:
            os.close(file)
    except OSError as failure:
        raise KernelRefused("change the kprobes of tracefs", failure.errno or 0) from None
