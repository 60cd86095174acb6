"""The thread pointers of running threads, without stopping them: glibc registers a list beside each control block.

``get_robust_list`` tells where a thread's list of robust mutexes begins, which in glibc's ``struct pthread`` lies
after the thread's id, at a distance from the thread pointer that is the same for all threads.
"""

import time

from anyprobe.core.memory import MemoryFault
from anyprobe.target.base import ProcessTarget
from anyprobe.target.system import gateway, procfs

_ID_BEFORE_LIST = 16
"""``pid_t tid``, another one, and a pointer stand before the list (``nptl/descr.h``)."""
_SELF = (0, 16)
"""Words of the control block that point to itself."""
_LEAST, _MOST = 0x100, 0x800
"""Between which the distance lies in every glibc."""
_PATIENCE, _BUSY_PATIENCE = 0.2, 1.0
"""Seconds to wait for a thread to register its list, and for one that only waits for a processor to do so."""
_PAUSE = 0.0005


def thread_pointers(process: ProcessTarget) -> list[int] | None:
    """Return the thread pointers of all threads; ``None`` where that cannot be told for certain.

    A thread that has just begun has not registered its list yet: it is asked again for a moment.
    """
    with process.translated("looking for thread pointers of"):
        distance = _distance(process, gateway.robust_list(process.pid))
        if distance is None:
            return None
        began = time.monotonic()
        while True:
            found = _pointers(process, distance)
            if not isinstance(found, procfs.TaskStat):
                return found
            if time.monotonic() - began > (_BUSY_PATIENCE if found.running else _PATIENCE):
                return None
            time.sleep(_PAUSE)


def _distance(process: ProcessTarget, head: int) -> int | None:
    """Return how far after its thread pointer a thread has its list."""
    try:
        before = process.mem.read(head - _MOST, _MOST)
    except MemoryFault:
        return None
    found = [
        distance
        for distance in range(_LEAST, _MOST, 8)
        if all(_word(before, _MOST - distance + at) == head - distance for at in _SELF)
    ]
    return found[0] if len(found) == 1 else None


def _word(content: bytes, at: int) -> int:
    return int.from_bytes(content[at : at + 8], "little")


def _pointers(process: ProcessTarget, distance: int) -> list[int] | procfs.TaskStat:
    """Return the thread pointers, or a thread of which it is not known."""
    found: list[int] = []
    for tid in process.all_threads():
        try:
            stat = procfs.read_stat(process.pid, tid)
            if stat.worker or stat.ended:
                continue
            pointer = gateway.robust_list(tid) - distance
        except OSError as error:
            if error.errno in procfs.GONE_ERRORS:
                continue
            raise
        if not _is_control_block(process, pointer, tid, distance):
            return stat
        found.append(pointer)
    return found


def _is_control_block(process: ProcessTarget, pointer: int, tid: int, distance: int) -> bool:
    try:
        selves = [int.from_bytes(process.mem.read(pointer + at, 8), "little") for at in _SELF]
        return selves == [pointer, pointer] and _id_at(process, pointer + distance) == tid
    except MemoryFault:
        return False


def _id_at(process: ProcessTarget, head: int) -> int:
    return int.from_bytes(process.mem.read(head - _ID_BEFORE_LIST, 4), "little")
