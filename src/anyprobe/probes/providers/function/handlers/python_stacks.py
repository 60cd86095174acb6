"""Python's functions on stacks that handlers take: where they are found, and what they are called.

Handlers find the frames of a thread by its state, which CPython keeps where the C library keeps what is a thread's own.
How far from the thread pointer that is, is seen in the threads that there are: the word that leads to such a state in
each of them, or is 0. So nothing is taken for granted of a version of the C library.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from anyprobe.core.arrays import among
from anyprobe.core.errors import TargetError
from anyprobe.core.memory import MemoryFault
from anyprobe.data.layouts import stacks
from anyprobe.data.snapshots.profile import PYTHON_LOOP
from anyprobe.probes.stacks.interpreter import Function, Interpreter
from anyprobe.probes.stacks.interpreter_places import places_of
from anyprobe.target.process.thread_pointers import thread_pointers

if TYPE_CHECKING:
    from anyprobe.data.layouts.stacks import StackView
    from anyprobe.probes.providers.function.host import ProbeHost

_FIRST, _LAST = 0x300, 0x900
"""Between which glibc's control block has what is a thread's own, from the thread pointer."""
UNKNOWN = "?"
_SHIM = "<shim>"


class PythonStacks:
    """The interpreter of one process, if it has one, as far as stacks tell of it."""

    def __init__(self, session: "ProbeHost", tell: Callable[[Sequence[int]], None]) -> None:
        """Look for nothing yet; ``tell`` takes the words by which handlers find frames."""
        self._session, self._tell = session, tell
        self._interpreter: Interpreter | None = None
        self._loop = range(0)
        self._names: dict[int, str] = {}
        self.reason = ""
        """Why functions are not known, where that is so."""

    def look(self) -> None:
        """Find the interpreter, unless that is done: a program that was just started has not begun to run it."""
        if self._interpreter is not None or self.reason or self._session.process.exited():
            return
        try:
            places = places_of(self._session.symbols.objects.objects)
            if places is None:
                return
            mem = self._session.process.mem
            interpreter = Interpreter(mem.read, places.runtime, places.layout(mem.read))
        except TargetError as reason:
            self.reason = str(reason)
            self._session.warn(f"Python's functions are not known: {reason}")
            return
        with suppress(TargetError, MemoryFault):
            place = self._place_of(interpreter.states())
            if place is not None:
                self._tell(interpreter.words(place))
                self._interpreter, self._loop = interpreter, places.loop

    def _place_of(self, states: frozenset[int]) -> int | None:
        """Return where threads have their states, from the thread pointer; None where none has one yet."""
        pointers = thread_pointers(self._session.process) or []
        if not states or not pointers:
            return None
        words = np.frombuffer(
            b"".join(self._session.process.mem.read(each + _FIRST, _LAST - _FIRST) for each in pointers), np.uint64
        ).reshape(len(pointers), -1)
        is_state = among(words, np.array(sorted(states), np.uint64))
        fits = (is_state | (words == 0)).all(axis=0)
        found = np.flatnonzero(fits & (is_state.sum(axis=0) == max(is_state.sum(axis=0)[fits], default=0)))
        at = int(found[0]) if len(found) else None
        return None if at is None or not is_state[:, at].any() else _FIRST + 8 * at

    def learn(self, view: "StackView | None") -> None:
        """Name the functions on stacks that are new: when they are shown the program may have ended."""
        if self._interpreter is None or view is None or self._session.process.exited():
            return
        for number in view.taken():
            for frame in view.addresses(number):
                if frame & stacks.PYTHON and frame & ~stacks.LAST not in self._names:
                    self._name(frame)

    def _name(self, frame: int) -> str:
        key = frame & ~stacks.LAST
        found = self._names.get(key)
        if found is None:
            if self._interpreter is None or self._session.process.exited():
                return UNKNOWN
            function = self._interpreter.marked(key)
            known = "" if function is None or function.file == _SHIM else _shown(function)
            found = self._names[key] = UNKNOWN if function is None else known
        return found

    def in_text(self, text: str, tid: int) -> str:
        """Return the stack of a thread that is asleep, which was taken without Python's functions, with these.

        As it is where they cannot be read.
        """
        if self._interpreter is None:
            return text
        try:
            activations = self._interpreter.executing(tid)
        except MemoryFault:
            return text
        found: list[str] = []
        for place in text.split(" < "):
            if PYTHON_LOOP in place and activations:
                found += map(_shown, activations.pop(0))
            else:
                found.append(place)
        return " < ".join(found)

    def places(self, addresses: Sequence[int]) -> list[int | str]:
        """Return a stack with the names of Python's functions in place of the interpreter that executes them."""
        code = [each for each in addresses if not each & stacks.PYTHON]
        activations: list[list[str]] = [[]]
        for frame in addresses[len(code) :]:
            if name := self._name(frame):
                activations[-1].append(name)
            if frame & stacks.LAST:
                activations.append([])
        found: list[int | str] = []
        for at, address in enumerate(code):
            if address - (at > 0) in self._loop and activations:
                found += activations.pop(0) or [address]
            else:
                found.append(address)
        return [*found, *(name for each in activations for name in each)]


def _shown(function: Function) -> str:
    return f"{function.module}:{function.name}".replace(" < ", " ")
