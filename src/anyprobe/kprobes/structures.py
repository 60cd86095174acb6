"""The kernel's structures: ``Kprobe``, ``Jprobe``, ``Kretprobe``, ``Djprobe``."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyprobe.core.refusal import Refusal
    from anyprobe.kprobes.registration import Registration

Handler = Callable[..., Any]
KPROBE_FLAG_GONE = 1
"""The probed code is no longer there."""
KPROBE_FLAG_DISABLED = 2
"""Registered, and not armed."""
KPROBE_FLAG_OPTIMIZED = 4
"""Reached by a jump, not by a trap."""
TRAMPOLINE = 256
"""Of a kretprobe: see the return by a replaced return address where an exit cannot be seen otherwise."""


@dataclass(eq=False)
class Kprobe:
    """A probe at one instruction, given by exactly one of ``symbol_name`` (and ``offset``) and ``addr``."""

    symbol_name: str | None = None
    offset: int = 0
    addr: int | None = None
    pre_handler: Handler | None = None
    """``pre_handler(p, regs)``: runs before the instruction."""
    post_handler: Handler | None = None
    """``post_handler(p, regs, flags)``: runs behind it."""
    fault_handler: Handler | None = None
    flags: int = 0
    module: str = ""
    """Where the symbol is looked for; all modules if empty."""
    error: str = ""
    """Why it could not be registered."""
    refusal: "Refusal | None" = None
    """The engine's verdict on the place, where that is the reason."""
    registration: "Registration | None" = field(default=None, repr=False)
    """What is behind it while it is registered."""
    found: int | None = field(default=None, repr=False)
    """The address that ``symbol_name`` led to."""

    @property
    def nmissed(self) -> int:
        """How many hits ran no handler, since another was running."""
        return 0 if self.registration is None else self.registration.missed()

    @property
    def hits(self) -> int:
        """How many hits there were, without the missed ones."""
        return 0 if self.registration is None else self.registration.hits()


@dataclass(eq=False)
class Jprobe:
    """A probe at a function's first instruction; ``entry`` has the signature of the function."""

    kp: Kprobe
    entry: Handler | None = None

    @property
    def nmissed(self) -> int:
        """How many hits ran no handler, since another was running."""
        return self.kp.nmissed


@dataclass(eq=False)
class Kretprobe:
    """A probe at a function's returns."""

    kp: Kprobe
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


Registered = Kprobe | Jprobe | Kretprobe | Djprobe


def kprobe_of(probe: Registered) -> Kprobe:
    """Return the kprobe that is part of any probe."""
    return probe if isinstance(probe, Kprobe) else probe.kp


def regs_return_value(regs: Any) -> Any:  # noqa: ANN401 - compiled in place; it never runs in Python
    """Return what the function returns; for the handler of a kretprobe."""
    return regs.ax


def jprobe_return() -> None:
    """Do nothing: the end of a jprobe's handler in the kernel."""
    return
