"""What a profile has found: stacks that were sampled, and how often each function was met."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

from anyprobe.core.errors import UsageError
from anyprobe.core.quoting import shown_module
from anyprobe.data.findings.calltree import CallNode, ordered
from anyprobe.data.snapshots.processes import ProcessInfo, TargetInfo

TRUNCATED = "[truncated]"
"""In place of an outermost function: what has called those below it is not known."""
PYTHON_LOOP = "_PyEval_EvalFrameDefault"
"""The function of the interpreter that executes Python; on a stack it is one whose functions are not known."""
NOT_PYTHON = "[no function of Python]"
OFF_HZ = 1_000_000_000
"""The rate of a profile of the time off processors: each count is a nanosecond."""
_NS = 1e9
T = TypeVar("T", bound=Hashable)
Key = int | str | None
"""The id of a process or a thread, or a thread's name, where samples are told apart by it."""


def _shown(module: str) -> str:
    return shown_module(module) if module and not module.startswith("[") else module


class ProfileFrame(NamedTuple):
    """A function on a stack."""

    module: str
    function: str
    probed: bool = False
    """Whether it is one that a probe can be placed in: of a program, and no linker's stub."""
    kernel: bool = False
    python: bool = False
    inlined: bool = False
    """Whether it was inlined into the function that comes next on the stack."""
    line: str = ""
    """The source line that was executed, or from which the call was made, where that was asked for and is known."""

    @property
    def shown_module(self) -> str:
        """The module's name as a spec may have it."""
        return _shown(self.module)


@dataclass(frozen=True, slots=True)
class ProfiledStack:
    """A stack and how often it was sampled."""

    frames: tuple[ProfileFrame, ...]
    """Innermost first."""
    count: int
    truncated: bool = False
    """Whether it is not known what has called the last one."""
    key: Key = None
    pid: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        frames = [f"{each.shown_module}:{each.function}" if each.module else each.function for each in self.frames]
        return {"frames": frames, "count": self.count, "truncated": self.truncated}


@dataclass(frozen=True, slots=True)
class ProfiledFunction:
    """A function and in how many samples it was."""

    module: str
    function: str
    self_samples: int
    """In which it was what ran."""
    total_samples: int
    """In which it was on the stack; once in each, however often it has called itself."""
    key: Key = None

    @property
    def shown_module(self) -> str:
        """The module's name as a spec may have it."""
        return _shown(self.module)

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object."""
        return {
            "function": self.function,
            "module": self.module,
            "self": self.self_samples,
            "total": self.total_samples,
        }


@dataclass(frozen=True)
class Profile:
    """Where processes have spent their time on processors, by samples."""

    targets: tuple[TargetInfo, ...]
    processes: tuple[ProcessInfo, ...]
    duration_s: float
    hz: int
    stacks: tuple[ProfiledStack, ...]
    lost: int
    """Samples, and what came with them, for which there was no room."""
    kernel: bool
    """Whether time in the kernel was sampled, too."""
    processor_s: float
    """For how long threads were on processors, by the kernel's clock."""
    by: str | None = None
    waits: int | None = None
    """How often a thread gave its processor up, in a profile of the time off them; counts are nanoseconds then."""
    next: str = ""
    """The command that probes what is hot."""
    warnings: tuple[str, ...] = ()

    @property
    def samples(self) -> int:
        """How many samples there are."""
        return sum(each.count for each in self.stacks)

    @property
    def truncated(self) -> int:
        """How many have a stack whose outermost functions are not known."""
        return sum(each.count for each in self.stacks if each.truncated)

    @property
    def unsampled_share(self) -> float:
        """What share of the time on processors no sample tells of, as far as that is more than chance; 0 to 1."""
        expected = self.processor_s * self.hz
        missing = expected - self.samples - self.lost
        return missing / expected if missing > max(5.0, 3 * expected**0.5) else 0.0

    @cached_property
    def functions(self) -> tuple[ProfiledFunction, ...]:
        """The functions that were met, what ran most first; of each process or thread, where these are told apart."""
        own, total = Counter[tuple[Key, ProfileFrame]](), Counter[tuple[Key, ProfileFrame]]()
        for stack in self.stacks:
            for frame in set(stack.frames):
                total[stack.key, frame] += stack.count
            if stack.frames:
                own[stack.key, stack.frames[0]] += stack.count
        found = [
            ProfiledFunction(frame.module, frame.function, own[key, frame], samples, key)
            for (key, frame), samples in total.items()
        ]
        return tuple(sorted(found, key=lambda each: (-each.self_samples, -each.total_samples, each.function)))

    @property
    def tree(self) -> tuple[CallNode, ...]:
        """The stacks as a tree of calls, outermost first: counts are of samples in which the function itself ran."""
        return tree_of(self.stacks, _NS / self.hz)

    def of(self, key: Key) -> "Profile":
        """Return what one process or thread has of it."""
        return replace(self, stacks=tuple(replace(each, key=None) for each in self.stacks if each.key == key), by=None)

    def of_python(self) -> "Profile":
        """Return it with Python's functions alone: what they have called in C, and the kernel, is their own time."""
        nothing = (ProfileFrame("", NOT_PYTHON),)

        def kept(stack: ProfiledStack) -> tuple[ProfileFrame, ...]:
            return tuple(each for each in stack.frames if each.python or each.function == PYTHON_LOOP) or nothing

        return replace(self, stacks=tuple(replace(each, frames=kept(each)) for each in self.stacks))

    def with_lines(self) -> "Profile":
        """Return it with the lines of functions in their names, so that each line has a row of its own."""

        def named(frame: ProfileFrame) -> ProfileFrame:
            return frame._replace(function=f"{frame.function} ({frame.line})", line="") if frame.line else frame

        return replace(self, stacks=tuple(replace(each, frames=tuple(map(named, each.frames))) for each in self.stacks))

    def plus(self, other: "Profile") -> "Profile":
        """Return the samples of both.

        Raises:
            UsageError: their samples stand for different times, or do not tell the same apart.
        """
        if (self.hz, self.by) != (other.hz, other.by):
            raise UsageError("samples of different rates (--hz), or told apart by different things (--by), have no sum")
        return replace(
            self,
            targets=(*self.targets, *other.targets),
            processes=(*self.processes, *other.processes),
            duration_s=max(self.duration_s, other.duration_s),
            stacks=(*self.stacks, *other.stacks),
            lost=self.lost + other.lost,
            kernel=self.kernel and other.kernel,
            processor_s=self.processor_s + other.processor_s,
            waits=None if self.waits is None else self.waits + (other.waits or 0),
            warnings=tuple(dict.fromkeys((*self.warnings, *other.warnings))),
        )

    @property
    def keys(self) -> list[Key]:
        """The processes or threads that are told apart, those with most samples first."""
        return [key for key, _ in _most_first((each.key, each.count) for each in self.stacks)]

    @property
    def merged(self) -> list[ProfiledStack]:
        """The stacks of all processes together, but for what is told apart; the most frequent first."""
        counted = _most_first((replace(each, count=0, pid=0), each.count) for each in self.stacks)
        return [replace(each, count=count) for each, count in counted]

    @property
    def busiest(self) -> list[int]:
        """The processes, those with most samples first."""
        return [pid for pid, _ in _most_first((each.pid, each.count) for each in self.stacks)]

    def as_json(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "target": self.targets[0].as_json(),
            "duration_s": round(self.duration_s, 6),
            "processes": [each.as_json() for each in self.processes],
            "hz": self.hz,
            "samples": self.samples,
            "lost": self.lost,
            "truncated": self.truncated,
            "kernel": self.kernel,
            "processor_s": round(self.processor_s, 6),
            **({} if self.waits is None else {"waits": self.waits}),
            "functions": [self._keyed(each) for each in self.functions],
            "stacks": [self._keyed(each) for each in self.merged],
            "next": self.next,
            "warnings": list(self.warnings),
        }

    def _keyed(self, each: ProfiledFunction | ProfiledStack) -> dict[str, Any]:
        return each.as_json() if self.by is None else {self.by: each.key, **each.as_json()}


def _most_first(counted: Iterable[tuple[T, int]]) -> list[tuple[T, int]]:
    """Return the sums of counts, the largest first."""
    sums = Counter[T]()
    for each, count in counted:
        sums[each] += count
    return sums.most_common()


def tree_of(stacks: Iterable[ProfiledStack], ns: float) -> tuple[CallNode, ...]:
    """Return stacks as trees; each sample stands for some nanoseconds."""
    roots: _Nodes = {}
    for stack in stacks:
        frames: Sequence[ProfileFrame] = stack.frames
        if stack.truncated:
            frames = (*frames, ProfileFrame("", TRUNCATED))
        below = roots
        for at, frame in enumerate(reversed(frames), 1):
            node = below.setdefault(frame, _Node({}))
            node.total += stack.count
            node.own += stack.count * (at == len(frames))
            below = node.calls
    return ordered(_finished(roots, ns))


class _Node:
    """A node while samples are added."""

    def __init__(self, calls: "_Nodes") -> None:
        self.own = self.total = 0
        self.calls = calls


_Nodes = dict[ProfileFrame, _Node]


def _finished(nodes: _Nodes, ns: float) -> Iterator[CallNode]:
    for frame, node in nodes.items():
        calls = ordered(_finished(node.calls, ns))
        yield CallNode(frame.module, frame.function, node.own, node.total * ns, node.own * ns, calls)
