"""Timed calls by thread: all other sums of a snapshot are made of these, so that none differs from them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING, Literal

from anyprobe.data.readers.reader import ForkChild, OneThread
from anyprobe.data.snapshots.processes import ThreadTimes
from anyprobe.data.snapshots.snapshot import FunctionTiming

if TYPE_CHECKING:
    from anyprobe.data.readers.reader import BankReader, Whose
    from anyprobe.data.snapshots.processes import ProcessCounts, ProcessInfo
    from anyprobe.probes.providers.function.forks.children import Children
    from anyprobe.probes.providers.function.probe import Probe, Timed
    from anyprobe.probes.providers.function.reading import BankValues
    from anyprobe.probes.providers.function.timing.thread_names import ThreadNames
    from anyprobe.splice.regions.banks import TimingGroup
    from anyprobe.splice.regions.code_region import SlotBank

    Read = Callable[[Timed, TimingGroup, SlotBank, "Whose"], FunctionTiming]
    Process = ProcessInfo | None
    """None: the target itself."""


class ThreadParts:
    """The calls of all threads, read once."""

    def __init__(self, probes: "Iterable[Probe]", values: "BankValues", children: "Children", read: "Read") -> None:
        """Read them."""
        self._functions: list[FunctionTiming] = []
        self._threads: dict[tuple[Process, int], dict[int, FunctionTiming]] = {}
        """By the numbers of functions."""
        self._called: dict[SlotBank, dict[int, list[Whose]]] = {}
        """By the offsets of records, in which threads they hold anything."""
        for timed in (timed for probe in probes for timed in probe.timed):
            self._add(timed, values, children, read)

    def _add(self, timed: "Timed", values: "BankValues", children: "Children", read: "Read") -> None:
        number, nothing = len(self._functions), list[FunctionTiming]()
        for group in ([timed.group] if timed.was_armed else []) + timed.earlier:
            bank = group.bank
            if bank is None:
                continue
            reader = values.reader(bank)
            whole = read(timed, group, bank, OneThread("target", 0) if reader.by_thread else "all")
            nothing.append(_without_calls(whole))
            for whose in self._threads_of(reader, bank, group.offset):
                found = replace(read(timed, group, bank, whose), callers=0, callers_refused=())
                if found.was_called:
                    own = self._threads.setdefault(_thread(whose, bank, children), {})
                    own[number] = own[number].merged(found) if number in own else found
        if nothing:
            self._functions.append(reduce(FunctionTiming.merged, nothing))

    def _threads_of(self, reader: "BankReader", bank: "SlotBank", record: int) -> "Sequence[Whose]":
        if not reader.by_thread:
            return ("all",)  # goroutines are of no thread
        if bank not in self._called:
            called: dict[int, list[Whose]] = {}
            self._called[bank] = called
            everyone: list[ForkChild | Literal["target"]] = [*reader.copies, "target"]
            for process in everyone:
                for tid, counts in reader.compact_threads(process).items():
                    for offset in counts.records():
                        called.setdefault(offset, []).append(OneThread(process, tid))
        return self._called[bank].get(record, ())

    def functions(self) -> tuple[FunctionTiming, ...]:
        """Return all functions, with the sums of all threads."""
        parts: list[list[FunctionTiming]] = [[] for _ in self._functions]
        for own in self._threads.values():
            for number, timing in own.items():
                parts[number].append(timing)
        return tuple(each.merged(*own) for each, own in zip(self._functions, parts, strict=True))

    def by_process(self) -> "dict[Process, list[FunctionTiming]]":
        """Return the sums of the threads of each process."""
        parts: dict[Process, dict[int, list[FunctionTiming]]] = {None: {}}
        for (process, _), own in self._threads.items():
            sums = parts.setdefault(process, {})
            for number, timing in own.items():
                sums.setdefault(number, []).append(timing)
        return {process: [each[0].merged(*each[1:]) for each in sums.values()] for process, sums in parts.items()}

    def threads(self, counts: "Sequence[ProcessCounts]", names: "ThreadNames") -> tuple[ThreadTimes, ...]:
        """Return the calls of each thread; ``counts``: of all processes, that of the target first."""
        processes = {(each.process.pid, each.process.started): each.process for each in counts[1:]}
        found = []
        for (process, tid), own in self._threads.items():
            known = counts[0].process if process is None else processes.get((process.pid, process.started), process)
            found.append(ThreadTimes(known, tid, names.of(known.pid, tid), tuple(own.values())))
        return tuple(sorted(found, key=lambda each: (each.process.pid, each.process.generation, each.tid)))


def _thread(whose: "Whose", bank: "SlotBank", children: "Children") -> "tuple[Process, int]":
    if not isinstance(whose, OneThread):
        return None, 0
    return children.of(bank, whose.process) if isinstance(whose.process, ForkChild) else None, whose.tid


def _without_calls(timing: FunctionTiming) -> FunctionTiming:
    """Return what is known of a function besides its calls."""
    nested = timing.nested and timing.nested.plus(timing.nested, -1)
    return replace(
        FunctionTiming(timing.spec, timing.module, timing.function, 0), label=timing.label, address=timing.address,
        callers=timing.callers, callers_refused=timing.callers_refused, exit_kind=timing.exit_kind,
        places=timing.places, nested=nested, taken=timing.taken and timing.taken.plus(timing.taken, -1),
    )  # fmt: skip
