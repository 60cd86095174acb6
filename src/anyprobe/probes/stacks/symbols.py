"""Addresses by name: ``libc.so.6:malloc+0x1c``, ``a.out:table+0x8``, also of a program that has ended."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from anyprobe.binary.objects.demangle import spellings
from anyprobe.core.errors import TargetError
from anyprobe.core.quoting import shown_module
from anyprobe.probes.specs.naming import as_spec

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.binary.objects.functions import Function
    from anyprobe.data.layouts.stacks import StackView
    from anyprobe.probes.stacks.lines import FrameLines


def spelled(function: "Function", *, several: bool) -> str:
    """Return a function's name as programmers write it; with its address if ``several`` have the same name."""
    return f"{function.demangled}@{function.start:#x}" if several else function.demangled


class Objects(Protocol):
    """The objects of one process."""

    def holding(self, address: int) -> "LoadedObject | None":
        """Return the object that an address lies in."""

    def refresh(self) -> None:
        """Read what is loaded now."""


NO_TYPE = "nil"
"""What the type is shown as of an interface of Go that has no value."""
_Objects = TypeVar("_Objects", bound=Objects)


class Symbols(Generic[_Objects]):
    """Names addresses of one process. What it has named keeps its name, whatever is loaded there later."""

    def __init__(self, objects: _Objects) -> None:
        """Look addresses up among the objects of a process."""
        self.objects = objects
        self._known: dict[int, str] = {}
        self._callers: dict[int, str] = {}
        self._types: dict[int, str] = {0: NO_TYPE}
        self.named_places: Callable[[Sequence[int]], Sequence[int | str]] | None = None
        """What has names of its own for parts of stacks: see ``probes.providers.function.handlers.python_stacks``."""
        self.asleep_in: Callable[[str, int], str] | None = None
        """Does so for the stack of a thread that is asleep, by the id that it knows itself by."""
        self.lines: FrameLines | None = None
        """What tells source lines of places on stacks, where that is wanted."""
        self._unknown: set[int] | None = None
        """Addresses in no object, where what is loaded is read once for all of them; none of them before it was."""

    @contextmanager
    def looking_once(self) -> Iterator[None]:
        """Read what is loaded once at most within the block, however many addresses lie in no object known before.

        Results can have thousands of them: locks and keys on the heap. What the program loads within the block is a
        number there, and has its name the next time.
        """
        if self._unknown is not None:  # within another one
            yield
            return
        self._unknown = set()
        try:
            yield
        finally:
            for address in self._unknown:
                for known in (self._known, self._callers, self._types):
                    known.pop(address, None)
            self._unknown = None

    def name(self, address: int) -> str:
        """Return the function or the variable that an address lies in, and how far; the number where there is none."""
        found = self._known.get(address)
        if found is None:
            found = self._known[address] = self._named(address)
        return found

    def stack(self, addresses: Sequence[int]) -> str:
        """Return a stack in one line: where the hit was, then each caller; ``?`` for one of which nothing is known."""
        known: Sequence[int | str] = addresses
        if self.named_places is not None:
            known = self.named_places(addresses)
        places = [
            place
            for at, each in enumerate(known)
            for place in ([each] if isinstance(each, str) else self._described(each, is_caller=at > 0))
        ]
        return " < ".join(places) or "?"

    def _described(self, address: int, *, is_caller: bool) -> list[str]:
        """Return what is on a stack at one place: a function, or several where others were inlined."""
        name = self.name_of_caller(address) if is_caller else self.name(address)
        loaded = None if self.lines is None else self._holding(address - is_caller)
        if self.lines is None or loaded is None:
            return [name]
        return self.lines.places(loaded, address - is_caller - loaded.bias, name)

    def name_of_caller(self, return_address: int) -> str:
        """Return the function that made a call, and where it goes on: the next address may be another function's."""
        found = self._callers.get(return_address)
        if found is None:
            found = self._callers[return_address] = self._named(return_address - 1, 1)
        return found

    def shown(self, kind: str, number: int, stacks: "StackView | None") -> str:
        """Return how a number is shown that a result has by name; ``stacks`` has those that are known by number."""
        if kind == "gotype":
            return self.go_type(number)
        if kind == "stack":
            return self.stack([] if stacks is None else stacks.addresses(number))
        return self.name(number)

    def go_type(self, address: int) -> str:
        """Return the name of the type of Go that is described at an address; the number where there is none."""
        found = self._types.get(address)
        if found is None:
            found = self._types[address] = self._type_named(address)
        return found

    def _type_named(self, address: int) -> str:
        loaded = self._holding(address)
        try:
            found = None if loaded is None else loaded.image.go_type_names.name(address - loaded.bias)
        except TargetError:
            found = None
        return found or f"{address:#x}"

    def _holding(self, address: int) -> "LoadedObject | None":
        """Return the object that an address lies in, also one that has been loaded since the last look."""
        loaded = self.objects.holding(address)
        if loaded is None and not self._unknown:
            try:
                self.objects.refresh()
            except TargetError:  # it is gone, and so is what was loaded since
                return None
            loaded = self.objects.holding(address)
        if loaded is None and self._unknown is not None:
            self._unknown |= {address, address + 1}  # a caller is known by where it goes on
        return loaded

    def _named(self, address: int, more: int = 0) -> str:
        """Return an address by name, as ``more`` bytes further on in the same function."""
        loaded = self._holding(address)
        if loaded is None:
            return f"{address + more:#x}"
        try:
            function = loaded.image.function_around(address - loaded.bias)
        except TargetError:
            function = None
        if function is None:
            return self._as_data(loaded, address + more)
        distance = address + more - loaded.bias - function.start
        if function.name.endswith(f"+{function.start:#x}"):  # it has no name: once is enough
            return f"{shown_module(loaded.name)}+{function.start + distance:#x}"
        several = len(loaded.image.known_functions.lookup(function.name)) > 1
        name = spelled(function, several=several)
        return f"{shown_module(loaded.name)}:{as_spec(name)}" + (f"+{distance:#x}" if distance else "")

    @staticmethod
    def _as_data(loaded: "LoadedObject", address: int) -> str:
        """Return an address outside of all functions by the variable that it lies in, else by the module."""
        try:
            variable = loaded.image.variable_at(address - loaded.bias)
        except TargetError:
            variable = None
        if variable is None:
            return f"{shown_module(loaded.name)}+{address - loaded.first.start:#x}"
        distance = address - loaded.bias - variable.start
        return f"{shown_module(loaded.name)}:{as_spec(spellings(variable.name).plain)}" + (
            f"+{distance:#x}" if distance else ""
        )
