"""From a Python function to code: front end, passes, back ends."""

from collections.abc import Callable
from typing import Any

from anyprobe.core.code import NativeCode
from anyprobe.core.errors import HandlerError
from anyprobe.handlers.frontend.lowering import Setting, lower
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.passes.bounds import STEPS_LIMIT, steps
from anyprobe.handlers.passes.deadcode import remove_dead_code
from anyprobe.handlers.passes.fold import fold
from anyprobe.handlers.passes.inputs import remove_unused_inputs

PASSES: tuple[Callable[[ir.Function], ir.Function], ...] = (fold, remove_dead_code, remove_unused_inputs)
"""In the order in which they run."""


def intermediate(
    function: Callable[..., Any], setting: Setting | None = None, when: Callable[..., Any] | None = None
) -> ir.Function:
    """Return a Python function in the intermediate language; raise ``HandlerError`` for what is not possible."""
    lowered = lower(function, setting, when)
    handler = lowered.function
    for each in PASSES:
        handler = each(handler)
    if (found := steps(handler)) > STEPS_LIMIT:
        raise HandlerError(
            f"{handler.name} may take {found} steps, more than the {STEPS_LIMIT} that a handler may",
            instead="smaller bounds of its loops",
        )
    return handler


def native(function: Callable[..., Any], setting: Setting | None = None) -> NativeCode:
    """Compile a Python function for x86-64, unless that has been done before."""
    from anyprobe.handlers.compile_cache import native_code

    return native_code(intermediate(function, setting))
