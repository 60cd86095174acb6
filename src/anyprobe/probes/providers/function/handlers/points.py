"""Where a handler runs, and all that is asked for when it is compiled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anyprobe.handlers.types.annotations import AnyType
    from anyprobe.handlers.types.calling_convention import KnownPrototype
    from anyprobe.handlers.types.marker import MarkerAt
    from anyprobe.probes.providers.function.handlers.handling import Call
    from anyprobe.probes.specs.parts import Spec

Handler = Callable[..., Any]


class Point(Enum):
    """Where at a function a handler runs, which decides what it sees."""

    ENTRY = "entry"
    """Where the function is entered: parameters are where the calling convention has them."""
    RETURN = "return"
    """Where it returns, with a result."""
    TAIL = "tail"
    """Where it ends in a jump to another function: there is no result yet."""
    BEFORE = "before"
    """Before an instruction: parameters are no longer where they were."""
    AFTER = "after"
    """After an instruction, on whatever way control leaves it."""

    @property
    def is_return(self) -> bool:
        """Whether the call ends here."""
        return self in {Point.RETURN, Point.TAIL}

    @property
    def has_parameters(self) -> bool:
        """Whether the function's parameters can be read."""
        return self is Point.ENTRY


@dataclass(frozen=True, slots=True, kw_only=True)
class HandlerAt:
    """A handler, where it is to run, and what is known of the functions there."""

    function: Handler
    point: Point = Point.ENTRY
    specs: "Sequence[Spec]" = ()
    """The functions, for what debug information says of them."""
    when: Handler | None = None
    """A condition for it to run."""
    call: "Call | None" = None
    """The call of which it is one end."""
    retval: "AnyType | None" = None
    """The type of the result, if it is not to be what debug information says, or ``i64``."""
    known: "KnownPrototype | None" = None
    """What is known of the functions, the same for all variants of one handler: some of them are compiled when more of
    the program is there."""
    marker: "MarkerAt | None" = None
    """The USDT marker that it runs at."""

    def at_tail(self) -> "HandlerAt":
        """Return the variant for jumps to other functions."""
        return replace(self, point=Point.TAIL)
