"""Kernel handlers as anyprobe's handlers: functions of ``ctx`` that call them with the kernel's parameters.

They are compiled, never called; the functions that they call are compiled in place.
"""

# ruff: noqa: ANN001, ANN202, ARG001 - the wrappers are read by the compiler alone
# mypy: disable-error-code="no-untyped-def,no-untyped-call"

import ast
from typing import Any

from anyprobe.handlers.csource import CHandler
from anyprobe.handlers.frontend.source import source_of
from anyprobe.handlers.types.annotations import i32, u64
from anyprobe.kprobes.structures import Handler

STAYS = 0
"""As ``rip``: the thread goes on where it would."""


def check_parameters(function: Any, *names: str) -> None:  # noqa: ANN401 - a Handler, or None
    """See that a handler in Python takes what it will be given."""
    if function is None or isinstance(function, CHandler):
        return
    source = source_of(function)
    if len(source.tree.args.posonlyargs + source.tree.args.args) != len(names):
        raise source.error(source.tree, f"this handler is called as {source.name}({', '.join(names)})")


def before(function: Handler, p: type, regs: type) -> Handler:
    """Return what runs before the instruction."""

    def handler(ctx):
        function(p, regs)

    return handler


def redirecting(function: Handler, p: type, regs: type) -> Handler:
    """Return what runs before the instruction and may set ``regs.ip``, which counts only if its result is not 0."""

    def handler(ctx):
        if function(p, regs) == 0:
            ctx.regs.rip = STAYS

    return handler


def after(function: Handler, p: type, regs: type) -> Handler:
    """Return what runs after the instruction; the kernel's ``flags`` are always zero."""

    def handler(ctx):
        function(p, regs, 0)

    return handler


def faulting(function: Handler, p: type, regs: type, site: int) -> Handler:
    """Return what runs where the instruction has faulted; its result says whether the thread is to go on.

    ``ctx.caller`` is the number of the trap there.
    """

    def handler(ctx):
        ctx.regs.rip = site
        if function(p, regs, i32(u64(ctx.caller))) == 0:
            ctx.regs.rip = STAYS

    def plain(ctx):
        function(p, regs, i32(u64(ctx.caller)))

    return handler if handles(function) else plain


def handles(function: Handler) -> bool:
    """Return whether a fault handler may take a fault for handled: whether it returns anything but 0."""
    returned = [node.value for node in ast.walk(source_of(function).tree) if isinstance(node, ast.Return)]
    return any(value is not None and not (isinstance(value, ast.Constant) and not value.value) for value in returned)


def followed(missed: Any) -> Handler:  # noqa: ANN401 - a Count
    """Return what marks a call whose return is to be seen."""

    def handler(ctx):
        ctx.data.kretprobe = 1
        if ctx.data.kretprobe is None:
            missed.add()

    return handler


def entered(function: Handler, missed: Any, ri: type, regs: type) -> Handler:  # noqa: ANN401
    """Return what runs at the entry of a function with an entry handler."""

    def handler(ctx):
        ctx.data.kretprobe = 1
        if ctx.data.kretprobe is None:
            missed.add()
            return
        if function(ri, regs) != 0:
            ctx.data.kretprobe = 0

    def plain(ctx):
        ctx.data.kretprobe = 1
        if ctx.data.kretprobe is None:
            missed.add()
            return
        function(ri, regs)

    return handler if returns_values(function) else plain


def returned(function: Handler, ri: type, regs: type) -> Handler:
    """Return what runs where a function returns; it had to be seen when it was entered."""

    def handler(ctx):
        marked = ctx.data.kretprobe
        if marked is None:
            return
        if marked != 0:
            function(ri, regs)

    return handler


def ignored() -> Handler:
    """Return what runs where a function returns whose entry alone is asked for: the call's data is given back."""

    def handler(ctx):
        return

    return handler


def expected(function: Any, ri: type, regs: type) -> Handler:  # noqa: ANN401 - a Handler, or None
    """Return what runs at the entry where the return is seen at a replaced return address, and missed there."""

    def handler(ctx):
        ctx.data.kretprobe = 1

    def entered(ctx):
        ctx.data.kretprobe = 1
        if ctx.data.kretprobe is None:
            return
        if function(ri, regs) != 0:
            ctx.data.kretprobe = 0

    def plain(ctx):
        ctx.data.kretprobe = 1
        if ctx.data.kretprobe is None:
            return
        function(ri, regs)

    if function is None:
        return handler
    return entered if returns_values(function) else plain


def come_back(function: Handler, missed: Any, ri: type, regs: type) -> Handler:  # noqa: ANN401
    """Return what runs at a replaced return address; a call whose instance another one has taken over is missed."""

    def handler(ctx):
        marked = ctx.data.kretprobe
        if marked is None:
            missed.add()
            return
        if marked != 0:
            function(ri, regs)

    return handler


def returns_values(function: Handler) -> bool:
    """Return whether a function has a result; without one it is 0 in the kernel's eyes."""
    return any(isinstance(node, ast.Return) and node.value is not None for node in ast.walk(source_of(function).tree))
