"""Plans as rows of small numbers, to be kept, and plans made of these again.

All addresses are relative to the start of the function, so each number fits into 32 bits; a pun's targets, which may be
further away, take two. A row that is not what these functions make raises ``ValueError`` or
``LookupError`` where it is read.
"""

from collections.abc import Callable, Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice, pairwise
from threading import Lock

from anyprobe.core.memory import Memory
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import Insn, decode_range
from anyprobe.isa.lines import KeptLine, shape_of, size_of
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.drafts import SpliceDraft
from anyprobe.splice.plan.questions import Questions
from anyprobe.splice.plan.splices import FunctionPlan, PlannedSplice, Pun, Strategy, Want, WantKind

Row = list[int]
_KINDS = tuple(WantKind)
_STRATEGIES = tuple(Strategy)
_KEPT = frozenset({WantKind.ENTRY, WantKind.EXIT, WantKind.RETURN_POINT, WantKind.OFFSET})
"""What plans are kept for; branches back to a head come with it."""
_LOW_BITS = 16
_LOW = (1 << _LOW_BITS) - 1
_LOW_TWO = (1 << 2 * _LOW_BITS) - 1
_ASKED, _LOOP, _DERIVED = 0, 1, 2
_SPLICE = 12
"""How many numbers each splice begins with."""
_CONDITIONAL, _FIRST, _INTERNAL, _AFTER, _VITAL = (1 << bit for bit in range(4, 9))
_AMBIGUOUS, _HAS_PUN, _HAS_DEAD, _IS_HOST, _IS_FIXED = (1 << bit for bit in range(5))


class NotKeptError(Exception):
    """A plan that has no row."""


@dataclass
class Reasons:
    """The reasons of refusals with their details, by number."""

    known: list[tuple[str, str]] = field(default_factory=list)
    _numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    _numbering: Lock = field(default_factory=Lock, repr=False, compare=False)

    def number_of(self, refusal: Refusal) -> int:
        """Return the number of what a refusal says."""
        key = str(refusal.reason), refusal.detail
        with self._numbering:
            if len(self._numbers) != len(self.known):
                self._numbers = {each: number for number, each in enumerate(self.known)}
            if key not in self._numbers:
                self._numbers[key] = len(self.known)
                self.known.append(key)
            return self._numbers[key]

    def refusal(self, number: int, address: int) -> Refusal:
        """Return the refusal of a number, at an address."""
        reason, detail = self.known[number]
        return Refusal(Reason(reason), address, detail)


def asked_row(start: int, wants: Sequence[Want], vital: AbstractSet[Want], state: int) -> Row | None:
    """Return what is asked of the function at ``start``, as far as plans depend on it; ``None``: it is not kept."""
    row = [state, len(wants)]
    for want in wants:
        if want.kind not in _KEPT or want.block or want.origin is not None:
            return None
        bits = _KINDS.index(want.kind) | want.conditional * _CONDITIONAL | want.first * _FIRST
        bits |= want.internal * _INTERNAL | want.after * _AFTER | (want in vital) * _VITAL
        row += (want.address - start, bits, len(want.inside))
        for low, high in want.inside:
            row += (low - start, high - start)
    return row


def conditions_row(start: int, questions: Questions, claims: Claims) -> Row:
    """Return what a plan depends on besides: what is claimed where it has looked, and which places are in reach."""
    spans = questions.spans()
    row = [len(spans)]
    for low, high in spans:
        row += (low - start, high - low)
    row += _halves(claims.state_of(spans))
    row.append(len(questions.reach))
    for (base, free), answer in questions.reach.items():
        row += (*_halves(base - start), free << 1 | answer)
    return row


class _Reader:
    """Takes numbers from a row, one after the other."""

    def __init__(self, row: Iterable[int], start: int) -> None:
        self._numbers = iter(row)
        self._next = self._numbers.__next__
        self.start = start

    def __call__(self) -> int:
        return self._next()

    def several(self, count: int) -> Iterable[int]:
        return islice(self._numbers, count)

    def address(self) -> int:
        return self._next() + self.start

    def halves(self) -> int:
        high = self._next()
        return high << _LOW_BITS | self._next()

    def far(self) -> int:
        return self.halves() + self.start


def read_conditions(read: _Reader, claims: Claims, reachable: Callable[[Pun], bool]) -> bool:
    """Return whether all that a plan depends on is as it was; what follows in the row is the plan, then."""
    spans = [(low := read.address(), low + read()) for _ in range(read())]
    state = read.halves()
    if claims.state_of(spans) != state:
        return False
    for _ in range(read()):
        base, answer = read.far(), read()
        if reachable(Pun(0, answer >> 1, base)) != bool(answer & 1):
            return False
    return True


def plan_row(
    start: int, wants: Sequence[Want], plan: FunctionPlan, questions: Questions, bias: int, reasons: Reasons
) -> Row:
    """Return the row of a plan; raise ``NotKeptError`` where it holds what has no numbers."""
    numbers = {want: number for number, want in enumerate(wants)}
    splices = {splice: number for number, splice in enumerate(plan.splices)}
    row = [len(plan.scope), *(each.start - start for each in plan.scope), len(plan.splices)]
    depended = {place.pun: place.address for place in questions.places if place.pun.free}
    for splice in plan.splices:
        row += _splice_row(start, splice, splices, depended, bias)
        for want in splice.wants:
            row += _want_row(start, want, numbers)
    if depended or plan.notes:
        raise NotKeptError("it depends on where a springboard was that it has not")
    row.append(len(plan.refused))
    for want, refusal in plan.refused:
        if want not in numbers:
            raise NotKeptError("something is refused that was not asked for")
        row += (numbers[want], reasons.number_of(refusal), refusal.address - start)
    return row


def _splice_row(
    start: int, splice: PlannedSplice, numbers: dict[PlannedSplice, int], depended: dict[Pun, int | None], bias: int
) -> Row:
    insns, pun = splice.insns, splice.pun
    if any(each not in numbers for each in splice.leans_on) or not _are_one_after_the_other(insns):
        raise NotKeptError("it leans on what is not in the plan, or displaces what lies apart")
    fixed = pun is not None and pun in depended and depended[pun] == splice.springboard - bias
    if fixed and pun is not None:
        del depended[pun]
    bits = splice.ambiguous * _AMBIGUOUS | (pun is not None) * _HAS_PUN | (splice.dead_springboard != 0) * _HAS_DEAD
    bits |= (splice.hosts_until != 0) * _IS_HOST | fixed * _IS_FIXED
    shape = shape_of(insns)
    row = [_STRATEGIES.index(splice.strategy), bits, splice.head - start, splice.start - start,
           splice.end - splice.start, *_halves(shape >> 2 * _LOW_BITS), *_halves(shape & _LOW_TWO),
           splice.written, splice.write_at - start, splice.borrowed]  # fmt: skip
    if splice.dead_springboard:
        row.append(splice.dead_springboard - start)
    if splice.hosts_until:
        row.append(splice.hosts_until - start)
    if pun is not None:
        row += (pun.prefixes, pun.free, pun.prefix, *_halves(pun.base - start), len(pun.tail), *pun.tail)
    if fixed:
        row += _halves(splice.springboard - bias - start)
    return [*row, len(splice.leans_on), *(numbers[each] for each in splice.leans_on), len(splice.wants)]


def _want_row(start: int, want: Want, numbers: dict[Want, int]) -> Row:
    if want in numbers:
        return [_ASKED, numbers[want]]
    if want.kind is WantKind.LOOP:
        if not isinstance(want.tag, int):
            raise NotKeptError("a branch back to nowhere")
        return [_LOOP, want.address - start, want.tag - start, int(want.internal)]
    origin = want.origin
    if origin is None or origin not in numbers or not _is_derived(want, origin):
        raise NotKeptError("something is wanted that does not come of what was asked for")
    block = want.block
    if not _are_one_after_the_other(block):
        raise NotKeptError("a block that lies apart")
    size = block[-1].end - block[0].address if block else 0
    at = block[0].address - start if block else 0
    return [_DERIVED, numbers[origin], want.address - start, int(want.conditional), at, size]


def _is_derived(want: Want, origin: Want) -> bool:
    """Return whether a want differs from the one that it serves in nothing but where it is."""
    own = (want.kind, want.inside, want.first, want.internal, want.after)
    return want.tag is origin.tag and own == (origin.kind, origin.inside, origin.first, origin.internal, origin.after)


def _are_one_after_the_other(insns: Sequence[Insn]) -> bool:
    return all(one.end == other.address for one, other in pairwise(insns))


class PlanReader:
    """Makes plans of rows."""

    def __init__(self, memory: Memory, reasons: Reasons) -> None:
        """Read code from ``memory``, and what was refused from ``reasons``."""
        self._memory, self._reasons = memory, reasons

    def scope(self, read: _Reader) -> list[int]:
        """Return the starts of the functions that are planned together."""
        return [read.address() for _ in range(read())]

    def splices(self, read: _Reader, wants: Sequence[Want], claims: Claims, bias: int) -> list[PlannedSplice] | None:
        """Return the splices, for what is wanted now; ``None`` where one has not the place that it needs.

        Their springboards take places in ``claims``, which are those of a trial.
        """
        found: list[PlannedSplice] = []
        for _ in range(read()):
            splice = self._splice(read, wants, found, claims, bias)
            if splice is None:
                return None
            found.append(splice)
        return found

    def refused(self, read: _Reader, wants: Sequence[Want]) -> list[tuple[Want, Refusal]]:
        """Return what is refused."""
        return [(wants[read()], self._reasons.refusal(read(), read.address())) for _ in range(read())]

    def _splice(
        self, read: _Reader, wants: Sequence[Want], others: Sequence[PlannedSplice], claims: Claims, bias: int
    ) -> PlannedSplice | None:
        kind, bits, head, at, size, *shapes, written, write_at, borrowed = read.several(_SPLICE)
        strategy, head, at, write_at = _STRATEGIES[kind], head + read.start, at + read.start, write_at + read.start
        shape = ((shapes[0] << _LOW_BITS | shapes[1]) << _LOW_BITS | shapes[2]) << _LOW_BITS | shapes[3]
        dead = read.address() if bits & _HAS_DEAD else 0
        hosts_until = read.address() if bits & _IS_HOST else 0
        pun = self._pun(read) if bits & _HAS_PUN else None
        fixed = read.far() if bits & _IS_FIXED else None
        leans_on = tuple([others[read()] for _ in range(read())])
        own = [wants[read()] if (of := read()) == _ASKED else self._want(of, read, wants) for _ in range(read())]
        insns = self._line(at, size, shape) if shape else self._insns(at, size)
        springboard = 0
        if pun is not None:
            draft = SpliceDraft(strategy, head, tuple(insns), [], written, write_at, borrowed, pun)
            if claims.places is None or not claims.places.reachable(pun):
                return None
            claims.claim(draft)
            springboard = draft.springboard
            if fixed is not None and springboard != fixed + bias:
                return None
        return PlannedSplice(
            strategy, head, insns, tuple(own), written, write_at, borrowed, pun, springboard, dead, leans_on,
            hosts_until, bool(bits & _AMBIGUOUS),
        )  # fmt: skip

    @staticmethod
    def _pun(read: _Reader) -> Pun:
        prefixes, free, prefix, base = read(), read(), read(), read.far()
        return Pun(prefixes, free, base, bytes([read() for _ in range(read())]), prefix)

    def _want(self, kind: int, read: _Reader, wants: Sequence[Want]) -> Want:
        if kind == _LOOP:
            return Want(read.address(), WantKind.LOOP, tag=read.address(), internal=bool(read()))
        origin, address, conditional, at, size = wants[read()], read.address(), bool(read()), read.address(), read()
        block = self._insns(at, size) if size else ()
        return Want(
            address, origin.kind, conditional, origin.tag, origin.inside, block,
            origin.first, origin.internal, origin, origin.after,
        )  # fmt: skip

    def _line(self, address: int, size: int, shape: int) -> Sequence[Insn]:
        """Return a line with a shape, whose instructions are not decoded."""
        if size_of(shape) != size:
            raise ValueError("no instructions")
        return KeptLine(self._memory.read(address, size), address, shape)

    def _insns(self, address: int, size: int) -> tuple[Insn, ...]:
        insns = tuple(decode_range(self._memory.read(address, size), address))
        if not insns or insns[-1].end != address + size:
            raise ValueError("no instructions")
        return insns


def reader_of(row: Iterable[int], start: int) -> _Reader:
    """Return what takes numbers from a row about the function at ``start``."""
    return _Reader(row, start)


def _halves(value: int) -> tuple[int, int]:
    return value >> _LOW_BITS, value & _LOW
