"""Whether threads have their ids where generated code reads them: for ``ctx.tid``, and to tell threads apart."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from anyprobe.core.errors import UnsupportedTarget
from anyprobe.core.memory import MemoryFault
from anyprobe.data.layouts.layout import TID_OFFSET
from anyprobe.target.system import procfs

if TYPE_CHECKING:
    from anyprobe.splice.regions.access import Access
    from anyprobe.target.base import RunningProcess


class ThreadIds:
    """Checks it once, where ids are wanted; in a program that has not yet begun as soon as its libraries are mapped."""

    def __init__(self, access: "Access", process: "RunningProcess") -> None:
        """Check nothing yet."""
        self._access, self._process = access, process
        self._wanted = self._checked = False

    def want(self) -> None:
        """Want ids.

        Raises:
            UnsupportedTarget: the C library keeps them elsewhere.
        """
        self._wanted = True
        if not self._checked:
            self._checked = self._are_kept()

    def recheck(self, reads_word: Callable[[int], bool]) -> None:
        """See to what could not be seen in a program that had not yet begun; its libraries are mapped by now.

        ``reads_word``: whether the C library reads a word of the thread's control block, by its offset.
        """
        if self._wanted and not self._checked and not reads_word(TID_OFFSET):
            raise UnsupportedTarget("ids of threads: this C library does not keep them where glibc does")
        self._checked = self._wanted

    def _are_kept(self) -> bool:
        """Return whether each thread has its id there, false if a thread has not begun; raise if not."""
        with self._access.stop("prepare") as stop:
            for thread in stop.threads:
                if thread.pid != self._process.pid:  # a child of vfork has its parent's control block
                    continue
                if thread.registers.fs_base == 0:
                    return False
                if self._id_at(thread.registers.fs_base + TID_OFFSET) != _own_id(thread.tid):
                    detail = f"ids of threads: thread {thread.tid} does not have its own where glibc keeps it"
                    raise UnsupportedTarget(detail)
        return True

    def _id_at(self, place: int) -> int:
        """Return the id in a thread's control block, 0 where nothing is mapped, which no thread has."""
        try:
            return int.from_bytes(self._process.mem.read(place, 4), "little")
        except MemoryFault:
            return 0


def _own_id(tid: int) -> int:
    """Return the id by which a thread knows itself: in a container that is another one than here."""
    try:
        return procfs.own_id(tid)
    except OSError:
        return tid
