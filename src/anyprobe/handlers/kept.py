"""Compiled handlers kept on disk: the same handler, in whatever program and session, is compiled once.

The name under which code is kept is a digest of the handler in the intermediate language, which says all that the code
depends on, and of the compiler itself: its own files, those of the layouts that it writes to, and which LLVM it uses.
"""

import functools
import hashlib
import importlib.util
import os
from dataclasses import replace

import numpy as np

import anyprobe.data
from anyprobe.binary import cache
from anyprobe.core.code import Input, InputKind, NativeCode
from anyprobe.handlers import ir, show
from anyprobe.handlers.trivial import trivial_code

_KIND = "handler"


def native_code(handler: ir.Function) -> NativeCode:
    """Return the handler compiled for x86-64, kept or made now; trivial ones need no compiler."""
    trivial = trivial_code(handler)
    if trivial is not None:
        return trivial
    # the name has no influence on the code
    name = hashlib.sha256(f"{_compiler()}\n{show.function(replace(handler, name=''))}".encode()).hexdigest()
    found = _load(name) if _compiler() else None
    if found is None:
        from anyprobe.handlers.native import compile_native

        found = compile_native(handler)
        if _compiler():
            _store(name, found)
    return found


@functools.cache
def _compiler() -> str:
    """Return a text that changes with the compiler, empty where its files cannot be looked at."""
    found = importlib.util.find_spec("llvmlite")
    if found is None or found.origin is None:
        return ""
    states = []
    try:
        version = os.stat(os.path.join(os.path.dirname(found.origin), "_version.py"))
        states.append((found.origin, "", version.st_size, version.st_mtime_ns))
        for folder in (os.path.dirname(__file__), *anyprobe.data.__path__):
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
