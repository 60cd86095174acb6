"""Which task it is that waits in a gate: it gives its number as it knows it, which in a namespace is another one."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import chain

from anyprobe.journal.memfds import is_ours
from anyprobe.target.system import gateway, procfs

_FUTEX = 202


def task_that_waits(tid: int, inodes: frozenset[int], waits_at: Callable[[int], bool]) -> int | None:
    """Return the task that waits at one of a gate's addresses and calls itself ``tid``; None if there is none.

    ``inodes``: the memory that it has, which tells where it has not come to sleep yet.
    """
    for candidate in chain((tid,), _others_called(tid)):
        if is_asleep_at(candidate, waits_at):
            return candidate
        with suppress(OSError):
            if any(each.inode in inodes and is_ours(each) for each in procfs.read_mappings(candidate)):
                return candidate
    return None


def child_that_waits(pid: int, tid: int, inodes: frozenset[int], waits_at: Callable[[int], bool]) -> int | None:
    """Return the fork child of a program whose thread ``tid`` waits; None where that is in the program's own memory."""
    task = task_that_waits(tid, inodes, waits_at)
    found = pid if task is None else procfs.group_of(task)
    if found == pid:
        return None
    with suppress(OSError):  # the program itself may have ended
        if gateway.kcmp_vm(procfs.voice(pid), found):
            return None
    return found


def is_asleep_at(tid: int, waits_at: Callable[[int], bool]) -> bool:
    """Return whether a task sleeps at one of a gate's addresses."""
    with suppress(OSError, KeyError, ValueError):
        call = procfs.read_blocked_call(procfs.group_of(tid), tid)
        return call is not None and call.number == _FUTEX and waits_at(call.arguments[0])
    return False


def _others_called(tid: int) -> Iterator[int]:
    """Yield processes that have an id in a namespace of their own, as they call themselves."""
    for pid in procfs.read_processes():
        with suppress(OSError):
            numbers = procfs.read_status(pid).get("NSpid", "").split()
            if len(numbers) > 1 and int(numbers[-1]) == tid:
                yield pid
