"""Handlers in the kernel: compiled for the functions that they are attached to, and what they have collected."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from anyprobe.core.code import Input, InputKind, NativeCode
from anyprobe.core.errors import HandlerError, UnsupportedTarget
from anyprobe.handlers.bpf.layouts import SAVED_ARGUMENTS, Passed, RecordPlace, argument_of
from anyprobe.handlers.compiler import intermediate
from anyprobe.handlers.frontend.context import FEW_WORDS, InstanceLayout
from anyprobe.handlers.frontend.lowering import Setting
from anyprobe.handlers.frontend.source import source_of
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.kernel_programs import kernel_program, places_in
from anyprobe.handlers.types.annotations import AnyType, i64
from anyprobe.handlers.types.calling_convention import KnownPrototype, Prototype
from anyprobe.handlers.types.storages import CallData, Storage
from anyprobe.probes.providers.kernel.collection import Collection
from anyprobe.probes.providers.kernel.passing import (
    BY_RECORD,
    BY_TRACEPOINT,
    CALLER,
    attributes,
    by_registers,
    by_tracepoint_type,
    by_type,
    prototype,
)
from anyprobe.probes.providers.kernel.places.sites import FunctionType, KernelSite, Unable
from anyprobe.target.kernel.programs import VerifierRefusal

if TYPE_CHECKING:
    from anyprobe.probes.providers.kernel.splices.splicing import Handling
    from anyprobe.splice.kernel.handlers import KernelHandler as PlacedHandler

Handler = Callable[..., Any]


@dataclass(eq=False)
class KernelCallData:
    """The data of calls: its names, and where it is."""

    layout: InstanceLayout = field(default_factory=InstanceLayout)
    storage: CallData = field(default_factory=CallData)


class SplicedHandler(NamedTuple):
    """A handler compiled for splices, and the storages that its code uses, in their order."""

    code: NativeCode
    storages: tuple[Storage, ...]
    calls: CallData | None = None
    """The data of the calls that it is at an end of."""
    enters: bool = False
    """Whether it runs where they begin."""


class KernelHandler:
    """A Python function that runs in the kernel: one program for each kind of place."""

    def __init__(
        self,
        collection: Collection,
        function: Handler,
        when: Handler | None = None,
        retval: AnyType | None = None,
        call: "KernelCallData | None" = None,
        at_tails: Handler | None = None,
    ) -> None:
        """Compile nothing yet.

        Args:
            collection: what it collects into.
            function: the handler.
            when: a condition for it to run.
            retval: the result's type if it is not the kernel's.
            call: the data that both ends of a call share.
            at_tails: what runs instead where a function ends in a jump to another one, if that is something else.
        """
        self._at_tails = at_tails or function
        self._collection, self.function, self._when, self._retval = collection, function, when, retval
        self._call = call
        self._made: dict[object, bytes] = {}
        self._spliced: dict[object, SplicedHandler] = {}
        self._last: tuple[KernelSite, KnownPrototype, Passed | None] | None = None
        """What was compiled last."""

    @property
    def calls(self) -> CallData | None:
        """Where the data of the calls is that it is at an end of."""
        return None if self._call is None else self._call.storage

    def check(self, site: KernelSite, found: FunctionType | None) -> None:
        """Raise ``HandlerError`` if it cannot be compiled for a place."""
        if site.raw is None and (site.function is not None or site.tracepoint is None):
            self._intermediate(site, self._at_function(site, found))
        elif self._takes_record(site):
            self._intermediate(site, partial(self._collection.events.of_record, site))
        else:
            self._intermediate(site, partial(self._collection.events.of_raw, site))

    def for_function(self, site: KernelSite, found: FunctionType) -> bytes:
        """Return the program for a function's entry or exit, by its type."""
        key = ("typed", site.kind, site.module, found.types.name, found.number)
        handler = self._intermediate(site, self._at_function(site, found))
        if any(each.kind is InputKind.REGISTER for each in handler.inputs):
            raise Unable("it does not tell the registers")
        _see_no_caller(handler)
        passed = by_type(site, found)
        parameters = [each for each in handler.inputs if each.kind is InputKind.PARAMETER]
        if any(argument_of(each.place) is None and passed.word(each) is None for each in parameters):
            raise Unable("the function has fewer parameters")  # by position, of functions of several types
        return self._program(key, handler, passed)

    def for_registers(self, site: KernelSite, found: FunctionType | None) -> bytes:
        """Return the program for a kprobe or kretprobe."""
        known = (site.name, site.marker) if found is None else (site.module, found.types.name, found.number)
        key = ("registers", site.kind, known)
        handler = self._intermediate(site, self._at_function(site, found))
        _see_no_caller(handler)
        return self._program(key, handler, by_registers(site))

    def for_splice(
        self, site: KernelSite, found: FunctionType | None, processors: int, *, tail: bool = False
    ) -> SplicedHandler:
        """Return the machine code for a place in a function; ``tail``: it ends in a jump to another one there."""
        known = (site.name, site.marker) if found is None else (site.module, found.types.name, found.number)
        key = (site.kind, known, tail)
        if key not in self._spliced:
            from anyprobe.handlers.compile_cache import spliced_code
            from anyprobe.probes.providers.kernel.splices.shared_storages import of_processors

            handler = self._intermediate(site, self._at_function(site, found), tail=tail)
            if self._call is not None and self._call.layout.words > FEW_WORDS:
                what = f"in splices the data of a call has at most {FEW_WORDS} words; a text takes its bytes and a word"
                raise HandlerError(what, instead="a shorter text: cstr(p, 32); or another mechanism")
            handler = handler._replace(inputs=tuple(map(_placed, handler.inputs)))
            own = [each for each in handler.storages if not isinstance(each, CallData)]
            by_clock = self._collection.shared.by_clock
            storages = tuple(of_processors(each, processors, by_clock=by_clock) for each in own)
            code = spliced_code(handler._replace(storages=storages))
            calls = self._call.storage if self._call is not None and self._call.layout.fields else None
            self._spliced[key] = SplicedHandler(code, tuple(own), calls, site.kind == "entry")
        return self._spliced[key]

    @property
    def handling(self) -> "Handling":
        """How splices run it."""
        from anyprobe.probes.providers.kernel.splices.splicing import Handling

        return Handling(self, self._collection.shared, self._place)

    def _place(self, made: SplicedHandler) -> "PlacedHandler":
        """Give what was compiled for splices the addresses of what it uses."""
        from anyprobe.splice.kernel.handlers import KernelHandler as PlacedHandler

        shared, code = self._collection.shared, made.code
        kinds = {each.kind for each in code.inputs}
        return PlacedHandler(
            code,
            tuple(map(shared.place, made.storages)),
            shared.misses_address if InputKind.MISSES in kinds else 0,
            shared.guard,
            calls=self._collection.place(made.calls) if made.calls is not None else 0,
            calls_at_once=made.calls.capacity if made.calls is not None else 0,
            enters=made.enters,
            calls_clock=shared.by_clock,
        )

    def for_tracepoint(self, site: KernelSite) -> bytes:
        """Return the program for a raw tracepoint: its parameters are what the tracepoint passes."""
        self._see_no_call()
        if self._takes_record(site):
            raise Unable("the parameters are fields of the tracepoint's record")
        handler = self._intermediate(site, partial(self._collection.events.of_raw, site))
        return self._program(("raw", site.raw), handler, BY_TRACEPOINT)

    def for_typed_tracepoint(self, site: KernelSite) -> bytes:
        """Return the program for a tracepoint by its type: its parameters are what the tracepoint passes."""
        self._see_no_call()
        if self._takes_record(site):
            raise Unable("the parameters are fields of the tracepoint's record")
        known = partial(self._collection.events.of_raw, site)
        return self._program(("typed", site.raw), self._intermediate(site, known), by_tracepoint_type(known()))

    def for_record(self, site: KernelSite) -> bytes:
        """Return the program for a tracepoint's event: its parameters are fields of the record."""
        self._see_no_call()
        prototype = self._collection.events.of_record
        if site.kind == "return":  # the only field is the result
            handler = self._intermediate(site, lambda: Prototype(site.name, (), i64))
        else:
            handler = self._intermediate(site, partial(prototype, site))
        for each in handler.inputs:
            if each.kind is InputKind.PARAMETER and RecordPlace.of(each.place) is None:
                raise Unable("the record has parameters by name only")
            if each.kind is InputKind.REGISTER or each.name in {"func", "ip"}:
                raise Unable(f"the record has no {each.name}")
        return self._program(("record", site.tracepoint), handler, BY_RECORD)

    def _see_no_call(self) -> None:
        if self._call is not None:
            raise Unable("calls have their data at functions only")

    def _at_function(self, site: KernelSite, found: FunctionType | None) -> KnownPrototype:
        """Return what is known of a function, of a system call by its own parameters."""
        if site.is_call and site.kind == "entry":
            return partial(self._collection.events.of_call, site)
        return partial(prototype, site, found)

    def _takes_record(self, site: KernelSite) -> bool:
        """Return whether the parameters are fields of a tracepoint's record, not what the tracepoint passes."""
        if site.tracepoint is None:
            return False
        try:
            handler = self._intermediate(site, partial(self._collection.events.of_record, site))
        except HandlerError:
            if site.raw is None:
                raise
            if self._takes_what_is_passed(site):
                return False
            raise
        parameters = [each for each in handler.inputs if each.kind is InputKind.PARAMETER]
        if not parameters:  # declared ones may be of no use, and have names nevertheless
            return site.raw is not None and not self._takes_what_is_passed(site)
        return all(RecordPlace.of(each.place) is not None for each in parameters)

    def _takes_what_is_passed(self, site: KernelSite) -> bool:
        """Return whether it can be compiled for what the tracepoint itself passes."""
        try:
            self._intermediate(site, partial(self._collection.events.of_raw, site))
        except HandlerError:
            return False
        return True

    def rejected(self, refusal: VerifierRefusal, before: int) -> HandlerError:
        """Return the error for what the kernel's verifier says of the last program, which has code before it."""
        message = refusal.because or "the kernel's verifier does not accept this"
        said = "\n".join(refusal.words)
        mark = None
        site, known, passed = self._last or (None, None, None)
        if site is not None and known is not None and passed is not None and refusal.at is not None:
            places = places_in(self._intermediate(site, known, marked=True), passed)
            mark = next((each for at, each in reversed(places) if at <= refusal.at - before), None)
        if mark is None:
            source = source_of(self.function)
            at = source.error(source.tree, "")
            return HandlerError(message, file=at.file, line=at.line, column=at.column, source=at.source, said=said)
        return HandlerError(message, file=mark.file, line=mark.line, column=mark.column, source=mark.source, said=said)

    def for_event(self, site: KernelSite) -> bytes:
        """Return the program for a timer or an event, which passes nothing."""
        passed = Passed(lambda _: None, kernel_memory=True)
        return self._program(("event",), self._intermediate(site, partial(prototype, site, None)), passed)

    def _program(self, key: object, handler: ir.Function, passed: Passed) -> bytes:
        if self._last is not None:
            self._last = (*self._last[:2], passed)
        if key not in self._made:
            program = kernel_program(handler, passed)
            self._collection.adopt(handler.storages)
            self._made[key] = self._collection.maps.placed(program, handler.storages)
        return self._made[key]

    def _intermediate(
        self, site: KernelSite, known_prototype: KnownPrototype, *, marked: bool = False, tail: bool = False
    ) -> ir.Function:
        if not marked:
            self._last = (site, known_prototype, None)
        returns = site.kind == "return"
        retval = self._retval or (_result(known_prototype) if returns else None)
        known = attributes(site, spliced=self._collection.spliced) | ({"data"} if self._call is not None else set())
        setting = Setting(
            self._collection.storages,
            InstanceLayout() if self._call is None else self._call.layout,
            retval=retval,
            entry=not returns,
            tail=tail,
            prototype=known_prototype,
            kernel=known,
            marker=site.marker,
            marked=marked,
        )
        handler = intermediate(self._at_tails if tail else self.function, setting, self._when)
        if site.kind != "entry" and any(each.kind is InputKind.PARAMETER for each in handler.inputs):
            raise HandlerError("the parameters are gone here", instead="a handler at the entry")
        if self._call is not None and self._call.layout.fields:
            return handler._replace(storages=(*handler.storages, self._call.storage))
        return handler


def _see_no_caller(handler: ir.Function) -> None:
    if any(each.kind is InputKind.CONTEXT and each.name == CALLER for each in handler.inputs):
        raise Unable("it does not tell the caller: splices do")


def _placed(given: Input) -> Input:
    """Return an input of which a parameter of a system call is where its function finds it."""
    argument = argument_of(given.place)
    return given if argument is None else replace(given, place=f"saved+{SAVED_ARGUMENTS[argument]}")


def _result(known: KnownPrototype) -> AnyType | None:
    try:
        return known().result
    except UnsupportedTarget:
        return i64
