"""What handlers can call beyond arithmetic. Outside of a handler these names only stand for themselves."""

from typing import Any, NoReturn

from anyprobe.core.errors import UsageError


def _only_in_handlers(name: str) -> NoReturn:
    raise UsageError(f"{name}() reads the target's memory; it can be called in handlers only")


def cstr(address: Any, limit: int = 64) -> Any:  # noqa: ANN401, ARG001 - typed by the compiler of handlers
    """Read a text up to its NUL, at most ``limit`` bytes and an array's own; missing if the address is bad.

    Args:
        address: where the text begins: an address or a ``char`` pointer.
        limit: the most bytes that are read.

    Raises:
        UsageError: always, outside of a handler.
    """
    _only_in_handlers("cstr")


def buf(address: Any, size: int, limit: int = 128) -> Any:  # noqa: ANN401, ARG001 - typed by the compiler of handlers
    """Read ``size`` bytes, or as many of them as ``limit`` says; missing if the address is bad.

    Args:
        address: where the bytes begin.
        size: how many are read; may be computed.
        limit: the most bytes that are read; a constant.

    Raises:
        UsageError: always, outside of a handler.
    """
    _only_in_handlers("buf")


def emit(record: str = "", /, **fields: Any) -> None:  # noqa: ANN401, ARG001 - typed by the compiler of handlers
    """Write a record with named fields; the controller reads it a moment later.

    Args:
        record: its name.
        fields: its values: numbers, ``cstr``, ``buf``, stacks.

    Raises:
        UsageError: always, outside of a handler.
    """
    raise UsageError("emit() writes a record of a hit; it can be called in handlers only")


def printf(text: Any) -> None:  # noqa: ANN401, ARG001 - typed by the compiler of handlers
    """Write a record that is shown as an f-string; the text is made where it is read.

    Args:
        text: an f-string over values of the handler.

    Raises:
        UsageError: always, outside of a handler.
    """
    raise UsageError("printf() writes a record of a hit; it can be called in handlers only")


def emit_partial(record: str = "", /, **fields: Any) -> None:  # noqa: ANN401, ARG001 - typed by the compiler of handlers
    """Write a record like ``emit``, with zeros for what is missing; ``missing`` has a bit for each such field."""
    raise UsageError("emit_partial() writes a record of a hit; it can be called in handlers only")


def shown(value: Any) -> Any:  # noqa: ANN401, ARG001 - typed by the compiler of handlers
    """Return what a value is where it is shown: for handlers that keep it until then."""
    raise UsageError("shown() is what a handler's value is shown as; it can be called in handlers only")
