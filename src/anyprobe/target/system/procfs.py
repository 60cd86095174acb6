"""Readers of ``/proc/PID``: maps, stat, status, tasks, auxiliary vector. None of them needs the target stopped."""

import errno
import os
import struct
import time
from collections.abc import Collection, Container
from contextlib import suppress
from typing import NamedTuple

from anyprobe.core.errors import StopTimeout
from anyprobe.target.system import gateway

TICKS = os.sysconf("SC_CLK_TCK")
"""How many of the units of times in ``stat`` a second has."""
_KERNEL_THREAD = 0x200000
_IO_WORKER = 0x10
_LISTING_PATIENCE = 0.2
_DELETED = " (deleted)"
GONE_ERRORS = frozenset({errno.ENOENT, errno.ESRCH})


class Mapping(NamedTuple):
    """One line of ``/proc/PID/maps``."""

    start: int
    end: int
    perms: str
    offset: int
    device: str
    inode: int
    path: str
    deleted: bool

    @property
    def readable(self) -> bool:
        """Whether the program may read it."""
        return self.perms[0] == "r"

    @property
    def writable(self) -> bool:
        """Whether the program may write it."""
        return self.perms[1] == "w"

    @property
    def executable(self) -> bool:
        """Whether the program may execute it."""
        return self.perms[2] == "x"

    @property
    def private(self) -> bool:
        """Whether writes stay in this process."""
        return self.perms[3] == "p"


class TaskStat(NamedTuple):
    """The fields of ``/proc/PID/stat`` that anyprobe uses."""

    comm: str
    state: str
    parent: int
    flags: int
    threads: int
    start_time: int
    start_code: int
    start_stack: int
    start_heap: int
    """Where the heap of ``brk`` begins or will begin; 0 where we may not know."""
    exit_code: int = 0
    """The wait status of one that has ended; 0 where we may not know."""

    @property
    def ended(self) -> bool:
        """Whether it is a zombie or going."""
        return self.state in "ZX"

    @property
    def running(self) -> bool:
        """Whether it runs, or would if it had a processor."""
        return self.state == "R"

    @property
    def kernel_thread(self) -> bool:
        """Whether it has no user memory."""
        return bool(self.flags & _KERNEL_THREAD)

    @property
    def worker(self) -> bool:
        """Whether it is a kernel worker listed among the threads: it never runs user code and has no user registers."""
        return bool(self.flags & _IO_WORKER) or self.comm.startswith("iou-")


_FIRST_NAMESPACE = "pid:[4026531836]"
"""The kernel's first namespace of processes, whose number is always the same."""
_UNLIMITED = 1 << 62
_USUAL_MAPPINGS = 65530
"""The kernel's default for ``vm.max_map_count``."""


def read_file(path: str) -> bytes:
    """Return a whole small file."""
    fd = gateway.open_file(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := gateway.read(fd, 1 << 16):
            parts.append(part)
        return b"".join(parts)
    finally:
        gateway.close(fd)


def _read_line(path: str) -> bytes:
    """Return a file of one line, without asking for its end."""
    fd = gateway.open_file(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        content = gateway.read(fd, 4096)
        while content and content[-1] != 10:  # a newline
            more = gateway.read(fd, 4096)
            if not more:
                break
            content += more
        return content
    finally:
        gateway.close(fd)


def read_stat(pid: int, tid: int | None = None) -> TaskStat:
    """Return the state of a process, or of one of its threads."""
    path = f"/proc/{pid}/stat" if tid is None else f"/proc/{pid}/task/{tid}/stat"
    return parse_stat(_read_line(path))


def is_alive(pid: int) -> bool:
    """Return whether a process is there, and no zombie."""
    try:
        return not read_stat(pid).ended
    except OSError:
        return False


def parse_stat(content: bytes) -> TaskStat:
    """Read the text of a stat file; the name may hold anything, parentheses too."""
    head, _, tail = content.rpartition(b")")
    fields = tail.split()
    return TaskStat(
        comm=os.fsdecode(head.partition(b"(")[2]),
        state=chr(fields[0][0]),
        parent=int(fields[1]),
        flags=int(fields[6]),
        threads=int(fields[17]),
        start_time=int(fields[19]),
        start_code=int(fields[23]),
        start_stack=int(fields[25]),
        start_heap=int(fields[44]),
        exit_code=int(fields[49]),
    )


def read_status(pid: int) -> dict[str, str]:
    """Return ``/proc/PID/status`` as a dictionary."""
    return parse_status(read_file(f"/proc/{pid}/status"))


def read_status_field(pid: int, name: str) -> str:
    """Return one field of ``/proc/PID/status``, nothing if there is none: it takes a tenth of reading them all."""
    _, _, rest = read_file(f"/proc/{pid}/status").partition(b"\n%s:\t" % name.encode())
    return rest.partition(b"\n")[0].decode().strip()


def is_filtered(pid: int, tid: int) -> bool:
    """Return whether a thread's system calls are filtered (seccomp), or restricted to the strict mode's."""
    content = read_file(f"/proc/{pid}/task/{tid}/status")
    return b"\nSeccomp:\t" in content and b"\nSeccomp:\t0\n" not in content


def is_first_namespace() -> bool:
    """Return whether ids of processes are those that the kernel itself knows, as in no container."""
    return gateway.readlink("/proc/self/ns/pid") == _FIRST_NAMESPACE


def own_number(numbers: str, number: int) -> int:
    """Return the id by which a task knows itself, which in a namespace of its own is another one than here.

    ``numbers``: ``NSpid`` of its status; where there is none, it is ``number``.
    """
    return int(numbers.rsplit(maxsplit=1)[-1]) if numbers else number


def own_id(tid: int) -> int:
    """Return the id by which a task knows itself, read from its status."""
    return own_number(read_status_field(tid, "NSpid"), tid)


def stack_limit(pid: int) -> int:
    """Return how far the main stack of a process may grow, in bytes."""
    return _limit(pid, "Max stack size")


def limits_address_space(pid: int) -> bool:
    """Return whether a process may only map so much (``ulimit -v``)."""
    try:
        return _limit(pid, "Max address space") < _UNLIMITED
    except OSError:  # it has just ended
        return False


def _limit(pid: int, name: str) -> int:
    for line in os.fsdecode(read_file(f"/proc/{pid}/limits")).splitlines():
        if line.startswith(name):
            soft = line.removeprefix(name).split()[0]
            return _UNLIMITED if soft == "unlimited" else int(soft)
    return 0


def locks_memory(pid: int) -> bool:
    """Return whether most memory of a process is never paged out: what it maps may have to be there at once, too.

    One that is gone locks none.
    """
    try:
        status = read_status(pid)
    except OSError:
        return False
    locked, mapped = (int(status.get(name, "0 kB").split()[0]) for name in ("VmLck", "VmSize"))
    return 2 * locked > mapped


def parse_status(content: bytes) -> dict[str, str]:
    """Read the text of a status file."""
    pairs = (line.partition(":\t") for line in os.fsdecode(content).splitlines())
    return {key: value.strip() for key, _, value in pairs}


def now() -> int:
    """Return the time as ``TaskStat.start_time`` has it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) * TICKS // 1_000_000_000


def group_of(tid: int) -> int:
    """Return the process of a task; raise ``OSError`` where it is gone."""
    return int(read_status_field(tid, "Tgid"))


def read_processes() -> list[int]:
    """Return the ids of all processes that this process can see, in no particular order."""
    return [int(name) for name in gateway.listdir("/proc") if name.isdigit()]


def read_tasks(pid: int) -> list[int]:
    """Return the ids of the tasks of a process, kernel workers included; see ``is_whole``."""
    return [int(name) for name in gateway.listdir(f"/proc/{pid}/task")]


def count_tasks(pid: int) -> int:
    """Return how many tasks a process has.

    The links of the directory that lists them are so many and the usual two (``proc_task_getattr``): to be had in a
    fifth of the time in which ``stat`` is, for which the times of all threads are added up.
    """
    return gateway.stat(f"/proc/{pid}/task").st_nlink - 2


_MOST_WAITED = 64
"""Threads that are asked how long they have waited: those that were there first."""


class Scheduled(NamedTuple):
    """What a thread had of processors by some moment, in nanoseconds."""

    ran: int
    waited: int
    """For how long it was ready to run and did not."""


def scheduled(pid: int) -> dict[int, Scheduled]:
    """Return what threads of a process have had of processors, of the first ones."""
    found = {}
    with suppress(OSError):
        for tid in sorted(read_tasks(pid))[:_MOST_WAITED]:
            with suppress(OSError, ValueError, IndexError):  # it has ended, or the kernel does not count this
                found[tid] = _scheduled(pid, tid)
    return found


def _scheduled(pid: int, tid: int) -> Scheduled:
    ran, waited = read_file(f"/proc/{pid}/task/{tid}/schedstat").split()[:2]
    return Scheduled(int(ran), int(waited))


def ran_on_processors(pid: int, number: int) -> int:
    """Return for how many nanoseconds a thread has been on processors, by its own id; 0 if there is none."""
    with suppress(OSError, ValueError, IndexError):
        if own_id(number) == number:
            return _scheduled(pid, number).ran
    with suppress(OSError, ValueError, IndexError):  # a container has numbers of its own
        return next((_scheduled(pid, tid).ran for tid in read_tasks(pid) if own_id(tid) == number), 0)
    return 0


def stolen_seconds() -> float | None:
    """Return for how long a hypervisor has had processors of this machine do something else, all added up."""
    with suppress(OSError, ValueError, IndexError):
        return int(read_file("/proc/stat").split(None, 9)[8]) / os.sysconf("SC_CLK_TCK")
    return None


def read_all_tasks(pid: int) -> list[int]:
    """Return the ids of all tasks, none left out; ``StopTimeout`` where they end faster than they can be listed."""
    deadline = time.monotonic() + _LISTING_PATIENCE
    while not is_whole(pid, tids := read_tasks(pid)):
        if time.monotonic() > deadline:
            raise StopTimeout(f"threads of process {pid} end all the time, so that no list of them was whole")
    return tids


def is_whole(pid: int, tids: Collection[int], stopped: Container[int] = ()) -> bool:
    """Return whether a list of tasks named all of them; ``stopped`` are those that cannot have ended since.

    The kernel ends a listing early when the task that it has come to exits at that moment (``next_tid``). But if, after
    the tasks have been counted, as many of the listed still live, then they are all.
    """
    number = count_tasks(pid)
    try:
        for tid in tids:
            if tid not in stopped:
                read_stat(pid, tid)
    except OSError as error:
        if error.errno not in GONE_ERRORS:
            raise
        return False
    return number == len(tids)


def voice(pid: int) -> int:
    """Return the id under which ``/proc`` shows the memory of a process.

    It is that of another thread where the first one has ended (``pthread_exit`` in ``main``) and the program runs on.
    """
    with suppress(OSError):
        if read_stat(pid).ended:
            return next((tid for tid in read_tasks(pid) if tid != pid and not read_stat(pid, tid).ended), pid)
    return pid


_last_maps: tuple[bytes, list[Mapping]] = (b"", [])
_known_lines: dict[str, Mapping] = {}
_MOST_LINES = 1 << 17
_LAST_LINE = b"[vsyscall]\n"
"""How a memory map ends on most machines: it is above all that a process maps."""


def read_mappings(pid: int) -> list[Mapping]:
    """Return the memory map. What was read last is not parsed again: within a stop every microsecond counts."""
    global _last_maps  # noqa: PLW0603 - a memo of one
    content = _whole_maps(pid) or _whole_maps(voice(pid))
    last, parsed = _last_maps
    if content != last:
        parsed = parse_maps(content)
        _last_maps = content, parsed
    return list(parsed)


def _whole_maps(pid: int) -> bytes:
    """Return the text of the memory map, nothing where the process ends: the kernel then gives a part of it."""
    content = read_file(f"/proc/{pid}/maps")
    return content if content.endswith(_LAST_LINE) or _read_line(f"/proc/{pid}/maps") else b""


def most_mappings() -> int:
    """Return how many mappings a process may have."""
    try:
        return int(read_file("/proc/sys/vm/max_map_count"))
    except (OSError, ValueError):
        return _USUAL_MAPPINGS


def parse_maps(content: bytes) -> list[Mapping]:
    """Read the text of a maps file. Most lines were there at the last look, and are not parsed again."""
    mappings = []
    make, known = Mapping._make, _known_lines
    if len(known) > _MOST_LINES:
        known.clear()
    for line in os.fsdecode(content).split("\n"):
        mapping = known.get(line)
        if mapping is not None:
            mappings.append(mapping)
            continue
        if not line:
            continue
        fields = line.split(" ", 5)
        start, _, end = fields[0].partition("-")
        path = fields[5].lstrip(" ") if len(fields) == 6 else ""
        deleted = path.endswith(_DELETED)
        if deleted:
            path = path[: -len(_DELETED)]
        if "\\012" in path:
            path = path.replace("\\012", "\n")
        known[line] = mapping = make(
            (int(start, 16), int(end, 16), fields[1], int(fields[2], 16), fields[3], int(fields[4]), path, deleted)
        )
        mappings.append(mapping)
    return mappings


def read_auxv(pid: int) -> dict[int, int]:
    """Return the auxiliary vector."""
    return parse_auxv(read_file(f"/proc/{voice(pid)}/auxv"))


def parse_auxv(content: bytes) -> dict[int, int]:
    """Read an auxiliary vector."""
    vector = {}
    for key, value in struct.iter_unpack("<QQ", content[: len(content) // 16 * 16]):
        if key == 0:
            break
        vector[key] = value
    return vector


class BlockedCall(NamedTuple):
    """The system call that a sleeping thread is in."""

    number: int
    arguments: tuple[int, ...]
    stack: int
    pc: int


def read_blocked_call(pid: int, tid: int) -> BlockedCall | None:
    """Return the system call a thread sleeps in, or ``None`` where it runs or the kernel does not say."""
    try:
        fields = read_file(f"/proc/{pid}/task/{tid}/syscall").split()
    except OSError:
        return None
    if len(fields) != 9:
        return None
    numbers = [int(field, 16) for field in fields[1:]]
    return BlockedCall(int(fields[0]), tuple(numbers[:6]), numbers[6], numbers[7])


def count_threads(pid: int) -> int:
    """Return how many threads a process has, 1 where that is not told."""
    try:
        return int(read_status(pid).get("Threads", "1"))
    except (OSError, ValueError):
        return 1


def read_last_pid() -> int:
    """Return the pid given out last in this pid namespace: it moves whenever a process or thread is created."""
    return int(_read_line("/proc/loadavg").split()[-1])
