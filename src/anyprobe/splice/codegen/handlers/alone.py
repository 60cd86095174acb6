"""A handler that is called by itself; ``chain`` has those that follow each other at one site."""

from collections.abc import Callable

from anyprobe.splice.codegen.handlers.call import CallWriter
from anyprobe.splice.codegen.handlers.facts import HandlerFacts
from anyprobe.splice.codegen.routines import RoutineFacts


def assemble_handler_call(
    facts: RoutineFacts, handler: HandlerFacts, address: int
) -> tuple[bytes, int, Callable[[], str]]:
    """Return the code of the routine and the handler at ``address``, where the routine begins, and the listing."""
    writer = CallWriter(facts, (handler,))
    code = writer.run(address)
    return code, address + writer.asm.offset_of("handler_call"), writer.asm.listing_at(address)
