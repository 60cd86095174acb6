"""Short lines one after the other: each jump's displacement ends in the bytes of the next one.

A table of ``mov al, 5; ret`` has no room anywhere. But the bytes of a spliced line are known as soon as its springboard
has its place, so a line in front can lean on them, and one before that on its bytes in turn. Where the line after
is not spliced yet and is too short for a jump of its own choice, it becomes a punned jump for this: as many bytes are
chosen as it has::

    mov al, 5; ret    b0 05 c3     e9 xx xx             jmp rel32: xx xx e9 d0
    mov al, 6; ret    b0 06 c3              e9 d0 d1    jmp rel32: d0 d1 b0 07
    mov al, 7; ret    b0 07 c3
"""

from collections.abc import Iterator

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.address import page_floor
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import Insn
from anyprobe.splice.plan.context import PlanContext
from anyprobe.splice.plan.drafts import SpliceDraft
from anyprobe.splice.plan.site import Site
from anyprobe.splice.plan.splices import JUMP_OPCODE, SHORT_OPCODE, Pun, Strategy
from anyprobe.splice.plan.strategies.successor import run_after

_LONGEST = 15
"""Bytes of an instruction, at most."""
_SOME = (0x00, 0x10, 0x30, 0x50, 0x70, 0x05, 0xF0, 0xD0, 0xB0, 0x90)
"""Values of chosen bytes that are tried where there are several; all are where there is one."""


class KnownBytes:
    """A punned jump, in all of a line, whose displacement ends in bytes that stay, or that other splices write."""

    kind = Strategy.PUNNED

    def try_at(self, site: Site) -> SpliceDraft | Refusal:
        """Return the jump, which leans on the splices that write the bytes after."""
        insns, context, function = site.short_run(), site.context, site.function
        if isinstance(insns, Refusal):
            return insns
        head, end = insns[0].address, insns[-1].end
        after = bytes_after(context, end, head + JUMP_BYTES - end)
        if after is None:
            return Refusal(Reason.OVERLAP, end, "what the bytes after it will be is not known")
        content, leans_on = after
        if not leans_on and head + JUMP_BYTES > function.end:
            return Refusal(Reason.BORROWED_BYTES, head, "the pun would borrow bytes of the next function")
        pun = _welcoming(context, function, head, end - head, content) or _pun(head, end - head, content)
        if not context.reachable(pun):
            return Refusal(Reason.PUN_OUT_OF_REACH, head, "no page that the punned jump reaches can be mapped")
        if any(page_floor(each.write_at + each.written - 1) != page_floor(head) for each in leans_on):
            return Refusal(Reason.PAGE_BOUNDARY, head, "the bytes that the jump would lean on lie on another page")
        return _leaning(context, insns, pun, leans_on)


class ChainedPun:
    """A punned jump whose displacement ends in those of another one right after it, made for that."""

    kind = Strategy.PUNNED

    def try_at(self, site: Site) -> SpliceDraft | Refusal:
        """Return the jump, which leans on the one after."""
        insns, context = site.short_run(), site.context
        if isinstance(insns, Refusal):
            return insns
        head, end = insns[0].address, insns[-1].end
        line = _line_after(site, end)
        if isinstance(line, Refusal):
            return line
        size = line[-1].end - end
        rest = bytes_after(context, line[-1].end, JUMP_BYTES - size)
        if rest is None or rest[1] or page_floor(head) != page_floor(line[-1].end - 1):
            return Refusal(Reason.OVERLAP, end, "the bytes after it are in use")
        out_of_reach = Refusal(Reason.PUN_OUT_OF_REACH, head, "no two pages that both jumps reach can be mapped")
        if not context.reachable(_pun(end, size, rest[0])):
            return out_of_reach
        fronts = _Fronts(context, head, end - head)
        for tail in _tails(size - 1):
            own = fronts.over(bytes([JUMP_OPCODE]) + tail + rest[0])
            if own is None:
                continue
            target = _pun(end, 1, tail + rest[0]).base
            after = Pun(0, 0, target, tail)
            if own.is_apart_from(target) and context.reachable(after):
                other = SpliceDraft(Strategy.PUNNED, end, line, [], size, end, JUMP_BYTES - size, after)
                checked = context.checked(other)
                return checked if isinstance(checked, Refusal) else _leaning(context, insns, own, (other,))
        return out_of_reach


def _welcoming(context: PlanContext, function: FunctionCode, head: int, size: int, content: bytes) -> Pun | None:
    """Return a punned jump on which a short line right before it can lean, if there is such a line.

    That line's jump ends in our first bytes: left to chance, they would send it where nothing can be mapped.
    """
    front = _short_line_before(context, function, head)
    if not front or not context.reachable(_pun(head, size, content)):
        return None
    fronts = _Fronts(context, head - front, front)
    for tail in _tails(size - 1):
        before = fronts.over(bytes([JUMP_OPCODE]) + tail + content)
        if before is None:
            continue
        target = _pun(head, 1, tail + content).base
        pun = Pun(0, 0, target, tail)
        if before.is_apart_from(target) and context.reachable(pun):
            return pun
    return None


def _short_line_before(context: PlanContext, function: FunctionCode, head: int) -> int:
    """Return the length of the line that ends at ``head`` if it is shorter than a jump and not spliced, else 0."""
    above = function.covering(head - 1)
    run = function.lines.around(above.address, head - JUMP_BYTES) if above is not None else ()
    if not run or run[-1].end != head or head - run[0].address >= JUMP_BYTES:
        return 0
    start = run[0].address
    return 0 if context.claims.are_written(start, head) else head - start


def _line_after(site: Site, address: int) -> tuple[Insn, ...] | Refusal:
    """Return the line at an address that is shorter than a jump; only one instruction where no more may move."""
    found = run_after(site, address)
    return found if isinstance(found, Refusal) else site.context.short_run(found[1], 0, 0)


def _leaning(
    context: PlanContext, insns: tuple[Insn, ...], pun: Pun, leans_on: tuple[SpliceDraft, ...]
) -> SpliceDraft | Refusal:
    head, size = insns[0].address, insns[-1].end - insns[0].address
    return context.checked(
        SpliceDraft(Strategy.PUNNED, head, insns, [], size, head, JUMP_BYTES - size, pun, leans_on=leans_on)
    )


def bytes_after(context: PlanContext, address: int, count: int) -> tuple[bytes, tuple[SpliceDraft, ...]] | None:
    """Return what some bytes will be and the splices that say so; ``None`` if that is not known yet."""
    try:
        content = bytearray(context.code.text.memory.read(address, count))
    except LookupError:
        return None
    leans_on = []
    for at in range(address, address + count):
        if not context.claims.are_written(at, at + 1):
            continue
        near = context.plan.headed_in(at - _LONGEST, at + 1)
        over = next((each for each in near if each.write_at <= at < each.write_at + each.written), None)
        written = None if over is None else _known_bytes(context, over)
        if over is None or written is None:
            return None
        content[at - address] = written[at - over.write_at]
        if over not in leans_on:
            leans_on.append(over)
    return bytes(content), tuple(leans_on)


def _known_bytes(context: PlanContext, splice: SpliceDraft) -> bytes | None:
    """Return the bytes that a splice writes, if they depend on nothing that is not known yet."""
    if splice.pun is not None:
        place = context.claims.springboard_of(splice)
        return None if place is None else splice.pun.head_bytes(place)
    if splice.strategy is Strategy.SHORT:
        distance = splice.dead_springboard - (splice.head + 2)
        return (bytes([SHORT_OPCODE]) + distance.to_bytes(1, "little", signed=True))[: splice.written]
    return None


class _Fronts:
    """The punned jumps in a line, by what the bytes after it are: many ways to choose those show it the same ones."""

    def __init__(self, context: PlanContext, head: int, size: int) -> None:
        self._context, self._head, self._size = context, head, size
        self._known: dict[bytes, Pun | None] = {}

    def over(self, after: bytes) -> Pun | None:
        """Return the jump over some bytes, if it reaches a place that can be mapped."""
        shown = after[: JUMP_BYTES - self._size]
        if shown not in self._known:
            pun = _pun(self._head, self._size, shown)
            self._known[shown] = pun if self._context.reachable(pun) else None
        return self._known[shown]


def _pun(head: int, size: int, after: bytes) -> Pun:
    """Return the jump in ``size`` bytes at ``head`` whose displacement ends in the bytes after them."""
    displacement = int.from_bytes(bytes(size - 1) + after, "little", signed=True)
    return Pun(0, size - 1, head + JUMP_BYTES + displacement)


def _tails(count: int) -> Iterator[bytes]:
    """Yield what ``count`` chosen bytes may be."""
    if count <= 1:
        yield from (bytes([value])[:count] for value in (range(256) if count else (0,)))
        return
    for high in range(256) if count == 2 else _SOME:
        for low in _SOME:
            yield bytes([low]) * (count - 1) + bytes([high])
