"""The functions that just-in-time compilers tell of: ``/tmp/perf-PID.map``, a line for each with start, size and name.

Node writes it with ``--perf-basic-prof``, Python with ``-X perf``, Java by an agent; perf reads it, too. Code that has
taken the place of other code comes later in the file.
"""

import os
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from contextlib import suppress

from anyprobe.target.system import gateway, procfs

_LINE = re.compile(r"([0-9a-fA-F]+) ([0-9a-fA-F]+) (.+)")
_MOST_BYTES = 1 << 28


def compiled_names(pid: int, addresses: Iterable[int]) -> Iterator[tuple[int, str]]:
    """Yield the names of those addresses of a process that are in compiled functions."""
    wanted = sorted(addresses)
    found: dict[int, str] = {}
    for line in _lines(pid):
        match = _LINE.fullmatch(line)
        if match is None:
            continue
        start = int(match[1], 16)
        end = start + int(match[2], 16)
        for address in wanted[bisect_left(wanted, start) :]:
            if address >= end:
                break
            found[address] = match[3]
    yield from found.items()


def _lines(pid: int) -> list[str]:
    """Return the lines of a process's file; none of a file that another user has written."""
    try:
        number = procfs.read_status(pid).get("NSpid", str(pid)).split()[-1]  # as the process knows itself
        path, owner = f"/proc/{pid}/root/tmp/perf-{number}.map", os.stat(f"/proc/{pid}").st_uid
        os.stat(f"/proc/{pid}/root/tmp")
    except OSError:  # it has ended
        path, owner = f"/tmp/perf-{pid}.map", os.geteuid()  # noqa: S108 - where compilers write it
    with suppress(OSError):
        file = gateway.open_file(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(file, "rb") as content:
            if os.fstat(content.fileno()).st_uid == owner:
                return content.read(_MOST_BYTES).decode("utf-8", "surrogateescape").splitlines()
    return []
