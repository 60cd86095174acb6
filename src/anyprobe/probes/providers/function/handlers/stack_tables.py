"""The tables by which handlers go up the program's stacks: made from its objects, and followed as these come and go."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyprobe.core.code import InputKind
from anyprobe.core.errors import TargetError, UnsupportedTarget
from anyprobe.data.layouts.unwinding import Range, UnwindRegion, room_for
from anyprobe.journal.memfds import is_ours
from anyprobe.splice.regions.stores import Store

if TYPE_CHECKING:
    from anyprobe.core.code import NativeCode
    from anyprobe.data.layouts.stacks import StackView
    from anyprobe.probes.providers.function.handlers.python_stacks import PythonStacks
    from anyprobe.probes.providers.function.host import ProbeHost

_PAUSE = 0.25
"""Seconds between two looks at what is loaded."""


class StackTables:
    """The unwinding tables of one process."""

    def __init__(self, session: "ProbeHost") -> None:
        """Map nothing yet."""
        self._session, self._splicing, self._objects = session, session.splicing, session.symbols.objects
        self._python: PythonStacks | None = None
        """Only where a handler asks for Python's functions."""
        self._store: Store | None = None
        self._region: UnwindRegion | None = None
        self._known: list[tuple[int, int, str]] = []
        self._next = 0.0
        self.incomplete = False
        """Whether there was no room for the tables of what was loaded later."""

    @property
    def address(self) -> int:
        """Where the tables are in the target, mapped at the first use."""
        if self._store is None:
            ranges = self._ranges()
            (self._store,) = self._splicing.map_stores([room_for(ranges)])
            self._region = UnwindRegion(self._store.view())
            self._region.publish(ranges)
        return self._store.address

    def address_for(self, code: "NativeCode") -> int:
        """Return where they are for a handler, that may ask for Python's functions, too."""
        address = self.address
        if self._python is None and any(each.kind is InputKind.UNWINDING and each.name for each in code.inputs):
            from anyprobe.probes.providers.function.handlers.python_stacks import PythonStacks

            self._python = PythonStacks(self._session, self.tell_python)
            self._session.symbols.named_places = self._python.places
            self._session.symbols.asleep_in = self._python.in_text
            self._python.look()
        return address

    def learn(self, view: "StackView | None") -> None:
        """Find Python's interpreter, and name the functions that are on stacks by now, if any are asked for."""
        if self._python is not None:
            self._python.look()
            self._python.learn(view)

    def follow(self, *, at_once: bool = False) -> None:
        """Have the tables cover what has been loaded since the last look, if that was not a moment ago."""
        now = time.monotonic()
        if self._python is not None:
            self._python.look()
        if self._region is None or (now < self._next and not at_once) or self._splicing.process.exited():
            return
        self._next = now + _PAUSE
        known = self._known
        try:
            ranges = self._ranges()
        except TargetError:
            return
        if self._known != known and not self._region.publish(ranges):
            self.incomplete = True

    def tell_python(self, words: Sequence[int]) -> None:
        """Have handlers find Python's frames from now on: see ``data.layouts.unwinding``."""
        if self._region is not None:
            self._region.tell_python(words)

    def _ranges(self) -> list[Range]:
        """Return all code of the process; where nothing is known of it, frame pointers are followed."""
        mappings = [each for each in self._splicing.process.mappings() if each.executable and not is_ours(each)]
        known = [(each.start, each.end, each.path) for each in mappings]
        if known != self._known:
            self._objects.refresh()
        self._known = known
        found = []
        for each in mappings:
            loaded = self._objects.at(each.start)
            try:
                rules = loaded.image.unwind_rules if loaded is not None else None
            except UnsupportedTarget:  # a damaged table
                rules = None
            if loaded is None or rules is None or not len(rules.starts):
                found.append(Range(each.start, each.end))
            else:
                base = loaded.image.lowest_address + loaded.bias
                found.append(Range(each.start, each.end, base, rules.starts, rules.rules))
        return found
