"""Room for texts while a handler runs: a few hundred bytes for all of them."""

from anyprobe.handlers.frontend.emitter import BUFFER_LIMIT, Emitter
from anyprobe.handlers.frontend.operators import Fail
from anyprobe.handlers.ir import nodes as ir

USUAL = 64
"""Bytes that a text has at most where nothing is said."""


def new_buffer(emit: Emitter, fail: Fail, size: int) -> ir.Buffer:
    """Return a new buffer, as long as all of a handler's have room."""
    buffer = emit.buffer(size)
    if sum(each.size for each in emit.buffers) > BUFFER_LIMIT:
        raise fail(f"all texts of a handler together have at most {BUFFER_LIMIT} bytes", "")
    return buffer
