"""What debug information says of the functions that a session's specs mean."""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, TypedDict

from anyprobe.binary.image import Image
from anyprobe.core.errors import SpecError, UnsupportedTarget
from anyprobe.handlers.arguments import KnownPrototype, Prototype
from anyprobe.handlers.debugtypes import DebugTypes
from anyprobe.handlers.layouts import StructType
from anyprobe.handlers.types import AnyType, PointerType

if TYPE_CHECKING:
    from anyprobe.binary.modules import LoadedObject
    from anyprobe.probes.resolve import ResolvedSite


class Shown(TypedDict):
    """A prototype as text."""

    arguments: tuple[tuple[str, str], ...] | None
    result: str | None


Resolve = Callable[[str], "Sequence[ResolvedSite]"]


class Prototypes:
    """Prototypes of functions; the debug information of an object is opened when it is first needed."""

    def __init__(self, resolve: Resolve) -> None:
        """Find functions by ``resolve``."""
        self._resolve = resolve
        self._types: dict[int, tuple[Image, DebugTypes]] = {}

    def known(self, specs: Sequence[str]) -> KnownPrototype:
        """Return what finds the prototype of the functions that specs mean, once it is asked."""

        @cache
        def found() -> Prototype | UnsupportedTarget:
            try:
                return self._common(specs)
            except UnsupportedTarget as error:
                return error

        def find() -> Prototype:
            known = found()
            if isinstance(known, UnsupportedTarget):
                raise known
            return known

        return find

    def of(self, site: "ResolvedSite") -> Prototype:
        """Return the prototype of a site's function; ``UnsupportedTarget`` says why it is not known."""
        return self.types(site.object.image).prototype(site.function.start, site.function.name)

    def shown(self, site: "ResolvedSite") -> Shown:
        """Return names and types of a site's parameters, and of its result, as texts; both ``None`` if not known."""
        try:
            found = self.of(site)
        except UnsupportedTarget:
            return {"arguments": None, "result": None}
        return {
            "arguments": tuple((name, str(kind)) for name, kind in found.parameters),
            "result": None if found.result is None else str(found.result),
        }

    def types(self, image: Image) -> DebugTypes:
        """Return the types of an object."""
        known = self._types.get(id(image))
        if known is None:
            known = self._types[id(image)] = image, DebugTypes(image.debug_info)
        return known[1]

    def named(self, name: str, objects: "Sequence[LoadedObject]") -> AnyType:
        """Return a type by its name, from the first of some objects that knows it."""
        reasons = ["no such module is loaded"]
        for each in objects:
            try:
                return self.types(each.image).named(name)
            except UnsupportedTarget as error:
                reasons = [str(error)]
        raise UnsupportedTarget(f"no type {name}: {reasons[0]}")

    def _common(self, specs: Sequence[str]) -> Prototype:
        try:
            sites = [site for spec in specs for site in self._resolve(spec)]
        except SpecError as error:
            raise UnsupportedTarget(f"the function is not there yet: {str(error).splitlines()[0]}") from None
        functions = {(id(site.object), site.function.start): site for site in sites}
        if not functions:
            raise UnsupportedTarget("there is no such function")
        prototypes = (self.of(site) for site in functions.values())
        first = next(prototypes)
        for other in prototypes:
            if not _alike(first, other):
                raise UnsupportedTarget(f"{first.function} and {other.function} have different parameters or results")
        return first


def _alike(one: Prototype, other: Prototype) -> bool:
    """Return whether code compiled for one function serves another."""
    if [name for name, _ in one.parameters] != [name for name, _ in other.parameters]:
        return False
    kinds = [
        [*(kind for _, kind in each.parameters), *([each.result] if each.result is not None else [])]
        for each in (one, other)
    ]
    return _same(*kinds) and one.windows == other.windows and one.places == other.places


def _same(one: Iterable[AnyType], other: Iterable[AnyType]) -> bool:
    return [_described(kind) for kind in one] == [_described(kind) for kind in other]


def _described(kind: AnyType) -> str:
    """Return a text that is the same for types of two units that are one in the source."""
    while isinstance(kind, PointerType) and kind.element is not None:
        kind = kind.element
    fields = kind.fields if isinstance(kind, StructType) else ()
    return f"{kind} {[(each.name, str(each.kind), each.offset, each.bits) for each in fields]}"
