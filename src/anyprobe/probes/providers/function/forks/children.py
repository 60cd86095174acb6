"""The fork children of a session that count in blocks of their own, and what each process of it has counted."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from anyprobe.data.snapshots.processes import Key, ProcessCounts, ProcessInfo
from anyprobe.journal.installed import processes_with_splices
from anyprobe.journal.memfds import is_ours
from anyprobe.splice.regions.code_region import SlotBank
from anyprobe.target.process.tracee import all_ended, readable
from anyprobe.target.system import gateway, procfs

if TYPE_CHECKING:
    from anyprobe.data.readers.reader import BankReader, ForkChild
    from anyprobe.data.snapshots.processes import TargetInfo
    from anyprobe.data.snapshots.snapshot import FunctionTiming
    from anyprobe.splice.regions.banks import Hook

Sites = Sequence[tuple[Key, "Sequence[Hook]", int]]
"""The key of each site, where it counts and has counted, and all its hits."""


_MOST_WATCHED = 256
"""Children of which a descriptor is kept at once."""


class Children:
    """Knows which process each block belongs to, by when that began: numbers of processes are given out again."""

    def __init__(self, pid: int, exe: str) -> None:
        """Know the target itself."""
        self._pid, self._exe = pid, exe
        self.generation = 1
        """Which program of its process it runs."""
        self._started: float | None = None
        self._blocks: dict[tuple[int, ForkChild], ProcessInfo] = {}
        self._told: set[tuple[int, ForkChild]] = set()
        """The blocks of which it is known that their process has ended."""
        self._descriptors: dict[int, tuple[int, float]] = {}
        """By process: what the kernel tells its end by, and when it began."""
        self._killed: dict[int, int] = {}

    def killed(self) -> Mapping[int, int]:
        """Return the wait statuses of children that signals have ended, of those that were seen alive."""
        for pid, (descriptor, started) in list(self._descriptors.items()):
            if readable(descriptor, 0):
                status = _status_of(pid, started, descriptor)
                gateway.close(self._descriptors.pop(pid)[0])
                if status is not None and os.WIFSIGNALED(status):
                    self._killed[pid] = status
        return self._killed

    def close(self) -> None:
        """Watch for the ends of children no longer."""
        self.killed()
        while self._descriptors:
            gateway.close(self._descriptors.popitem()[1][0])

    def _watch(self, pid: int, started: float) -> None:
        if pid in self._descriptors or len(self._descriptors) >= _MOST_WATCHED:
            return
        with suppress(OSError):
            self._descriptors[pid] = gateway.pidfd_open(pid), started
            if _start_of(pid) != started:  # it has ended meanwhile: the number may be another one's
                gateway.close(self._descriptors.pop(pid)[0])

    def begin(self) -> None:
        """Note when the target began, as long as it is there."""
        if self._started is None:
            self._started = _start_of(self._pid)

    def counts(
        self,
        target: "TargetInfo",
        sites: Sites,
        reader_of: "Callable[[SlotBank], BankReader]",
        *,
        listed: bool = True,
        timings: "Mapping[ProcessInfo | None, Sequence[FunctionTiming]] | None" = None,
    ) -> tuple[ProcessCounts, ...]:
        """Return what each process has counted: the target, with all that is not of a known child, comes first.

        ``listed``: whether there are children; else all hits are the target's. ``timings``: the calls of each process,
        those of the target under None.
        """
        timings = timings or {}
        by_child: dict[ProcessInfo, Counter[Key]] = {}
        own: Counter[Key] = Counter()
        for key, _, hits in sites:
            own[key] += hits
        banks = {id(hook.bank): hook.bank for _, hooks, _ in sites for hook in hooks if isinstance(hook.bank, SlotBank)}
        for bank in banks.values() if listed else ():
            reader = reader_of(bank)
            there = reader.forked()
            self.note(bank, there)
            if not there:
                continue
            keys: dict[int, list[Key]] = {}
            for key, hooks, _ in sites:
                for hook in hooks:
                    if hook.bank is bank:
                        keys.setdefault(reader.counter_index(hook.offset), []).append(key)
            for child in there:
                counted = by_child.setdefault(self._blocks[id(bank), child], Counter())
                for index, hits in reader.hits_of(child).items():
                    for key in keys.get(index, ()):
                        counted[key] += hits
                        own[key] -= hits
        itself = ProcessInfo(
            self._pid, self._exe, self.generation, self._started, exited=target.shell_status, alive=target.alive
        )
        for process in timings:
            if process is not None:
                by_child.setdefault(process, Counter())
        timed = {None: timings.get(None, ()), **timings}
        return (ProcessCounts(itself, +own, tuple(timed[None])), *self._listed(by_child, timed))

    def apart(self, sites: Sites, reader_of: "Callable[[SlotBank], BankReader]") -> list[int]:
        """Return for each site how many of its hits are known to be of fork children."""
        found = []
        theirs: dict[int, Counter[int]] = {}
        for _, hooks, _ in sites:
            hits = 0
            for hook in hooks:
                bank = hook.bank
                if not isinstance(bank, SlotBank):
                    continue
                reader = reader_of(bank)
                if id(bank) not in theirs:
                    counted = theirs[id(bank)] = Counter[int]()
                    for child in reader.forked():
                        counted.update(reader.hits_of(child))
                hits += theirs[id(bank)][reader.counter_index(hook.offset)]
            found.append(hits)
        return found

    def _listed(
        self,
        by_child: "dict[ProcessInfo, Counter[Key]]",
        timings: "Mapping[ProcessInfo | None, Sequence[FunctionTiming]]",
    ) -> Iterable[ProcessCounts]:
        for child, counted in by_child.items():
            is_alive = child.started is not None and _start_of(child.pid) == child.started
            yield ProcessCounts(replace(child, alive=is_alive), counted, tuple(timings.get(child, ())))

    def end(self, bank: SlotBank, child: "ForkChild", kept: "ForkChild") -> None:
        """Note under what the counts of a child are kept from now on."""
        self._blocks[id(bank), kept] = self._blocks.pop((id(bank), child))

    def of(self, bank: SlotBank, child: "ForkChild") -> ProcessInfo:
        """Return the process that has blocks of its own."""
        self.note(bank, [child])
        return self._blocks[id(bank), child]

    def numbers(self) -> frozenset[int]:
        """Return the ids of all fork children that have blocks, whether they live or not."""
        return frozenset(each.pid for each in self._blocks.values())

    def alive(self) -> list[tuple[int, float | None]]:
        """Return the fork children that have blocks and live, as far as is known: each with when it began."""
        known = {(each.pid, each.started) for each in self._blocks.values() if each.started is not None}
        return sorted(each for each in known if _start_of(each[0]) == each[1])

    def ended(self, bank: SlotBank, there: "Iterable[ForkChild]") -> "list[ForkChild]":
        """Return the children that have been seen alive, and have ended; each one once."""
        alive, found = {*self.alive()}, []
        for child in there:
            process = self._blocks.get((id(bank), child))
            if process is None or process.started is None or child.ended or (id(bank), child) in self._told:
                continue
            if (process.pid, process.started) not in alive:
                self._told.add((id(bank), child))
                found.append(child)
        return found

    def never_seen(self, bank: SlotBank, there: "Iterable[ForkChild]") -> "list[ForkChild]":
        """Return the children of which no process was ever found, as that of one that ends before it is looked for."""
        found = []
        for child in there:
            process = self._blocks.get((id(bank), child))
            if process is None or process.started is not None or child.ended or (id(bank), child) in self._told:
                continue
            found.append(child)
        return found

    def told(self, bank: SlotBank, ended: "Iterable[ForkChild]") -> None:
        """Note that some have ended, so that it is told once."""
        self._told.update((id(bank), child) for child in ended)

    def note(self, bank: SlotBank, there: "Iterable[ForkChild]") -> None:
        """Learn whose blocks are, which threads by these numbers have made; the process's, where it is gone by now."""
        inner: dict[int, set[int]] | None = None
        for child in there:
            if (id(bank), child) not in self._blocks:
                pid = _process_of(child.tid, bank.arena.inode)
                if pid is None:
                    inner = _by_own_number(self._pid, bank.arena.inode) if inner is None else inner
                    found = inner.get(child.tid, set())
                    pid = next(iter(found)) if len(found) == 1 else None
                started = None if pid is None else _start_of(pid)
                if pid is not None and started is not None:
                    self._watch(pid, started)
                pid = child.tid if pid is None else pid
                self._blocks[id(bank), child] = ProcessInfo(pid, self._exe, started=started, alive=False)


def _status_of(pid: int, started: float, descriptor: int) -> int | None:
    """Return the wait status of a process that has ended, None where the kernel does not tell it (before Linux 6.15).

    Until its parent has waited for it ``/proc`` has it.
    """
    with suppress(OSError):
        stat = procfs.read_stat(pid)
        if stat.ended and round(_booted() + stat.start_time / procfs.TICKS, 2) == started:
            return stat.exit_code
    with suppress(OSError):
        return gateway.pidfd_exit_code(descriptor)
    return None


def _process_of(tid: int, inode: int) -> int | None:
    """Return the process of a thread, by the number that the thread has for itself; None where it is not found.

    In a namespace of its own it has another number here, and its own one may be an unrelated process's: whose it is,
    the memory tells.
    """
    with suppress(OSError, KeyError, ValueError):
        status = procfs.read_status(tid)
        pid = int(status["Tgid"])
        if procfs.own_number(status["NSpid"], tid) == tid and _maps(pid, inode):
            return pid
    return None


def _by_own_number(target: int, inode: int) -> dict[int, set[int]]:
    """Return the fork children of a target by the numbers of their threads in their own namespace, if it has one."""
    found: dict[int, set[int]] = {}
    if not inode or not _has_namespace(target):
        return found
    for pid in processes_with_splices(frozenset({inode})):
        with suppress(OSError, KeyError, ValueError):
            for tid in procfs.read_tasks(pid) if pid != target else ():
                found.setdefault(procfs.own_number(procfs.read_status(tid)["NSpid"], tid), set()).add(pid)
    return found


def _maps(pid: int, inode: int) -> bool:
    """Return whether a process has a session's memory; an inode of 0 cannot be looked for."""
    return not inode or any(each.inode == inode and is_ours(each) for each in procfs.read_mappings(pid))


def _has_namespace(pid: int) -> bool:
    """Return whether the children of a process have other numbers for themselves than they have here."""
    with suppress(OSError):
        return gateway.readlink(f"/proc/{pid}/ns/pid_for_children") != gateway.readlink("/proc/self/ns/pid")
    return False


def _start_of(pid: int) -> float | None:
    """Return when a process began, as Unix time that is the same each time it is asked for; None if it is gone."""
    with suppress(OSError):
        stat = procfs.read_stat(pid)
        return None if stat.ended and all_ended(pid) else round(_booted() + stat.start_time / procfs.TICKS, 2)
    return None


_boot: list[float] = []


def _booted() -> float:
    if not _boot:
        _boot.append(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))
    return _boot[0]
