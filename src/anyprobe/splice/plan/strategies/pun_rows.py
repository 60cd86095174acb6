"""Short instructions whose jump takes its highest byte from another jump a few bytes on, made for that.

A displacement's highest byte decides whether there is a page to be mapped where it leads. It lies four bytes after the
opcode, in an instruction that may be another's. Whatever that one is, it can be spliced itself, by a jump of which the
byte in question can be chosen; and if it is short, too, its own highest byte may come from yet another one::

    ret                   c3                e9                        jmp rel32: 31 c0 e9 d0
    xor eax, eax          31 c0             31 c0
    mov rbp, [rsp+0x10]   48 8b 6c 24 10    e9 d0 d1 d2 d3            jmp rel32: d0 d1 d2 d3
"""

from collections.abc import Iterator
from itertools import islice

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.address import page_floor
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import Insn
from anyprobe.splice.plan.context import PlanContext
from anyprobe.splice.plan.drafts import SpliceDraft
from anyprobe.splice.plan.site import Site
from anyprobe.splice.plan.splices import OTHER_PREFIX, REDUNDANT_PREFIX, Pun, Strategy
from anyprobe.splice.plan.strategies.chained_puns import bytes_after

_TOPS = (
    0x48, 0xF0, 0x50, 0x10, 0x58, 0xE0, 0x60, 0x20, 0x68, 0xD0, 0x70, 0x30, 0x78, 0xC0, 0x44, 0xB0, 0x54, 0xA0, 0x64,
    0x90,
)  # fmt: skip
"""Values of the highest byte: somewhere within reach above and below, wherever the module lies."""
_LOWER = (0x00, 0x35, 0x6A, 0x9F, 0xD4)
"""Values of bytes that decide little."""
_MOST = 40
"""How many splices are tried for the one in front to lean on."""
_DEPTH = 5
"""How many splices lean on one another."""


class PunRow:
    """A punned jump whose displacement ends in a byte of another jump, which is chosen for that."""

    kind = Strategy.PUNNED

    def try_at(self, site: Site) -> SpliceDraft | Refusal:
        """Return the jump, which leans on the row of others."""
        insns, context = site.short_run(), site.context
        if isinstance(insns, Refusal):
            return insns
        head, size = insns[0].address, insns[-1].end - insns[0].address
        row = _Row(context)
        for prefixes in range(size):
            for content, leans_on in row.leans(site.function, head + size, head + prefixes + JUMP_BYTES, _DEPTH):
                pun = _pun_of(head, prefixes, size, content)
                if not context.reachable(pun) or not _all_apart(pun, leans_on):
                    continue
                splice = _splice(context, insns, pun, leans_on)
                if not isinstance(splice, Refusal):
                    return splice
        return Refusal(Reason.PUN_OUT_OF_REACH, head, "no jump further on can be made for this one to lean on")


class _Row:
    """The splices that one jump may lean on, directly or by others."""

    def __init__(self, context: PlanContext) -> None:
        self._context = context
        self._tried: dict[tuple[int, int, int], tuple[list[SpliceDraft], Iterator[SpliceDraft]]] = {}
        """What can be made of an instruction for the sake of one byte, as far as it was asked for."""

    def leans(
        self, function: FunctionCode, start: int, end: int, depth: int
    ) -> Iterator[tuple[bytes, tuple[SpliceDraft, ...]]]:
        """Yield what the bytes in ``[start, end)`` may become by a new splice that writes the last of them."""
        home = self._context.part_of(function, end - 1)
        known = home is not None and home in (function, *self._context.plan.scope)
        insn = home.covering(end - 1) if home is not None and known else None
        if home is None or insn is None or insn.address < start:
            return
        before = bytes_after(self._context, start, insn.address - start)
        if before is None or before[1]:
            return
        key = insn.address, end, depth
        if key not in self._tried:
            self._tried[key] = [], islice(self._made(home, insn, end - 1, depth), _MOST)
        for splice in _remembered(*self._tried[key]):
            written = splice.pun.head_bytes(splice.pun.base) if splice.pun is not None else b""
            if len(written) >= end - insn.address:
                yield before[0] + written[: end - insn.address], (splice,)

    def _made(self, home: FunctionCode, insn: Insn, place: int, depth: int) -> Iterator[SpliceDraft]:
        """Yield jumps in an instruction's stead whose byte at ``place`` takes many values."""
        if depth == 0 or home.insn_at(insn.address) is None or insn.is_endbr:
            return
        context, head, size = self._context, insn.address, min(insn.length, JUMP_BYTES + 1)
        for prefix in (b"", bytes([OTHER_PREFIX]), bytes([REDUNDANT_PREFIX])):
            free = min(size - len(prefix) - 1, 4)
            if free < 0:
                continue
            after = head + len(prefix) + 1 + free
            end = head + len(prefix) + JUMP_BYTES
            known = bytes_after(context, after, end - after)
            ways = [(known[0], known[1])] if known is not None else []
            more = self.leans(home, after, end, depth - 1) if end > after else iter(())
            for content, leans_on in (*ways, *islice(more, 4)):
                for tail in _tails(free, place - head - len(prefix) - 1):
                    target = end + int.from_bytes(tail + content, "little", signed=True)
                    pun = Pun(len(prefix), 0, target, tail, *prefix)
                    if context.reachable(pun) and _all_apart(pun, leans_on):
                        splice = _splice(context, (insn,), pun, leans_on)
                        if not isinstance(splice, Refusal):
                            yield splice


def _splice(
    context: PlanContext, insns: tuple[Insn, ...], pun: Pun, leans_on: tuple[SpliceDraft, ...]
) -> SpliceDraft | Refusal:
    head = insns[0].address
    written = pun.prefixes + 1 + pun.free + len(pun.tail)
    borrowed = max(pun.prefixes + JUMP_BYTES - written, 0)
    if any(page_floor(each.write_at + each.written - 1) != page_floor(head) for each in leans_on):
        return Refusal(Reason.PAGE_BOUNDARY, head, "the bytes that the jump would lean on lie on another page")
    return context.checked(
        SpliceDraft(Strategy.PUNNED, head, insns, [], written, head, borrowed, pun, leans_on=leans_on)
    )


def _all_apart(pun: Pun, leans_on: tuple[SpliceDraft, ...]) -> bool:
    """Return whether the springboards of all that leans on one another leave room for one another."""
    for each in leans_on:
        if each.pun is not None and not pun.is_apart_from(each.pun.base):
            return False
        if not _all_apart(pun, each.leans_on):
            return False
    return True


def _remembered(known: list[SpliceDraft], others: Iterator[SpliceDraft]) -> Iterator[SpliceDraft]:
    """Yield what is known, and then others, which are known from then on."""
    number = 0
    while True:
        if number == len(known):
            more = next(others, None)
            if more is None:
                return
            known.append(more)
        yield known[number]
        number += 1


def _pun_of(head: int, prefixes: int, size: int, content: bytes) -> Pun:
    """Return the jump in ``size`` bytes at ``head``, prefixes first; its displacement ends in the bytes after."""
    free = size - prefixes - 1
    displacement = int.from_bytes(bytes(free) + content, "little", signed=True)
    return Pun(prefixes, free, head + prefixes + JUMP_BYTES + displacement)


def _tails(count: int, chosen: int) -> Iterator[bytes]:
    """Yield values of ``count`` bytes, of which the one with the number ``chosen`` takes the most."""
    if count <= 0:
        yield b""
        return
    for value in _TOPS:
        if not 0 <= chosen < count:
            yield bytes(count - 1) + bytes([value])
            continue
        for other in _LOWER if count > 1 else (0,):
            tail = bytearray([other] * count)
            if count == 4 and chosen != 3:
                for top in _TOPS[:8]:
                    tail[3], tail[chosen] = top, value
                    yield bytes(tail)
                continue
            tail[chosen] = value
            yield bytes(tail)
