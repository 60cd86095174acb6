"""The processes whose hits count, where these are not all: some by number, and what they start from then on.

What is started is noted by a program at ``sched_process_fork``, before the new process runs, in a hash map in which the
programs of probes look. A process counts to its very end, so it leaves the map when its task is freed; if
its number is another process's by then, that one's beginning has put its own task there, or taken the number away.
"""

import os
import struct
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from anyprobe.core.code import BpfProgram
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.data.snapshots.processes import TargetInfo
from anyprobe.target.kernel import bpf, btf, programs
from anyprobe.target.kernel.types import Tag
from anyprobe.target.system import gateway

if TYPE_CHECKING:
    from anyprobe.handlers.bpf.assembly import Assembly

LOOK_UP: Final = 1
"""The helper that finds a value in a map."""
_UPDATE, _DELETE, _PROCESS = 2, 3, 14
_ROOM = 32_768
"""Processes at a time, as many as there may be numbers of by themselves."""
_FIRST_NAMESPACE = 0xEFFFFFFC
"""The inode of the namespace whose numbers the kernel itself uses."""
_LOST = struct.pack("<i", -1)
"""The key under which it is counted that there was no room; no process has this number."""
_FOUND, _TABLE, _KEY, _VALUE, _FLAGS, _TASK = 0, 1, 2, 3, 4, 7
"""Registers: of a helper's result, of its parameters, and one that helpers leave."""


class Chosen:
    """The processes whose hits count; all if none is named. With ``children`` also those that they start, and so on.

    Where all count, this process may be left out.
    """

    def __init__(self, pids: Sequence[int] = (), *, children: bool = False, include_self: bool = True) -> None:
        """Choose processes; with ``children``, note from now on what they start."""
        self.pids = tuple(dict.fromkeys(pids))
        self.without = () if pids or include_self or not _has_the_kernels_numbers() else (os.getpid(),)
        """The processes whose hits do not count."""
        self.children = children and bool(pids)
        self.table: int | None = None
        """The map of their numbers, where it changes."""
        self._descriptors: list[int] = []
        self._lost = 0
        if pids:
            from anyprobe.target.process.process import check_exists

            for each in self.pids:
                check_exists(each)
        if pids and not _has_the_kernels_numbers():
            message = "processes have other numbers in the kernel than in this pid namespace"
            raise UnsupportedTarget(f"{message}: hits in some of them alone can be had from outside of it")
        if self.children:
            try:
                self._follow()
            except BaseException:
                self.close()
                raise

    def __bool__(self) -> bool:
        """Whether not all processes count."""
        return bool(self.pids or self.without)

    def of(self, release: str) -> TargetInfo:
        """Return what was probed, as snapshots have it."""
        return TargetInfo(0, "", kernel=release, pids=self.pids, children=self.children, without=self.without)

    def lost(self) -> int:
        """Return how many processes that were started are left out, since there were too many at once."""
        if self.table is None or not self._descriptors:
            return self._lost
        told = bpf.look_up(self.table, _LOST, 8)
        self._lost = 0 if told is None else struct.unpack("<Q", told)[0]
        return self._lost

    def close(self) -> None:
        """Note no more; programs that look in the map keep it."""
        while self._descriptors:
            gateway.close(self._descriptors.pop())

    def _follow(self) -> None:
        types = btf.running().kernel
        task = types.structure("task_struct")
        members = [None if task is None else types.member(task, name) for name in ("pid", "tgid")]
        pid, tgid = (0 if each is None else each.offset for each in members)
        if not pid or not tgid:
            raise UnsupportedTarget("the kernel's types do not tell where a task has its number")
        self.table = bpf.create_hash(4, 8, _ROOM)
        self._descriptors.append(self.table)
        bpf.set_value(self.table, _LOST, bytes(8))
        self._attach(types, "sched_process_fork", _at_a_beginning(tgid))
        self._attach(types, "sched_process_free", _at_an_end(pid, tgid))
        for each in self.pids:
            bpf.set_value(self.table, struct.pack("<I", each), bytes(8))

    def _attach(self, types: btf.Btf, tracepoint: str, program: "Assembly") -> None:
        assert self.table is not None
        numbers = types.find(f"btf_trace_{tracepoint}", Tag.TYPEDEF)
        if not numbers:
            raise UnsupportedTarget(f"the kernel has no type of the tracepoint {tracepoint}")
        code, references = program.finish()
        kind = programs.Kind(programs.PROGRAM_OF_A_FUNCTION, programs.TRACED, numbers[0])
        loaded = programs.load(programs.placed(BpfProgram(code, (), references, 0), {}, {0: self.table}), kind)
        self._descriptors.append(loaded)
        self._descriptors.append(programs.attach_typed(loaded))


def _has_the_kernels_numbers() -> bool:
    """Return whether processes have the numbers here that they have in the kernel: in a namespace they have others."""
    return os.stat("/proc/self/ns/pid").st_ino == _FIRST_NAMESPACE


def _at_a_beginning(tgid: int) -> "Assembly":
    """Return a program for ``sched_process_fork(parent, child)``, which runs in the parent."""
    from anyprobe.handlers.bpf.assembly import FRAME, Assembly

    made = Assembly()
    made.load(_TASK, 1, 8)
    made.call(_PROCESS)
    made.compute_number(">>", _FOUND, 32)
    made.load(_VALUE, _TASK, tgid, 4)
    made.store(FRAME, -8, _VALUE, 4)
    made.go_if("==", _FOUND, _VALUE, "end")  # a thread
    made.store(FRAME, -16, _FOUND, 4)
    _look(made, LOOK_UP, -16)
    made.go_if_number("==", _FOUND, 0, "other")
    made.store(FRAME, -24, _TASK)
    made.copy(_VALUE, FRAME)
    made.compute_number("+", _VALUE, -24)
    made.put(_FLAGS, 0)
    _look(made, _UPDATE, -8)
    made.go_if_number("==", _FOUND, 0, "end")
    made.put(_VALUE, -1)
    made.store(FRAME, -8, _VALUE, 4)
    _look(made, LOOK_UP, -8)
    made.go_if_number("==", _FOUND, 0, "end")
    made.put(_VALUE, 1)
    made.atomic_add(_FOUND, 0, _VALUE)
    made.go("end")
    made.here("other")
    _look(made, _DELETE, -8)
    made.here("end")
    made.put(_FOUND, 0)
    made.leave()
    return made


def _at_an_end(pid: int, tgid: int) -> "Assembly":
    """Return a program for ``sched_process_free(task)``."""
    from anyprobe.handlers.bpf.assembly import FRAME, Assembly

    made = Assembly()
    made.load(_TASK, 1, 0)
    made.load(_KEY, _TASK, pid, 4)
    made.load(_VALUE, _TASK, tgid, 4)
    made.go_if("!=", _KEY, _VALUE, "end")  # a thread
    made.store(FRAME, -8, _KEY, 4)
    _look(made, LOOK_UP, -8)
    made.go_if_number("==", _FOUND, 0, "end")
    made.load(_VALUE, _FOUND, 0)
    made.go_if("!=", _VALUE, _TASK, "end")
    _look(made, _DELETE, -8)
    made.here("end")
    made.put(_FOUND, 0)
    made.leave()
    return made


def _look(made: "Assembly", helper: int, key: int) -> None:
    """Call a helper about a key in the map, which is in the frame."""
    from anyprobe.handlers.bpf.assembly import FRAME

    made.address(_TABLE, 0, table=True)
    made.copy(_KEY, FRAME)
    made.compute_number("+", _KEY, key)
    made.call(helper)
