"""Compiled handlers kept on disk: the same handler, in whatever program and session, is compiled once.

The name under which code is kept is a digest of all that the code and its inputs depend on: the handler in the
intermediate language, each of its inputs with the place that it is read from, its storages, and the compiler: its own
files, those of the layers below it, and which LLVM it uses. An entry whose inputs are not the handler's is no entry.
"""

import functools
import hashlib
import importlib.util
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

import anyprobe.core
import anyprobe.data
import anyprobe.isa
from anyprobe.binary.objects import cache
from anyprobe.core.code import BpfProgram, Input, InputKind, NativeCode, StorageReference
from anyprobe.core.errors import TargetError
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.ir import show
from anyprobe.handlers.x86.trivial import trivial_code

if TYPE_CHECKING:
    from anyprobe.handlers.bpf.layouts import Passed

_KIND, _KERNEL_KIND = "handler", "kernel-handler"


@contextmanager
def needing_llvm() -> Iterator[None]:
    """Import what needs LLVM; raise ``TargetError`` that says what to install where llvmlite is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name != "llvmlite":
            raise
        raise TargetError(
            "this handler has to be compiled by LLVM, which is not installed: pip install 'anyprobe[handlers]'"
        ) from None


def native_code(handler: ir.Function) -> NativeCode:
    """Return the handler compiled for x86-64, kept or made now; trivial ones need no compiler."""
    trivial = trivial_code(handler)
    if trivial is not None:
        return trivial
    name = hashlib.sha256(f"{_compiler()}\n{identity(handler)}".encode()).hexdigest()
    found = _load(name) if _compiler() else None
    if found is None or found.inputs[: len(handler.inputs)] != handler.inputs:
        with needing_llvm():
            from anyprobe.handlers.x86.native import compile_native

        found = compile_native(handler)
        if _compiler():
            _store(name, found)
    if handler.result is None:
        return found
    from anyprobe.handlers.x86.conditions import comparisons_of  # of what waits, which few commands do

    return found._replace(only_if=comparisons_of(handler))


def spliced_code(handler: ir.Function) -> NativeCode:
    """Return the handler compiled for splices of a kernel; simple ones need no compiler."""
    from anyprobe.handlers.x86.simple import simple_code

    return trivial_code(handler) or simple_code(handler) or native_code(handler)


def kept_program(handler: ir.Function, passed: "Passed") -> BpfProgram:
    """Return the handler compiled for the kernel by LLVM, kept or made now."""
    described = f"{_compiler()}\nkernel {passed.identity(handler.inputs)}\n{identity(handler)}"
    name = hashlib.sha256(described.encode()).hexdigest()
    found = _load_program(name, handler) if _compiler() else None
    if found is None:
        with needing_llvm():
            from anyprobe.handlers.bpf.machine import compile_bpf

        found = compile_bpf(handler, passed=passed)
        if _compiler():
            references = [[each.index, each.storage, each.table] for each in found.references]
            values = {"references": references, "steps": found.steps}
            cache.store(name, _KERNEL_KIND, values, {"code": np.frombuffer(found.code, np.uint8)})
    return found


def _load_program(name: str, handler: ir.Function) -> BpfProgram | None:
    kept = cache.load(name, _KERNEL_KIND)
    if kept is None:
        return None
    values, arrays = kept
    try:
        references = tuple(
            StorageReference(int(index), int(storage), bool(table)) for index, storage, table in values["references"]
        )
        return BpfProgram(arrays["code"].tobytes(), handler.inputs, references, int(values["steps"]))
    except (KeyError, TypeError, ValueError):
        return None  # not what this version writes


def identity(handler: ir.Function) -> str:
    """Return everything that compiled code depends on as text: two handlers that differ in it are compiled apart.

    The inputs are written with all their fields: one number of a parameter is ``rdi`` here and ``rsi`` there. The
    handler's name has no influence on the code.
    """
    parts = [f"-> {handler.result}", *map(repr, handler.inputs), *(each.signature for each in handler.storages)]
    return "\n".join([*parts, *show.body(handler.body)])


@functools.cache
def _compiler() -> str:
    """Return a text that changes with the compiler, empty where its files cannot be looked at."""
    found = importlib.util.find_spec("llvmlite")
    if found is None or found.origin is None:
        return ""
    states = []
    below = [*anyprobe.core.__path__, *anyprobe.isa.__path__, *anyprobe.data.__path__]
    try:
        version = os.stat(os.path.join(os.path.dirname(found.origin), "_version.py"))
        states.append((found.origin, "", version.st_size, version.st_mtime_ns))
        for folder in (os.path.dirname(__file__), *below):
            for place, _, names in os.walk(folder):
                for name in names:
                    if name.endswith(".py"):
                        status = os.stat(os.path.join(place, name))
                        states.append((place, name, status.st_size, status.st_mtime_ns))
        return str(sorted(states))
    except OSError:
        return ""


def _store(name: str, code: NativeCode) -> None:
    values = {
        "inputs": [[each.kind.value, each.name, each.index, each.written, each.place] for each in code.inputs],
        "clobbers": sorted(code.clobbers),
        "stack": code.stack,
        "steps": code.steps,
        "returns": code.returns,
        "vectors": code.vectors,
    }
    cache.store(name, _KIND, values, {"code": np.frombuffer(code.code, np.uint8)})


def _load(name: str) -> NativeCode | None:
    kept = cache.load(name, _KIND)
    if kept is None:
        return None
    values, arrays = kept
    try:
        inputs = tuple(
            Input(InputKind(kind), str(word), int(index), bool(written), str(place))
            for kind, word, index, written, place in values["inputs"]
        )
        return NativeCode(
            arrays["code"].tobytes(),
            inputs,
            frozenset(values["clobbers"]),
            int(values["stack"]),
            int(values["steps"]),
            bool(values["returns"]),
            bool(values["vectors"]),
        )
    except (KeyError, TypeError, ValueError):
        return None  # not what this version writes
