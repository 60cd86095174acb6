"""Handlers that follow each other at one site, as a kprobe's and a kretprobe's do: one call, one saving of registers.

The patch pushes the arguments of all, that of the first one last, and calls a routine made for just these handlers. To
each of them everything is as if it had been called alone, after the one before it.
"""

from collections.abc import Callable, Sequence

from anyprobe.core.code import InputKind
from anyprobe.splice.codegen.handlers.call import CallWriter
from anyprobe.splice.codegen.handlers.facts import CALL_BYTES, POOL_BYTES, HandlerFacts
from anyprobe.splice.codegen.routines import RoutineFacts
from anyprobe.splice.plan.splices import Want

LONGEST = 4
"""Handlers of one chain: their arguments lie between the program's stack and the handler's."""
_WITH_LABELS = frozenset({"errno", "true_caller"})
"""Attributes of ``ctx`` whose code can be in a routine once."""


def can_follow(before: Sequence[HandlerFacts], handler: HandlerFacts) -> bool:
    """Return whether a handler can be called with those before it."""
    together = (*before, handler)
    known = [each.reading for each in together if each.calls_routines]
    alike = all(reading == known[0] for reading in known)
    one_instance = sum(map(_has_instance, together)) <= 1
    alike = alike and len({each.reads_clock for each in together}) == 1
    return len(together) <= LONGEST and alike and one_instance and all(map(_can_share, together))


def _can_share(handler: HandlerFacts) -> bool:
    """Return whether a handler leaves the thread where it is, and needs no state but that of whole registers."""
    goes = handler.redirects or handler.skips or handler.moves_stack or handler.is_told_more
    goes = goes or handler.ends is not None
    code = handler.code
    labels = any(each.kind is InputKind.CONTEXT and each.name in _WITH_LABELS for each in code.inputs)
    return not (goes or labels or code.vectors or "df" in code.clobbers)


def _has_instance(handler: HandlerFacts) -> bool:
    return any(each.kind is InputKind.INSTANCE for each in handler.code.inputs)


def assemble_handler_chain(
    facts: RoutineFacts, handlers: Sequence[HandlerFacts], address: int
) -> tuple[bytes, int, Callable[[], str]]:
    """Return the code of the routine and the handlers at ``address``, where the routine begins, and the listing."""
    writer = CallWriter(facts, handlers)
    code = writer.run(address)
    return code, address + writer.asm.offset_of("handler_call"), writer.asm.listing_at(address)


def chains_bytes(wants: Sequence[Want]) -> int:
    """Return an upper bound of the routines that the wants of a function need."""
    at: dict[int, list[HandlerFacts]] = {}
    for want in wants:
        if (handler := getattr(want.tag, "handler", None)) is not None:
            at.setdefault(want.address, []).append(handler)
    return sum(chain_bytes(handlers) for handlers in at.values() if len(handlers) > 1)


def chain_bytes(handlers: Sequence[HandlerFacts]) -> int:
    """Return an upper bound of the bytes of the routines of some handlers at one site."""
    own = sum(len(each.code.code) + 64 * len(each.code.inputs) + POOL_BYTES * (each.pool > 0) for each in handlers)
    return (CALL_BYTES + 128) * len(handlers) + own
