"""The kernel's structures: ``Kprobe``, ``Jprobe``, ``Kretprobe``, ``Djprobe``."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from anyprobe.kprobes.registers import PROCESSOR, TASK

if TYPE_CHECKING:
    from anyprobe.core.refusal import Refusal

Handler = Callable[..., Any]
KPROBE_FLAG_GONE = 1
"""The probed code is no longer there."""
KPROBE_FLAG_DISABLED = 2
"""Registered, and not armed."""
KPROBE_FLAG_OPTIMIZED = 4
"""Reached by a jump, not by a trap."""
TRAMPOLINE = 256
"""Flag of a kretprobe: see the return by a replaced return address where an exit cannot be seen otherwise."""


class RegisteredState(Protocol):
    """What a registration tells of a probe while it is registered."""

    def flags(self) -> int:
        """Return the kernel's flags for its state."""
        ...

    def hits(self) -> int:
        """Return the hits, without the missed ones."""
        ...

    def missed(self) -> int:
        """Return the hits that ran no handler."""
        ...


class Kprobe:
    """A probe at one instruction, given by exactly one of ``symbol_name`` (and ``offset``) and ``addr``."""

    def __init__(
        self,
        symbol_name: str | None = None,
        offset: int = 0,
        addr: int | None = None,
        pre_handler: Handler | None = None,
        post_handler: Handler | None = None,
        fault_handler: Handler | None = None,
        flags: int = 0,
        module: str = "",
        *,
        inlined: bool = False,
    ) -> None:
        """Describe it: ``pre_handler(p, regs)`` before the instruction, ``post_handler(p, regs, flags)`` after it.

        ``module``: where the symbol is looked for; in all modules if that is empty. ``inlined``: the function's
        instances in other functions are probed, too; they are found by debug information.
        """
        self.inlined = inlined
        self.symbol_name, self.offset, self.addr, self.module = symbol_name, offset, addr, module
        self.pre_handler, self.post_handler, self.fault_handler = pre_handler, post_handler, fault_handler
        self.asked_flags = flags
        """The flags that were set."""
        self.error = ""
        """Why it could not be registered."""
        self.refusal: Refusal | None = None
        """The engine's verdict on the place, where that is the reason."""
        self.registration: RegisteredState | None = None
        """What tells its state while it is registered."""
        self.given: int | None = None
        """``addr`` as it was set, while it is registered and ``addr`` is where it is."""
        self.counted = (0, 0)
        """Hits and missed hits of the time when it was registered."""

    def __repr__(self) -> str:
        """Return where it is, or is to be."""
        place = f"{self.symbol_name}+{self.offset:#x}" if self.symbol_name else hex(self.addr or 0)
        return f"<Kprobe {place}{', registered' if self.registration else ''}>"

    @property
    def flags(self) -> int:
        """``KPROBE_FLAG_DISABLED`` before registration, and the state while it is registered."""
        state = KPROBE_FLAG_DISABLED | KPROBE_FLAG_GONE | KPROBE_FLAG_OPTIMIZED
        kept = self.asked_flags
        return kept if self.registration is None else (kept & ~state) | self.registration.flags()

    @flags.setter
    def flags(self, flags: int) -> None:
        self.asked_flags = flags

    @property
    def nmissed(self) -> int:
        """How many hits ran no handler, since another was running."""
        return self.counted[1] if self.registration is None else self.registration.missed()

    @property
    def hits(self) -> int:
        """How many hits there were, without the missed ones."""
        return self.counted[0] if self.registration is None else self.registration.hits()


@dataclass(eq=False)
class Jprobe:
    """A probe at a function's first instruction; ``entry`` has the signature of the function."""

    kp: Kprobe = field(default_factory=Kprobe)
    entry: Handler | None = None

    @property
    def nmissed(self) -> int:
        """How many hits ran no handler, since another was running."""
        return self.kp.nmissed


@dataclass(eq=False)
class Kretprobe:
    """A probe at a function's returns."""

    kp: Kprobe = field(default_factory=Kprobe)
    handler: Handler | None = None
    """``handler(ri, regs)``: runs where the function returns."""
    entry_handler: Handler | None = None
    """``entry_handler(ri, regs)``: runs where it is entered; if its result is not 0, ``handler`` does not run."""
    maxactive: int = 0
    """Calls that are followed at one time, of all threads; 0 for 256 of each thread."""
    data_size: int = 0
    """Bytes of ``ri.data`` that are used, 56 at most."""

    @property
    def nmissed(self) -> int:
        """How many calls were not followed, since ``maxactive`` others were under way, or handlers were running."""
        return self.kp.nmissed


class kretprobe_instance:  # noqa: N801 - the kernel's name
    """What the handlers of a return probe are given as ``ri``; for annotations, there is none in Python."""

    ret_addr: int
    """Where the call returns to."""
    rp: Kretprobe
    task: Any
    """As ``current``: ``pid``, ``tgid``, ``comm``."""
    data: Any
    """The call's own: any names, a word each, zero at first."""


@dataclass(eq=False)
class Djprobe:
    """A probe made by a jump; ``size`` bytes, whole instructions, may be moved for it (5 at least)."""

    addr: int | None = None
    size: int = 0
    handler: Handler | None = None
    strict: bool = False
    """Whether bytes that overlap those of another djprobe are refused."""
    kp: Kprobe = field(default_factory=Kprobe, repr=False)

    @property
    def nmissed(self) -> int:
        """How many hits ran no handler, since another was running."""
        return self.kp.nmissed

    @property
    def error(self) -> str:
        """Why it could not be registered, empty if it could."""
        return self.kp.error


Registered = Kprobe | Jprobe | Kretprobe | Djprobe


def kprobe_of(probe: Registered) -> Kprobe:
    """Return the kprobe that is part of any probe."""
    return probe if isinstance(probe, Kprobe) else probe.kp


def regs_return_value(regs: Any) -> Any:  # noqa: ANN401 - compiled in place; it never runs in Python
    """Return what the function returns; for the handler of a kretprobe."""
    return regs.ax


def smp_processor_id() -> Any:  # noqa: ANN401 - compiled in place
    """Return the number of the processor; for handlers."""
    return PROCESSOR.number  # type: ignore[attr-defined]


current = TASK
"""The thread that is probed, for handlers: ``current.pid``, ``current.tgid``, ``current.comm``."""


def jprobe_return() -> None:
    """Do nothing: the end of a jprobe's handler in the kernel."""
    return
