"""Handlers as programs for the kernel: simple ones at once, all others by the compiler."""

from anyprobe.core.code import BpfProgram
from anyprobe.handlers.bpf.direct import direct_places, direct_program
from anyprobe.handlers.bpf.layouts import Passed
from anyprobe.handlers.ir import nodes as ir


def kernel_program(handler: ir.Function, passed: Passed) -> BpfProgram:
    """Return the handler compiled for the kernel, kept or made now; simple ones need no compiler."""
    simple = direct_program(handler, passed)
    if simple is not None:
        return simple
    from anyprobe.handlers.compile_cache import kept_program

    return kept_program(handler, passed)


def places_in(marked: ir.Function, passed: Passed) -> tuple[tuple[int, ir.Mark], ...]:
    """Return where the code of each marked place in the source begins in a handler's program for the kernel."""
    places = direct_places(marked, passed)
    if places is None:
        from anyprobe.handlers.compile_cache import needing_llvm

        with needing_llvm():
            from anyprobe.handlers.bpf.machine import compiled_places

        places = compiled_places(marked, passed)
    return places
