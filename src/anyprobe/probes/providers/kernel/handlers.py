"""Handlers in the kernel: compiled for the functions that they are attached to, and what they have collected."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

from anyprobe.core.code import Input, InputKind
from anyprobe.core.errors import HandlerError, UnsupportedTarget
from anyprobe.data.results import AggregationResult
from anyprobe.handlers.bpf.machine import AT_TRACEPOINT, Passed, compile_bpf
from anyprobe.handlers.bpf.storages import KernelStorages
from anyprobe.handlers.compiler import intermediate
from anyprobe.handlers.frontend.lowering import Setting
from anyprobe.handlers.types.annotations import AnyType, IntegerType, PointerType, boolean, i64, ptr
from anyprobe.handlers.types.calling_convention import Prototype
from anyprobe.handlers.types.storages import Table
from anyprobe.probes.providers.kernel.sites import FunctionType, KernelSite
from anyprobe.target.kernel.btf import Btf
from anyprobe.target.kernel.types import Enum, Int, Pointer, Void

Handler = Callable[..., Any]
_REGISTERS = {"rdi": 14, "rsi": 13, "rdx": 12, "rcx": 11, "r8": 9, "r9": 8}
"""The words of ``struct pt_regs`` in which a function's parameters are."""
_RESULT = 10
"""The word with ``rax``."""


def known_type(types: Btf, number: int) -> AnyType:
    """Return a type of the kernel as handlers have it; raise ``UnsupportedTarget`` where they have none."""
    found = types.bare(number)[1]
    if isinstance(found, Int):
        return boolean if found.is_bool else _integer(found.size, signed=found.signed)
    if isinstance(found, Enum):
        return _integer(found.size, signed=found.signed)
    if isinstance(found, Pointer):
        target = types.bare(found.target)[1]
        return PointerType(known_type(types, found.target)) if isinstance(target, Int) else ptr
    raise UnsupportedTarget(f"it has a {types.described(number)}")


def _integer(size: int, *, signed: bool) -> IntegerType:
    if size > 8:
        raise UnsupportedTarget(f"it has a number of {size} bytes")
    return IntegerType(8 * size, signed=signed)


def prototype(site: KernelSite, found: FunctionType | None) -> Prototype:
    """Return what BTF says of a function; raise ``UnsupportedTarget`` where that is nothing, or nothing of use."""
    if found is None:
        raise UnsupportedTarget(f"BTF has no type of {site.name} alone")
    types, described = found.types, found.prototype
    parameters = tuple((name, known_type(types, kind)) for name, kind in described.parameters)
    is_void = isinstance(types.bare(described.result)[1], Void)
    return Prototype(site.name, parameters, None if is_void else known_type(types, described.result))


def _typed(found: FunctionType, given: Input) -> int | None:
    """Return at which word a program of a function's entry or exit finds something: parameters, then the result."""
    if given.kind is InputKind.PARAMETER:
        return given.index
    return len(found.prototype.parameters) if given.name == "retval" else None


def _in_registers(given: Input) -> int | None:
    if given.kind is InputKind.PARAMETER:
        return _REGISTERS.get(given.place)
    return _RESULT if given.name == "retval" else None


class KernelHandler:
    """A Python function that runs in the kernel: one program for each kind of place, each with its own storages."""

    def __init__(self, function: Handler, when: Handler | None = None, retval: AnyType | None = None) -> None:
        """Compile nothing yet."""
        self._function, self._when, self._retval = function, when, retval
        self._made: dict[object, tuple[KernelStorages, bytes, list[int]]] = {}

    def check(self, site: KernelSite, found: FunctionType | None) -> None:
        """Raise ``HandlerError`` if it cannot be compiled for a place."""
        self._intermediate(site, found)

    def for_function(self, site: KernelSite, found: FunctionType) -> bytes:
        """Return the program for a function's entry or exit, by its type."""
        key = ("typed", site.kind, found.types.name, found.number)
        return self._program(key, site, found, Passed(partial(_typed, found), kernel_memory=True))

    def for_registers(self, site: KernelSite, found: FunctionType | None) -> bytes:
        """Return the program for a kprobe or kretprobe."""
        if site.kind == "offset":
            raise HandlerError("handlers inside functions are not possible in the kernel yet", instead="its entry")
        key = ("registers", site.kind, site.name if found is None else (found.types.name, found.number))
        return self._program(key, site, found, Passed(_in_registers, kernel_memory=True))

    def for_tracepoint(self, site: KernelSite) -> bytes:
        """Return the program for a tracepoint: its parameters are what the tracepoint passes, by position."""
        passed = Passed(AT_TRACEPOINT.word, kernel_memory=True)
        return self._program(("tracepoint",), site, None, passed)

    def _program(self, key: object, site: KernelSite, found: FunctionType | None, passed: Passed) -> bytes:
        if key not in self._made:
            handler = self._intermediate(site, found)
            program = compile_bpf(handler, passed=passed)
            tables = [index for index, each in enumerate(handler.storages) if isinstance(each, Table)]
            if len(tables) < len(handler.storages):
                raise HandlerError(
                    "stacks, maps and records are not possible in the kernel yet", instead="aggregations"
                )
            storages = KernelStorages(handler)
            self._made[key] = storages, storages.placed(program), tables
        return self._made[key][1]

    def _intermediate(self, site: KernelSite, found: FunctionType | None) -> Any:  # noqa: ANN401 - the compiler's own
        returns = site.kind == "return"
        retval = self._retval or (_result(site, found) if returns else None)
        setting = Setting(retval=retval, entry=not returns, prototype=lambda: prototype(site, found))
        handler = intermediate(self._function, setting, self._when)
        if returns and any(each.kind is InputKind.PARAMETER for each in handler.inputs):
            raise HandlerError("the parameters are gone here", instead="a handler at the entry")
        return handler

    def aggregations(self) -> Iterator[AggregationResult]:
        """Yield what each program has collected."""
        for storages, _, tables in self._made.values():
            for index in tables:
                yield storages.result(index)

    def misses(self) -> dict[str, int]:
        """Return what went wrong, by kind."""
        found: dict[str, int] = {}
        for storages, _, _ in self._made.values():
            for kind, count in storages.misses().items():
                found[kind] = found.get(kind, 0) + count
        return {kind: count for kind, count in found.items() if count}

    def close(self) -> None:
        """Give the storages back."""
        with ExitStack() as stack:
            for storages, _, _ in self._made.values():
                stack.callback(storages.close)
        self._made = {}


def _result(site: KernelSite, found: FunctionType | None) -> AnyType | None:
    try:
        return prototype(site, found).result
    except UnsupportedTarget:
        return i64
