"""Functions that run elsewhere: copies of whole functions, or of what has run of them, of which the original stays.

A copy is entered where the function is, by callers that lead there at once, or by the jump at the function's entry.
Control stays in it, in loops too, until it leaves the function, or comes to what is not copied: a block that has not
run, a call, a system call. That is done where it is in the original, which is as it was but for the jump at its entry.
So calls have the return addresses that they always had: exceptions, ``longjmp`` and debuggers find what they know. And
each instruction of a copy stands for one of the original, from where a thread can go on at any time.

A specialised copy is for calls in which some registers have certain values: it begins with a comparison, and other
calls go on in the original, after a copy of the instructions that the jump at the entry has overwritten.
"""

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import Flow, Insn
from anyprobe.isa.registers import GPRS
from anyprobe.isa.relocate import displace
from anyprobe.splice.codegen.moved.fragment_parts import JUMP, LONG_JCC
from anyprobe.splice.codegen.moved.specialised import Facts, find_facts, guard
from anyprobe.splice.emitted import BODY, EmittedPatch
from anyprobe.splice.plan.splices import PlannedSplice, Strategy

MOST_BYTES = (1 << 16) - 1
"""The largest copy: what signal handlers are shown is noted by offsets of sixteen bits."""
_DESCRIBED = 26
"""Bytes by which one instruction is described."""
_COPIED = frozenset({Flow.NEXT, Flow.RET, Flow.INDIRECT_JUMP, Flow.TRAP})
_ENDS = frozenset({Flow.JCC, Flow.JUMP, Flow.RET, Flow.INDIRECT_JUMP})
_I32 = struct.Struct("<i")
_NOT_EQUAL = 5
_LOAD, _GUARD = 10, 16
"""Bytes of what takes the place of an instruction, and of a comparison with the jump after it, at most."""
_NOTHING = Facts(frozenset(), {}, {})


@dataclass(eq=False, slots=True)
class Body:
    """A function that is to run elsewhere, and its copy, once there is one."""

    code: FunctionCode
    cold: frozenset[int] = frozenset()
    """The blocks that have not run, by where they begin: they are not copied."""
    values: Mapping[int, int] = field(default_factory=dict)
    """What it is specialised for: values of registers at its entry, by their numbers."""
    are_flags_dead: Callable[[int], bool] = lambda _: False
    """Whether no flag is read any more from an address on."""
    patch: EmittedPatch | None = None

    @property
    def most_bytes(self) -> int:
        """Upper bound of the bytes of its copy, and of what is said of that."""
        more = self._copy_bytes + _LOAD * len(self.code.addresses) if self.values else 0
        return self._copy_bytes + more + 9 * len(self.code.addresses)

    @property
    def _copy_bytes(self) -> int:
        return len(self.code.content) + 12 * len(self.code.turns) + 64 + _GUARD * len(self.values)

    @property
    def described_bytes(self) -> int:
        """How much room it takes to say what signal handlers are shown of its copy."""
        return _DESCRIBED * len(self.code.addresses) * (2 if self.values else 1)

    def blocks(self, lost: int) -> dict[int, list[Insn]]:
        """Return the blocks that may be copied, each up to the first instruction that has to stay where it is.

        What begins before ``lost`` is copied whether it has run or not.
        """
        found: dict[int, list[Insn]] = {}
        block: list[Insn] | None = None
        starts = frozenset(self.code.blocks)
        for insn in self.code.insns:
            if insn.address in starts:
                hot = insn.address not in self.cold or insn.address < lost
                block = found.setdefault(insn.address, []) if hot else None
            if block is None:
                continue
            block.append(insn)
            if insn.flow in _ENDS or not _moves(insn):
                block = None
        return found

    def facts(self, blocks: Mapping[int, Sequence[Insn]]) -> Facts:
        """Return what follows from the values for which it is specialised."""
        return find_facts(blocks, self.code.entry, self.values, self.are_flags_dead)

    @property
    def refusal(self) -> Refusal | None:
        """Why it cannot run elsewhere, whatever its entry is like."""
        code = self.code
        if code.broken is not None:
            return code.broken
        if code.has_gaps or code.runs_past_end is not None:
            return Refusal(
                Reason.CONTROL_FLOW_UNKNOWN, code.start, "there may be data in it, or it runs on into others"
            )
        for register, value in self.values.items():
            if guard(register, value) is None:
                detail = f"{GPRS[register].name} = {value:#x} takes more than 32 bits to compare with"
                return Refusal(Reason.NO_DISPLACED_FORM, code.start, detail)
        if self.values and not self.are_flags_dead(code.entry):
            return Refusal(Reason.NO_DISPLACED_FORM, code.start, "it may read flags before it sets them")
        if self.most_bytes > MOST_BYTES:
            return Refusal(
                Reason.NO_ROOM_NEARBY, code.start, f"with {len(code.content):,} bytes it is too large to move"
            )
        return None


def write_body(body: Body, planned: PlannedSplice, address: int, bias: int) -> EmittedPatch | Refusal:
    """Return the copy of a function at a run-time address; ``planned`` is the jump at its entry that leads there."""
    if planned.strategy not in (Strategy.JUMP, Strategy.PUNNED) or planned.hosts_until or planned.leans_on:
        detail = "the jump at its entry would need more of it than its first instructions"
        return Refusal(Reason.TOO_SHORT, planned.start, detail)
    if planned.head != planned.start or planned.start != body.code.entry:
        return Refusal(Reason.TOO_SHORT, planned.start, "there is no room for a jump at its entry")
    return _Copy(body, planned, address, bias).written()


class _Copy:
    """The copy while it is written. All addresses are link-time addresses, also those of the copy."""

    def __init__(self, body: Body, planned: PlannedSplice, address: int, bias: int) -> None:
        self._body, self._bias = body, bias
        self._entry, self._lost = planned.start, planned.write_at + planned.written
        """What is below this address, from the entry on, is overwritten: nothing may go on there."""
        self._base, self._out = address - bias, bytearray()
        self._copies: list[tuple[int, int]] = []
        self._open: list[tuple[int, int, bool]] = []
        """(place, target, whether it is in the original for sure) of displacements that are to be filled in."""
        self._places: dict[int, int] = {}
        """Where blocks are in the copy."""
        self._facts = _NOTHING

    def written(self) -> EmittedPatch | Refusal:
        blocks = self._body.blocks(self._lost)
        guards = self._guard()
        if guards:
            self._facts = self._body.facts(blocks)
            refusal = self._lay({at: block for at, block in blocks.items() if at in self._facts.reached})
            special = len(self._copies)
            self._facts = _NOTHING
            for place in guards:
                _I32.pack_into(self._out, place, len(self._out) - place - 4)
            refusal = refusal or self._lay(
                self._reached({at: block for at, block in blocks.items() if at < self._lost})
            )
            # the first place that stands for an instruction is where threads are led to that are there: a copy for all
            self._copies = self._copies[special:] + self._copies[:special]
        else:
            refusal = self._lay(self._reached(blocks))
        if refusal is not None:
            return refusal
        address, bias = self._base + self._bias, self._bias
        pairs = tuple([(original + bias, copy + bias) for original, copy in self._copies])
        return EmittedPatch(address, bytes(self._out), pairs, pairs, address, BODY)

    def _guard(self) -> list[int]:
        """Append comparisons; return the displacements of the jumps that are taken by calls with other values."""
        places = []
        for register, value in self._body.values.items():
            self._note(self._entry)
            self._out += guard(register, value) or b""
            self._note(self._entry)
            self._out += LONG_JCC[_NOT_EQUAL] + bytes(4)
            places.append(len(self._out) - 4)
        return places

    def _lay(self, blocks: Mapping[int, Sequence[Insn]]) -> Refusal | None:
        """Append blocks, the one with the entry first, and fill in how they lead to each other."""
        self._places, self._open = {}, []
        order = sorted(blocks, key=lambda at: (at != self._entry, at))
        for number, start in enumerate(order):
            self._places[start] = self._here
            refusal = self._block(blocks[start], order[number + 1] if number + 1 < len(order) else -1)
            if refusal is not None:
                return refusal
        for place, target, stays in self._open:
            goal = target if stays else self._places.get(target, target)
            _I32.pack_into(self._out, place, goal - self._base - place - 4)
        return None

    @property
    def _here(self) -> int:
        return self._base + len(self._out)

    def _reached(self, blocks: Mapping[int, list[Insn]]) -> dict[int, list[Insn]]:
        """Return the blocks that control comes to from the entry within the copy, in their order."""
        seen, todo = set[int](), [self._entry]
        while todo:
            start = todo.pop()
            if start in seen or start not in blocks:
                continue
            seen.add(start)
            last = blocks[start][-1]
            if _moves(last):
                todo += [at for at in (last.target, last.end if last.falls_through else None) if at is not None]
        return {start: block for start, block in blocks.items() if start in seen}

    def _block(self, insns: Sequence[Insn], following: int) -> Refusal | None:
        """Append a block; ``following`` is the one that comes next."""
        for insn in insns:
            if insn.flow is Flow.JUMP or insn.address in self._facts.taken:
                self._note(insn.address)
                self._go_on(self._facts.taken.get(insn.address, insn.target), following)
            elif insn.address in self._facts.fixed:
                self._note(insn.address)
                self._out += self._facts.fixed[insn.address]
            elif insn.flow is Flow.JCC and insn.condition is not None:
                self._conditional(insn, following)
            else:
                copy = displace(insn, self._here) if insn.flow in _COPIED else None
                if not isinstance(copy, bytes):
                    return self._left(insn)
                self._note(insn.address)
                self._out += copy
        last = insns[-1]
        if last.may_go_on and last.flow is not Flow.JCC:
            self._go_on(last.end, following)
        return None

    def _conditional(self, insn: Insn, following: int) -> None:
        """Append a conditional jump, turned round where it is taken to what comes next."""
        assert insn.target is not None
        assert insn.condition is not None
        self._note(insn.address)
        if insn.target == following:
            self._branch(LONG_JCC[insn.condition ^ 1], insn.end)
        else:
            self._branch(LONG_JCC[insn.condition], insn.target)
            self._go_on(insn.end, following)

    def _go_on(self, target: int | None, following: int) -> None:
        assert target is not None
        if target != following:
            self._note(target)
            self._branch(JUMP, target)

    def _left(self, insn: Insn) -> Refusal | None:
        """Append the way to an instruction that is run where it is; where that is overwritten, what does the same."""
        if insn.address >= self._lost:
            self._note(insn.address)
            self._branch(JUMP, insn.address, stays=True)  # it may begin a block of the copy, this very one
            return None
        if not insn.is_call:
            return Refusal(Reason.NO_DISPLACED_FORM, insn.address, f"begins with {insn.text}, which has to stay there")
        copy = displace(insn.at(insn.address + self._bias), self._here + self._bias)
        if isinstance(copy, Refusal):
            return copy
        self._note(insn.address)
        self._out += copy
        return None

    def _branch(self, opcode: bytes, target: int, *, stays: bool = False) -> None:
        self._out += opcode + bytes(4)
        self._open.append((len(self._out) - 4, target, stays))

    def _note(self, original: int) -> None:
        """Note that what comes next does the same as an instruction of the original."""
        self._copies.append((original, self._here))


def _moves(insn: Insn) -> bool:
    return insn.flow in _COPIED or insn.flow is Flow.JUMP or (insn.flow is Flow.JCC and insn.condition is not None)
