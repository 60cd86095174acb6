"""Handlers in the kernel: compiled for the functions that they are attached to, and what they have collected."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from anyprobe.core.code import InputKind
from anyprobe.core.errors import HandlerError, UnsupportedTarget
from anyprobe.handlers.bpf.layouts import AT_TRACEPOINT, Passed
from anyprobe.handlers.compile_cache import kernel_program
from anyprobe.handlers.compiler import intermediate
from anyprobe.handlers.frontend.context import InstanceLayout
from anyprobe.handlers.frontend.lowering import Setting
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.annotations import AnyType, i64
from anyprobe.handlers.types.storages import CallData
from anyprobe.probes.providers.kernel.collection import Collection
from anyprobe.probes.providers.kernel.passing import attributes, by_registers, by_type, prototype
from anyprobe.probes.providers.kernel.sites import FunctionType, KernelSite, Unable

Handler = Callable[..., Any]


@dataclass(eq=False)
class KernelCallData:
    """The data of calls: its names, and where it is."""

    layout: InstanceLayout = field(default_factory=InstanceLayout)
    storage: CallData = field(default_factory=CallData)


class KernelHandler:
    """A Python function that runs in the kernel: one program for each kind of place."""

    def __init__(
        self,
        collection: Collection,
        function: Handler,
        when: Handler | None = None,
        retval: AnyType | None = None,
        call: "KernelCallData | None" = None,
    ) -> None:
        """Compile nothing yet; ``call``: the data that both ends of a call share."""
        self._collection, self._function, self._when, self._retval = collection, function, when, retval
        self._call = call
        self._made: dict[object, bytes] = {}

    def check(self, site: KernelSite, found: FunctionType | None) -> None:
        """Raise ``HandlerError`` if it cannot be compiled for a place."""
        self._intermediate(site, found)

    def for_function(self, site: KernelSite, found: FunctionType) -> bytes:
        """Return the program for a function's entry or exit, by its type."""
        key = ("typed", site.kind, found.types.name, found.number)
        handler = self._intermediate(site, found)
        if any(each.kind is InputKind.REGISTER for each in handler.inputs):
            raise Unable("it does not tell the registers")
        return self._program(key, handler, by_type(site, found))

    def for_registers(self, site: KernelSite, found: FunctionType | None) -> bytes:
        """Return the program for a kprobe or kretprobe."""
        key = ("registers", site.kind, site.name if found is None else (found.types.name, found.number))
        return self._program(key, self._intermediate(site, found), by_registers(site))

    def for_tracepoint(self, site: KernelSite) -> bytes:
        """Return the program for a tracepoint: its parameters are what the tracepoint passes, by position."""
        passed = Passed(AT_TRACEPOINT.word, kernel_memory=True)
        return self._program(("tracepoint",), self._intermediate(site, None), passed)

    def for_event(self, site: KernelSite) -> bytes:
        """Return the program for a timer or an event, which passes nothing."""
        passed = Passed(lambda _: None, kernel_memory=True)
        return self._program(("event",), self._intermediate(site, None), passed)

    def _program(self, key: object, handler: ir.Function, passed: Passed) -> bytes:
        if key not in self._made:
            program = kernel_program(handler, passed)
            self._collection.adopt(handler.storages)
            self._made[key] = self._collection.maps.placed(program, handler.storages)
        return self._made[key]

    def _intermediate(self, site: KernelSite, found: FunctionType | None) -> ir.Function:
        returns = site.kind == "return"
        retval = self._retval or (_result(site, found) if returns else None)
        known = attributes(site) if self._call is None else attributes(site) | {"data"}
        setting = Setting(
            self._collection.storages,
            InstanceLayout() if self._call is None else self._call.layout,
            retval=retval,
            entry=not returns,
            prototype=lambda: prototype(site, found),
            kernel=known,
        )
        handler = intermediate(self._function, setting, self._when)
        if site.kind != "entry" and any(each.kind is InputKind.PARAMETER for each in handler.inputs):
            raise HandlerError("the parameters are gone here", instead="a handler at the entry")
        if self._call is not None and self._call.layout.fields:
            return replace(handler, storages=(*handler.storages, self._call.storage))
        return handler


def _result(site: KernelSite, found: FunctionType | None) -> AnyType | None:
    try:
        return prototype(site, found).result
    except UnsupportedTarget:
        return i64
