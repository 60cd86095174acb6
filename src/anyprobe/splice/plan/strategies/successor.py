"""Short lines whose jump ends in the bytes of the one after.

Where the instruction right after a line without room can be spliced, too, its new bytes can be chosen: its jump goes
by way of a springboard, at such a place that its displacement makes a jump of the bytes in front, too::

    ret                   c3              e9                  jmp rel32: e9 d0 d1 d2
    mov rax, [rip+x]      48 8b 05 ...       e9 d0 d1 d2 d3   jmp rel32: d0 d1 d2 d3
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
from anyprobe.splice.plan.splices import JUMP_OPCODE, OTHER_PREFIX, REDUNDANT_PREFIX, Pun, Strategy
from anyprobe.splice.plan.strategies.jump import jump

_STEPS = (0x10, 0xF0, 0x20, 0xE0, 0x30, 0xD0, 0x40, 0x50, 0x60, 0x70, 0xC0, 0xB0, 0xA0, 0x90, 0x05, 0xFA, 0x80, 0x7F)
"""Highest displacement bytes that are tried: one is in reach wherever the module lies."""
_LOWER = (0x0000, 0x0100, 0x0305, 0x5107, 0xA30B)


class Successor:
    """A punned jump whose displacement ends in the bytes of another jump, chosen for that, right after it."""

    kind = Strategy.PUNNED

    def try_at(self, site: Site) -> SpliceDraft | Refusal:
        """Return the jump, which leans on the one after."""
        insns, context = site.short_run(), site.context
        if isinstance(insns, Refusal):
            return insns
        head, end = insns[0].address, insns[-1].end
        size = end - head
        found = _jump_after(site, end)
        if isinstance(found, Refusal):
            return found
        for prefix in (b"", bytes([REDUNDANT_PREFIX]), bytes([OTHER_PREFIX])):
            over = found.head + len(prefix) + JUMP_BYTES
            room = found.insns[-1].end + _dead_after(context, found.insns[-1])
            if room < over or context.forbidden(found.insns, over) is not None:
                continue
            for own, after in pairs(context, head, size, prefix):
                splice = SpliceDraft(Strategy.PUNNED, head, insns, [], size, head, JUMP_BYTES - size, own)
                written = len(prefix) + JUMP_BYTES
                taken = context.claims.conflict(head, size, 0) or context.forbidden(insns)
                beyond = prefix and _is_taken(context, end + JUMP_BYTES)
                if taken is not None or beyond or page_floor(head) != page_floor(end + written - 1):
                    break
                splice.leans_on = (_led_by(context, found, after, written),)
                return context.checked(splice)
        return Refusal(Reason.PUN_OUT_OF_REACH, head, "no two pages that both jumps reach can be mapped")


def _jump_after(site: Site, address: int) -> SpliceDraft | Refusal:
    """Return the jump at an address right after a site: the plan's, or a new one."""
    over = next(iter(site.plan.headed_in(address, address + 1)), None)
    if over is not None:
        if over.strategy is not Strategy.JUMP:
            return Refusal(Reason.OVERLAP, address, "the instruction after it is spliced in another way")
        return over
    found = run_after(site, address)
    return found if isinstance(found, Refusal) else jump(site.context, *found, 0, 0)


def run_after(site: Site, address: int) -> tuple[FunctionCode, tuple[Insn, ...]] | Refusal:
    """Return the line that begins right after a site, and the function that it lies in."""
    home = site.context.part_of(site.function, address)
    if home is None or home not in (site.function, *site.plan.scope):
        return Refusal(Reason.TOO_SHORT, address, "the bytes after it are another function's")
    run = home.lines.around(address, address)
    if not run or run[0].address != address or run[0].is_endbr:
        return Refusal(Reason.NOT_A_BOUNDARY, address, "no instruction begins after it")
    return home, run


def _is_taken(context: PlanContext, address: int) -> bool:
    """Return whether a byte that the jump right in front has displaced, if any, is of use to others."""
    claims, end = context.claims, address + 1
    return claims.are_used(address, end) or claims.are_landed_in(address, end)


def _dead_after(context: PlanContext, last: Insn) -> int:
    home = context.code.containing(last.address)
    return context.dead_bytes(home, last) if home is not None else 0


def pairs(context: PlanContext, head: int, size: int, prefix: bytes) -> Iterator[tuple[Pun, Pun]]:
    """Yield two jumps, one right after the ``size`` bytes of the other, both of which have a springboard.

    The first one's displacement is made of its free bytes, then the second one's prefix and opcode, then ``shared``
    bytes of the second one's displacement, as far as there is room for.
    """
    free = size - 1
    fixed = (prefix + bytes([JUMP_OPCODE]))[: 4 - free]
    shared = 4 - free - len(fixed)
    for low in _shared_bytes(shared):
        displacement = int.from_bytes(bytes(free) + fixed + low, "little", signed=True)
        own = Pun(0, free, head + JUMP_BYTES + displacement)
        if not context.reachable(own):
            continue
        for high in _highest(4 - shared):
            tail = low + high
            target = head + size + len(prefix) + JUMP_BYTES + int.from_bytes(tail, "little", signed=True)
            after = Pun(len(prefix), 0, target, tail, *prefix)
            if own.is_apart_from(target) and context.reachable(after):
                yield own, after
                break


def _led_by(context: PlanContext, leader: SpliceDraft, pun: Pun, written: int) -> SpliceDraft:
    """Let a jump go by way of a springboard."""
    planned = leader in context.plan.splices
    if planned:
        context.claims.release(leader)
    leader.strategy, leader.pun, leader.written = Strategy.PUNNED, pun, written
    if planned:
        context.claims.claim(leader)
    return leader


def _shared_bytes(count: int) -> Iterator[bytes]:
    """Yield the bytes, lowest first, that two displacements share; they are the highest of the first one's."""
    if count == 0:
        yield b""
        return
    for top in _STEPS:
        for low in _LOWER if count > 1 else (0,):
            yield low.to_bytes(2, "little")[: count - 1] + bytes([top])


def _highest(count: int) -> Iterator[bytes]:
    """Yield the highest ``count`` bytes of a displacement."""
    for top in (*_STEPS, *range(256)):
        yield bytes(count - 1) + bytes([top])
