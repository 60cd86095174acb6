"""What debug information says of the functions that a session's specs mean."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, TypedDict

from anyprobe.binary.images.image import Image
from anyprobe.core.errors import SpecError, UnsupportedTarget
from anyprobe.handlers.types.annotations import AnyType, Layout, PointerType
from anyprobe.handlers.types.calling_convention import KnownPrototype, PassedAsGo, PassedOtherwise, Prototype
from anyprobe.handlers.types.debug_types import DebugTypes
from anyprobe.handlers.types.layouts import ArrayType, StructType

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.probes.providers.function.resolve import ResolvedSite
    from anyprobe.probes.specs.parts import Spec


class Shown(TypedDict):
    """A prototype as text."""

    arguments: tuple[tuple[str, str], ...] | None
    result: str | None


_COMPARED = 5000
"""Pairs of types that are compared at most; where there are more, nothing is said to be the same."""
Resolve = Callable[["Spec"], "Sequence[ResolvedSite]"]


class Prototypes:
    """Prototypes of functions; the debug information of an object is opened when it is first needed."""

    def __init__(self, resolve: Resolve) -> None:
        """Find functions by ``resolve``."""
        self._resolve = resolve
        self._types: dict[int, tuple[Image, DebugTypes]] = {}

    def known(self, specs: "Sequence[Spec]") -> KnownPrototype:
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

    def returns_in_memory(self, specs: "Sequence[Spec]") -> bool:
        """Return whether functions have their result in memory of the caller, and do not return where that is."""
        try:
            return self.known(specs)().is_result_in_memory
        except UnsupportedTarget:
            return False

    def of(self, site: "ResolvedSite") -> Prototype:
        """Return the prototype of a site's function; ``UnsupportedTarget`` says why it is not known."""
        image = site.object.image
        try:
            found = self.types(image).prototype(site.function.start, site.function.name)
            return replace(found, function=site.function.demangled)
        except PassedOtherwise:
            raise
        except UnsupportedTarget as error:
            if image.is_go:
                raise PassedAsGo(str(error)) from None
            raise

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

    def _common(self, specs: "Sequence[Spec]") -> Prototype:
        try:
            sites = [site for spec in specs for site in self._resolve(spec)]
        except SpecError as error:
            raise UnsupportedTarget(f"the function is not there yet: {str(error).splitlines()[0]}") from None
        if sites and all(site.marker is not None for site in sites):
            from anyprobe.probes.providers.usdt.arguments import prototype_at

            return prototype_at(sites)
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
    if len(kinds[0]) != len(kinds[1]):
        return False
    return all(map(_Comparison().same, *kinds)) and one.windows == other.windows and one.places == other.places


class _Comparison:
    """Compares types of two units that may be one in the source: members of members, too, which handlers may follow."""

    def __init__(self) -> None:
        self._seen: set[tuple[int, int]] = set()

    def same(self, one: AnyType, other: AnyType) -> bool:
        """Return whether two types are the same as far as code that reads them goes."""
        if one is other or (id(one), id(other)) in self._seen:
            return True
        if not isinstance(one, PointerType | Layout):
            return one == other
        self._seen.add((id(one), id(other)))
        if str(one) != str(other) or one.size != other.size or len(self._seen) > _COMPARED:
            return False
        if isinstance(one, PointerType) and isinstance(other, PointerType):
            inner, outer = one.element, other.element
            return inner is outer or (inner is not None and outer is not None and self.same(inner, outer))
        if isinstance(one, ArrayType) and isinstance(other, ArrayType):
            return one.count == other.count and self.same(one.element, other.element)
        if isinstance(one, StructType) and isinstance(other, StructType):
            members = [[(each.name, each.offset, each.bits) for each in kind.fields] for kind in (one, other)]
            return members[0] == members[1] and all(
                self.same(left.kind, right.kind) for left, right in zip(one.fields, other.fields, strict=True)
            )
        return True
