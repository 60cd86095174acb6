"""How a session probes: the options that ``attach``, ``run`` and ``attach_self`` take, listed here only."""

from dataclasses import dataclass, replace
from typing import TypedDict

from anyprobe.core.errors import UsageError
from anyprobe.data.layouts.layout import MAXACTIVE

RETURNS = ("auto", "exits", "callers", "trampoline")
PENDING = ("once", "never", "modules", "always")
CHILDREN = ("count", "ignore", "free")
STRATEGIES = ("auto", "retarget", "jump", "punned", "short", "trap")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """How a session probes.

    Raises:
        UsageError: a value that is none of those possible.
    """

    strategy: str = "auto"
    """How probes are reached: ``auto``, ``retarget``, ``jump``, ``punned``, ``short`` or ``trap``."""
    maxactive: int = MAXACTIVE
    """Calls of one timed function that one thread can be in at a time; further ones are counted as missed."""
    clock: str = "auto"
    """What timing probes read: ``tsc``, ``monotonic`` (``clock_gettime`` of the vdso), or ``auto``: the TSC where it
    ticks evenly."""
    returns: str = "auto"
    """Where ends of calls are seen. ``auto``: where the function returns, and if it ends in a jump to another one,
    where its caller goes on. ``exits``: at its own exits only, so that calls that leave by a jump have no time
    and no result.
    ``callers``: only where the caller goes on, whatever the function's exits are like.
    ``trampoline``: as ``auto``, and functions whose exits cannot all be spliced have their return addresses
    replaced, where nothing is seen that this could break; else they are refused."""
    self_time: bool = False
    """Whether timed functions have self times, too: without what other timed functions take that they call."""
    call_tree: bool = False
    """Whether snapshots have the tree of timed calls: which functions made which; self times, too."""
    raw: bool = False
    """Whether times are left as they are measured, with what probes take of them."""
    by_thread: bool = False
    """Whether snapshots have the timed calls of each thread, under ``threads``."""
    live: bool = False
    """Whether probes are armed and removed while all threads but a borrowed one run on. What cannot be done so is
    done in a stop, and ``Session.warnings`` says why."""
    unsafe: bool = False
    """Whether handlers may change what the program computes."""
    pending: str = "never"
    """Which specs wait for libraries that are loaded later, where ``follow`` is not given: ``never``, so that it is an
    error if one means nothing; ``modules``: those that name a module which is not loaded; ``always``: all. With
    ``once``, as with ``follow=False``, not even for those to come again that were there and are unloaded."""
    children: str = "count"
    """What becomes of fork children: ``count``: they count, too; ``ignore``: their hits are left out of counts;
    ``free``: each is relieved of all probes before it runs on from the C library's ``fork``."""
    max_setup: float | None = None
    """Seconds that placing probes may take, about: functions in which the program is found to be at the start are
    placed first, and those for which there is no time are refused as ``left-out``. None: as long as it takes."""
    at_once: bool = False
    """Whether functions in which a running program is found to be are placed at once, and the others meanwhile, by
    ``pump`` or the session's thread; ``since`` of a site says from when on it counts."""
    strict: bool = False
    """Whether the functions of ``anyprobe.kprobes`` raise instead of returning error numbers."""

    @property
    def nested(self) -> str:
        """What is to be known of which calls made which: ``tree``, ``times``, or nothing."""
        return "tree" if self.call_tree else "times" if self.self_time else ""

    @property
    def on_processors(self) -> bool:
        """Whether times are those for which threads are on processors."""
        return self.clock == "cpu"

    def __post_init__(self) -> None:
        """Refuse what means nothing before anything is done to a target."""
        if self.strategy not in STRATEGIES:
            raise UsageError(f"unknown strategy {self.strategy!r}; one of {', '.join(STRATEGIES)}")
        if self.pending not in PENDING:
            raise UsageError(f"specs cannot be pending {self.pending!r}; one of {', '.join(PENDING)}")
        if self.children not in CHILDREN:
            raise UsageError(f"fork children cannot be dealt with by {self.children!r}; one of {', '.join(CHILDREN)}")
        if self.returns not in RETURNS:
            raise UsageError(f"returns cannot be seen at {self.returns!r}; one of {', '.join(RETURNS)}")


class OptionNames(TypedDict, total=False):
    """The options as keyword arguments, for type checkers; a test compares them with ``SessionOptions``."""

    strategy: str
    maxactive: int
    clock: str
    returns: str
    self_time: bool
    call_tree: bool
    raw: bool
    by_thread: bool
    live: bool
    unsafe: bool
    pending: str
    children: str
    max_setup: float | None
    at_once: bool
    strict: bool


DEFAULT = SessionOptions()


def chosen(options: SessionOptions | None, changes: OptionNames) -> SessionOptions:
    """Return options with some changed; an option that does not exist is a ``TypeError``, as any wrong keyword."""
    return replace(options or DEFAULT, **changes)
