"""What handlers need in programs with code of Go: stacks to run on, and the data of calls by goroutine."""

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from anyprobe.core.errors import HandlerError
from anyprobe.data.layouts.goroutines import INSTANCES_TABLE_BYTES
from anyprobe.handlers.frontend.collecting import MARKS
from anyprobe.splice.codegen.handlers.facts import GoCalls
from anyprobe.splice.codegen.handlers.spare_stacks import first_stack, spare_stacks_bytes

if TYPE_CHECKING:
    from anyprobe.splice.regions.stores import Store

_STACKS = object()


class GoMemory:
    """The memory of one session, mapped with what else a handler needs."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self.stacks = 0
        """Where the first of the stacks is on which handlers run in Go; 0: there are none."""
        self._calls: dict[object, GoCalls | None] = {}
        """By what identifies the handlers of both ends of calls."""
        self._number_at = 0

    def wanted(
        self, number_at: Callable[[], int | None], call: object | None, others: Collection[object] = ()
    ) -> dict[object, int]:
        """Return how many bytes are missing, by what they are for.

        Args:
            number_at: Says where goroutines have their numbers, 0 if that is not known, None without Go.
            call: What the handlers of both ends of calls share, if they keep data of calls.
            others: What else is about to be mapped.

        """
        if MARKS in others and number_at() is not None:
            raise HandlerError("ctx.speculate() decides by thread, and a goroutine is on one now and on another then")
        fresh = call is not None and call not in self._calls
        number = number_at() if fresh or not self.stacks else None
        if number is None:
            return {}
        self._number_at = number
        found: dict[object, int] = {} if self.stacks else {_STACKS: spare_stacks_bytes()}
        if fresh:
            self._calls[call] = None
            if number:
                found[_TableOf(call)] = INSTANCES_TABLE_BYTES
        return found

    def adopt(self, key: object, store: "Store") -> bool:
        """Take what was mapped; return whether it is for Go."""
        if key is _STACKS:
            self.stacks = first_stack(store.address)
        elif isinstance(key, _TableOf):
            self._calls[key.call] = GoCalls(store.address, self._number_at)
        else:
            return False
        return True

    def calls_of(self, call: object | None) -> GoCalls | None:
        """Return where the data of calls is that handlers share."""
        return None if call is None else self._calls.get(call)


class _TableOf:
    def __init__(self, call: object) -> None:
        self.call = call
