"""Threads of control that a signal handler has left in the middle of something: user-level threads that are preempted.

Where a handler ends in ``swapcontext``, the frame of its signal stays on a stack that no thread is on, until another
handler comes back to it. Nothing leads to such stacks; the frames are looked for in all memory that a program writes.
That takes a millisecond for some megabytes, so only where the program has handlers and calls what switches contexts.
"""

import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.core.errors import AnyprobeError
from anyprobe.core.memory import MemoryFault
from anyprobe.target.remote.frame import RED_ZONE
from anyprobe.target.remote.saved_frames import frames_in, is_of_breakpoint

if TYPE_CHECKING:
    from anyprobe.target.base import ProcessFacts, StoppedThread
    from anyprobe.target.system.procfs import Mapping

_SWITCHES = (b"\0swapcontext\0", b"\0setcontext\0")
_OPENSSL = b"\0ASYNC_start_job\0"
"""OpenSSL switches contexts for callers of its jobs, and in no handler."""
_LIBC = ("libc.so", "libc-2", "ld-linux", "ld-2", "libpthread")
_LIBC_SIGNALS = 0b11 << 31
"""The two that libc keeps for itself."""
_STRTAB, _STRSZ = 5, 10
_FRAME = 32


def may_park(process: "ProcessFacts", mappings: "Iterable[Mapping]") -> bool:
    """Return whether handlers of the program may leave contexts behind; ``process.parks`` has the answer from then on.

    Not to be asked in a stop the first time: files are read.
    """
    try:
        process.parks = bool(process.handled_signals() & ~_LIBC_SIGNALS) and _switches(process, mappings)
    except OSError:  # it has just ended
        process.parks = False
    if process.parks:  # what looks for them is not imported in a stop
        import anyprobe.splice.apply.recovery.return_addresses  # noqa: F401
    return process.parks


def parked_pcs(process: "ProcessFacts", mappings: "Sequence[Mapping]", threads: "Iterable[StoppedThread]") -> list[int]:
    """Return the pc of everything that looks like a signal frame; raise ``MemoryFault`` if not all can be read.

    ``threads``: the stopped ones. What lies below where one has its own stack is of handlers that have returned. So is
    what a breakpoint has left: the handler is anyprobe's, comes back at once, and has made a patch the pc of its frame.
    """
    if not process.parks:
        return []
    from anyprobe.splice.apply.recovery.return_addresses import TooMuch, may_hold_stacks, present

    found = []
    ends = _ends_of_own_stacks(mappings, threads)
    for mapping in filter(may_hold_stacks, mappings):
        least = ends.get(mapping.start, 0)
        try:
            for low, size in present(process, mapping):
                content = process.mem.read(low, min(size + _FRAME, mapping.end - low))
                frames = frames_in(content)
                found += [pc for at, _, pc in frames if low + at >= least and not is_of_breakpoint(content, at)]
        except (OSError, TooMuch) as error:
            raise MemoryFault(mapping.start, mapping.end - mapping.start) from error
    return found


def _ends_of_own_stacks(mappings: "Sequence[Mapping]", threads: "Iterable[StoppedThread]") -> dict[int, int]:
    """Return how far down stacks are in use that the system has made, each for one thread, by where they are mapped.

    The C library has a thread's control block at the top of its stack and a guard below it: all other memory that has
    stacks is searched, as it may have several (those of coroutines).
    """
    starts = [mapping.start for mapping in mappings]
    ends: dict[int, int] = {}
    for thread in threads:
        pointer = thread.registers.rsp
        index = bisect_right(starts, pointer) - 1
        if index < 1 or not pointer < mappings[index].end:
            continue
        mapping, below = mappings[index], mappings[index - 1]
        guarded = below.end == mapping.start and not (below.readable or below.writable)
        if mapping.path == "[stack]" or (guarded and pointer < thread.registers.fs_base < mapping.end):
            ends[mapping.start] = min(ends.get(mapping.start, mapping.end), pointer - RED_ZONE)
    return ends


def _switches(process: "ProcessFacts", mappings: "Iterable[Mapping]") -> bool:
    files = {(m.path, m.inode) for m in mappings if m.executable and m.path.startswith("/") and not m.deleted}
    return any(_calls_switches(path, _state(path)) for path in (process.root + each for each, _ in files))


def _state(path: str) -> tuple[int, ...]:
    """Return what tells a file with one content from all others."""
    try:
        status = os.stat(path)
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


@lru_cache(maxsize=4096)
def _calls_switches(path: str, state: tuple[int, ...]) -> bool:  # noqa: ARG001 - another file has another answer
    """Return whether an object names a function that switches contexts: as what it calls, or among all if static."""
    if path.rpartition("/")[2].startswith(_LIBC):
        return False
    try:
        elf = ElfFile.open(path)
        if _STRTAB in elf.dynamic:
            names = elf.read(elf.dynamic[_STRTAB], elf.dynamic.get(_STRSZ, 0))
        else:
            section = elf.section(".strtab")
            names = elf.section_bytes(section) if section is not None else b""
    except AnyprobeError:
        return False
    return _OPENSSL not in names and any(each in names for each in _SWITCHES)
