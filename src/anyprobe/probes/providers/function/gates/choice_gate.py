"""Where a library is asked which of several functions is to be used (IFUNC), a thread waits until that has its probes.

The loader asks as it relocates the library, before its constructors run; so does ``dlsym``. The function that chooses
is a part of the library: the thread waits where it returns, the first time.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from anyprobe.binary.flow.exits import ExitKind
from anyprobe.core.refusal import Refusal
from anyprobe.probes.providers.function.handlers.callbacks import Callbacks, Hit, Wait
from anyprobe.splice.edits import Edit
from anyprobe.splice.regions.banks import Hook

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.splice.userspace.signal_view import Place

PATIENCE = 5.0
"""Seconds that a thread waits at most for one change."""
LATE = "that is done at the next look, five in a second, and what runs there before is not counted"


class ChoiceGate:
    """The gates of one session in functions that choose."""

    def __init__(self, session: "ProbeHost", callbacks: Callbacks, chosen: Callable[[int, Hit], object]) -> None:
        """Nothing is placed yet.

        ``callbacks``: what threads wait by. ``chosen`` is called with the run-time address of the function that has
        chosen, in the thread that serves the gate; what was chosen is what it returns.
        """
        self._session, self._callbacks, self._chosen = session, callbacks, chosen
        self._resolvers: dict[int, int] = {}
        """The functions that choose, by where threads wait."""
        self._placed: dict[int, Edit] = {}
        self._told = False

    def place(self, resolvers: Sequence[int], function_at: "Callable[[int], Place | Refusal]") -> None:
        """Have threads wait where functions have chosen, by run-time addresses, but for those that end in others."""
        waits: list[Wait] = []
        states = {}
        edits: list[Edit] = []
        for resolver in dict.fromkeys(resolvers):
            place = function_at(resolver)
            if isinstance(place, Refusal) or self._waits_in(resolver):
                continue
            module, code = place
            state, before = module.state_of(code), self._placed.get(resolver)
            if before is not None and before.module is module:  # in another life of its library
                edits.append(Edit(module, state.root, added=before.added))
                continue
            exits = code.exits
            if exits.complete is None and {each.kind for each in exits.found} == {ExitKind.RET}:
                states[resolver] = state
                waits += [Wait(place, inside=each.address) for each in exits.found]
                self._resolvers |= {each.address + module.bias: resolver for each in exits.found}
        if waits:
            fresh, _ = self._callbacks.edits_inside(waits, self._serve, timeout=PATIENCE)
            self._placed |= {at: each for at, state in states.items() for each in fresh if each.state is state}
            edits += fresh
        self._session.splicing.engine.change(edits)
        late = sum(not self._waits_in(each) for each in dict.fromkeys(resolvers))
        if late and not self._told:
            self._told = True
            some = "one function" if late == 1 else f"{late} functions"
            self._session.warn(f"{some} that the loader chooses (IFUNC) could not be placed as it did: {LATE}")

    def _waits_in(self, resolver: int) -> bool:
        placed = self._placed.get(resolver)
        return placed is not None and all(isinstance(each.tag, Hook) and each.tag.armed for each in placed.added)

    def _serve(self, hit: Hit) -> None:
        self._chosen(self._resolvers[hit.ip], hit)

    def end(self, resolver: int) -> None:
        """Have no thread wait any more where one function has chosen."""
        placed = self._placed.get(resolver)
        if placed is not None:
            edit = Edit(placed.module, placed.state.root, removed=placed.added)
            self._session.splicing.engine.change([edit])
            if edit.change is not None:  # what is there no more serves again in the library's next life
                placed.module.left |= {each.address: each.patch for each in edit.change.removed if each.patch}
