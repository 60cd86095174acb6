"""The stacks of samples: gone up as they come, counted, and named at the end."""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain

from anyprobe.binary.images.modules import LoadedObject
from anyprobe.core.errors import TargetError
from anyprobe.core.memory import MemoryFault
from anyprobe.data.snapshots.processes import ProcessInfo, TargetInfo
from anyprobe.data.snapshots.profile import Key, ProfiledStack, ProfileFrame
from anyprobe.probes.profiling.names import IN_KERNEL, Names
from anyprobe.probes.profiling.python.programs import PythonPrograms
from anyprobe.probes.profiling.spaces import Place, Space, Spaces
from anyprobe.probes.stacks.unwinding import Frame, walk
from anyprobe.target.kernel.samples import Forked, Mapped, Named, Record, Sample, Sampler, Switched, SwitchSampler
from anyprobe.target.system import procfs


def walked(space: Space, registers: tuple[int, int, int], stack: bytes, *, in_kernel: bool) -> tuple[list[Frame], bool]:
    """Return the frames of a sample, innermost first, and whether the last one is the outermost.

    ``registers`` are ``rbp``, ``rsp`` and ``rip``; ``stack`` is what is at ``rsp``.
    """
    bp, sp, ip = registers
    if in_kernel and space.rule(ip) is None:  # it executes a program, and has nothing yet
        return [], False

    def word(address: int) -> int:
        at = address - sp
        if not 0 <= at <= len(stack) - 8:
            raise MemoryFault(address, 8)
        return int.from_bytes(stack[at : at + 8], "little")

    found = walk(space, Frame(ip, sp, bp, exact=True), word)
    return found.frames, found.complete


_SWITCHING = frozenset({"__schedule", "schedule"})
_Stack = tuple[int, Key, tuple[Place, ...], bool]


class SampledStacks:
    """The stacks of some processes, and of what they start."""

    def __init__(self, pids: Sequence[int], by: str | None, sampler: Sampler) -> None:
        """Begin with what the processes have mapped now; ``by``: what is told apart."""
        self._by = by
        self._spaces = Spaces(pids)
        self._counts: Counter[_Stack] = Counter()
        self._off = isinstance(sampler, SwitchSampler)
        self._away: dict[int, tuple[int, _Stack]] = {}
        """Threads that have given their processor up: when, and where."""
        self.waits = 0
        """How often one has had one again."""
        self.switched = set[int]()
        """Threads that have given one up, or have had one again."""
        self._seen = dict.fromkeys(pids)
        """All processes that were sampled, in the order in which they came."""
        self._prepared: set[LoadedObject] = set()
        self.hidden = False
        """Whether the kernel does not tell where its functions are."""
        self.python = PythonPrograms(sampler)
        for pid in pids:
            self.python.of(self._spaces.of(pid))

    def handle(self, record: Record) -> None:
        """Take a sample, or what is to be known for those that come."""
        if isinstance(record, Sample) and self._off:
            self.switched.add(record.tid)
            self._away[record.tid] = record.time, self._stack(record)
        elif isinstance(record, Sample):
            self._counts[self._stack(record)] += 1
        elif isinstance(record, Switched):
            self.switched.add(record.tid)
            self._back(record.tid, record.time)
        elif isinstance(record, Mapped):
            self._spaces.of(record.pid).add(record.mapping)
        elif isinstance(record, Forked):
            self._spaces.fork(record.parent, record.pid, record.tid, record.made_by)
        elif isinstance(record, Named):
            self._spaces.rename(record.pid, record.tid, record.name, executed=record.executed)

    def _back(self, tid: int, moment: int) -> None:
        if (away := self._away.pop(tid, None)) is not None:
            self._counts[away[1]] += max(moment - away[0], 0)
            self.waits += 1

    def lost(self) -> None:
        """Forget which threads are off processors: what was lost may have been that one is back, and off again."""
        self._away.clear()

    def end(self, moment: int) -> None:
        """Take note of the threads that are off processors until now; ``moment``: by the monotonic clock, in ns."""
        for tid in list(self._away):
            self._back(tid, moment)

    def _stack(self, sample: Sample) -> "_Stack":
        self._seen.setdefault(sample.pid)
        space = self._spaces.of(sample.pid)
        frames: list[Place] = [(IN_KERNEL, address) for address in sample.in_kernel]
        complete = False  # one that ends has no stack of its own any more
        if sample.registers is not None:
            own, complete = walked(space, sample.registers, sample.stack, in_kernel=bool(sample.in_kernel))
            executed, rest = self.python.functions(space, sample, own, complete=complete)
            for frame in own:
                functions = executed.get(frame.sp)
                frames += [space.place(frame.at)] if functions is None else [(each, 0) for each in functions]
            frames += [(each, 0) for each in rest]
        return sample.pid, self._key(sample), tuple(frames), complete

    def _key(self, sample: Sample) -> Key:
        if self._by == "pid":
            return sample.pid
        if self._by == "tid":
            return sample.tid
        return self._spaces.name(sample.pid, sample.tid) if self._by == "comm" else None

    def close(self) -> None:
        """Close what was opened."""
        self.python.close()

    def prepare(self) -> None:
        """Read, while nothing else is to be done, the symbols of one object that was sampled."""
        for _, _, places, _ in self._counts:
            for where, _ in places:
                if isinstance(where, LoadedObject) and where not in self._prepared:
                    self._prepared.add(where)
                    with suppress(TargetError):
                        _ = where.image.known_functions
                    return

    def named(self, *, lines: bool = False) -> tuple[ProfiledStack, ...]:
        """Return the stacks with the names of their functions; ``lines``: and with source lines."""
        names = Names({place for _, _, places, _ in self._counts for place in places}, lines=lines)
        stacks: Counter[tuple[int, Key, tuple[ProfileFrame, ...], bool]] = Counter()
        for (pid, key, places, complete), count in self._counts.items():
            frames = tuple(chain.from_iterable(map(names.frames, places)))
            first = next((at for at, each in enumerate(frames) if not self._is_switching(each)), 0)
            stacks[pid, key, frames[first:], complete] += count
        self.hidden = names.hidden
        return tuple(
            ProfiledStack(frames, count, truncated=not complete, key=key, pid=pid)
            for (pid, key, frames, complete), count in stacks.items()
        )

    def _is_switching(self, frame: ProfileFrame) -> bool:
        """Return whether a frame is what all threads go through that give a processor up."""
        return self._off and frame.kernel and frame.function in _SWITCHING

    def target(self, pid: int) -> TargetInfo:
        """Return what is known of a process."""
        space = self._spaces.of(pid)
        return TargetInfo(pid, space.exe, alive=procfs.is_alive(pid), called=space.called)

    def processes(self) -> Iterator[ProcessInfo]:
        """Yield all processes that were sampled."""
        for pid in self._seen:
            space = self._spaces.of(pid)
            yield ProcessInfo(pid, space.exe, space.generation, started=None, alive=procfs.is_alive(pid))
