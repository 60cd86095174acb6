"""Punned jumps: the displacement ends in bytes that are there already."""

from collections.abc import Callable

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import Insn
from anyprobe.splice.plan.context import PlanContext
from anyprobe.splice.plan.drafts import SpliceDraft
from anyprobe.splice.plan.site import Site
from anyprobe.splice.plan.splices import Pun, Strategy
from anyprobe.splice.plan.springboards import Springboards


def end_of_function(site: Site) -> int:
    """Return where the bytes of the next function, or padding, begin."""
    return site.function.end


def end_of_padding(site: Site) -> int:
    """Return where the bytes of the next function begin."""
    return site.function.end + site.function.lines.padding_after


def _nowhere(_: Site) -> None:
    """Let bytes of other functions be borrowed."""


class Punned:
    """Turns the head of a site into a jump that ends in the bytes after it, but borrows none from ``limit`` on."""

    __slots__ = ("_limit",)
    kind = Strategy.PUNNED

    def __init__(self, limit: Callable[[Site], int | None] = _nowhere) -> None:
        """Let no byte be borrowed from the address on that ``limit`` returns for a site, if any."""
        self._limit = limit

    def try_at(self, site: Site) -> SpliceDraft | Refusal:
        """Return the jump with the fewest prefixes that reaches a page."""
        context, head, limit = site.context, site.head, self._limit(site)
        insns = site.run[site.start : site.index + 1]
        refusal = _out_of_reach(head)
        for prefixes in range(min(head.length, JUMP_BYTES)):
            pun = _pun_at(context, head, prefixes)
            if isinstance(pun, Refusal):
                return pun
            written = prefixes + 1 + pun.free
            if limit is not None and head.address + prefixes + JUMP_BYTES > limit:
                refusal = _of_the_next(head)
                continue
            if not context.reachable(pun):
                continue
            borrowed = prefixes + JUMP_BYTES - written
            checked = context.checked(
                SpliceDraft(Strategy.PUNNED, head.address, insns, [], written, head.address, borrowed, pun)
            )
            if not isinstance(checked, Refusal):
                return checked
            refusal = checked
        return refusal


class OneByte:
    """Turns an instruction into a jump by its first byte; the four bytes after it say where to.

    There is one place only for its springboard: that of an earlier splice of the same instruction, now retired, serves
    again.
    """

    kind = Strategy.PUNNED

    def try_at(self, site: Site) -> SpliceDraft | Refusal:
        """Return the jump."""
        context, insn = site.context, site.insn
        if insn.address + JUMP_BYTES > end_of_padding(site):
            return _of_the_next(insn)
        pun = _pun_at(context, insn, 0, free=0)
        if isinstance(pun, Refusal):
            return pun
        place = pun.base + context.bias
        again = context.retired.get(place) == insn.address + context.bias and Springboards.is_rewritable(place)
        if not again and not context.reachable(pun):
            return _out_of_reach(insn)
        borrowed = JUMP_BYTES - 1
        splice = SpliceDraft(Strategy.PUNNED, insn.address, (insn,), [], 1, insn.address, borrowed, pun)
        splice.springboard = place if again else 0
        return context.checked(splice)


def _pun_at(context: PlanContext, head: Insn, prefixes: int, free: int = 4) -> Pun | Refusal:
    free = min(head.length - 1 - prefixes, free)
    fixed_at = head.address + prefixes + 1 + free
    try:
        fixed = context.code.text.memory.read(fixed_at, 4 - free)
    except LookupError:
        return Refusal(Reason.TOO_SHORT, head.address, "the module's text ends here")
    displacement = int.from_bytes(bytes(free) + fixed, "little", signed=True)
    return Pun(prefixes, free, head.address + prefixes + JUMP_BYTES + displacement)


def _out_of_reach(insn: Insn) -> Refusal:
    return Refusal(Reason.PUN_OUT_OF_REACH, insn.address, "no page that the punned jump reaches can be mapped")


def _of_the_next(insn: Insn) -> Refusal:
    return Refusal(Reason.BORROWED_BYTES, insn.address, "the pun would borrow bytes of the next function")
