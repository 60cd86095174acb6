"""What a compiled handler asks for, by its inputs."""

from collections.abc import Iterable

from anyprobe.core.code import SKIP, Input, InputKind, NativeCode
from anyprobe.handlers.types.storages import Ring


def asks_kernel(code: NativeCode) -> bool:
    """Return whether a handler may make system calls."""
    return any(each.kind is InputKind.ROUTINE and each.name != SKIP for each in code.inputs)


def has(code: NativeCode, kind: InputKind) -> bool:
    """Return whether a handler asks for something of a kind."""
    return any(each.kind is kind for each in code.inputs)


def reads_clock(code: NativeCode, storages: Iterable[object]) -> bool:
    """Return whether a handler reads the time stamp counter: itself, or for the time of a record."""
    return uses(code, "now") or any(isinstance(each, Ring) for each in storages)


def uses(code: NativeCode, name: str) -> bool:
    """Return whether a handler asks for an attribute of ``ctx``."""
    return any(each.kind is InputKind.CONTEXT and each.name == name for each in code.inputs)


def releasing(code: NativeCode) -> NativeCode:
    """Return the code of a return's handler with the call's data among its inputs: the routine then frees it."""
    if any(each.kind is InputKind.INSTANCE for each in code.inputs):
        return code
    return code._replace(inputs=(*code.inputs, Input(InputKind.INSTANCE)))
