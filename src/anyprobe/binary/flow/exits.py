"""How control leaves a function: returns and tail jumps, parts of it that lie elsewhere included."""

from dataclasses import dataclass, replace
from enum import StrEnum

from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.decoding.code_scan import Kind
from anyprobe.binary.decoding.stack_depth import Balance, balance, seen_in
from anyprobe.binary.flow.called_pieces import CalledPieces
from anyprobe.binary.flow.escaping_jumps import EscapingJumps
from anyprobe.binary.flow.first_bytes import FirstBytes
from anyprobe.binary.flow.noreturn_flow import CertainlyNoReturn, NoReturnFunctions
from anyprobe.binary.flow.pieces import Pieces
from anyprobe.binary.flow.reachability import Reachability
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import Flow, Insn


class ExitKind(StrEnum):
    """Whether the function's own return instruction ends it, or another function's."""

    RET = "ret"
    TAIL = "tail"


@dataclass(frozen=True, slots=True)
class Exit:
    """An instruction at which the function may end."""

    address: int
    kind: ExitKind
    conditional: bool
    """It ends here only on the taken edge, or, for an indirect jump, only if the target lies outside."""
    indirect: bool
    target: int | None
    inside: tuple[tuple[int, int], ...] = ()
    """Address ranges in which the function goes on after a conditional indirect jump."""


@dataclass(frozen=True, slots=True)
class Exits:
    """All exits, whether that is all, and which parts elsewhere belong to the function."""

    found: tuple[Exit, ...]
    complete: Refusal | None
    """``None`` if these are all there are."""
    parts: tuple[FunctionView, ...]
    """The function itself first."""
    unmatched: Refusal | None = None
    """Why a call's entry and its exit cannot be told to be of one call, though both are seen."""


_BREAKPOINT = b"\xcd\x03"
"""``int 3`` in two bytes: a trap, and what goes on goes on after it."""
_SPLIT = "the function may go on on another stack (-fsplit-stack): which entry a return belongs to is not known"
_STAYS = frozenset({Flow.CALL, Flow.INDIRECT_CALL, Flow.TRAP})
"""What never ends a function, by itself."""
_MOST_HOMES = 32
"""How many functions are looked at for a way back."""


def find_exits(code_map: ModuleView, function: FunctionView) -> Exits:
    """Collect the exits of a function and of the parts that belong to no other function (``name.cold``)."""
    return _Collector(code_map, function).collect()


class _Collector:
    def __init__(self, code_map: ModuleView, function: FunctionView) -> None:
        self.map, self.function = code_map, function
        self._pieces, self._no_return = code_map.analyses.get(Pieces), code_map.analyses.get(NoReturnFunctions)
        self.parts = [function]
        self.found: list[Exit] = []
        self.refusal: Refusal | None = None
        self.unmatched: Refusal | None = None
        self._others: tuple[int, bool] | None = None

    def collect(self) -> Exits:
        owner = self._pieces.owner_of(self.function)
        if owner is not None:
            detail = f"is a part of the function at {owner:#x}, and its ends are that function's"
            self.refusal = Refusal(Reason.PART_OF_FUNCTION, self.function.start, detail)
        elif self._pieces.is_piece(self.function.start):
            detail = "is entered with the frame of another function, or of several, and its ends are theirs"
            self.refusal = Refusal(Reason.PART_OF_FUNCTION, self.function.start, detail)
        for part in self.parts:  # grows while it runs
            targets, low, high = dict(part.jumps), part.start, part.end
            for number, flow in part.turns:
                target = targets.get(number)
                if flow in _STAYS or (target is not None and low <= target < high):
                    continue
                insn = part.insn(number)
                if not part.never_runs(insn):
                    self._look_at(part, insn)
            self._check_end(part)
        if any(leaving.indirect and leaving.conditional for leaving in self.found):
            self._bound_undecided()
        if self.function.is_unlisted and self.refusal is None:
            self._check_unlisted()
        for label in (at for part in self.parts for at in part.analyses.get(EscapingJumps).callable_labels):
            self._refuse(label, "the function takes the address of this piece of itself, which may be called")
        if self.refusal is None:
            self._leave_out_called()
        if self.refusal is None and not self.found:
            self._check_last_call()
        found = tuple(sorted(self.found, key=lambda leaving: leaving.address))
        return Exits(found, self.refusal, tuple(self.parts), self.unmatched)

    def _bound_undecided(self) -> None:
        """Say of jumps that may stay inside what inside is: all parts, so all of them have to be known.

        The entry is outside: who jumps there by a computed address arrives anew, and is counted so.
        """
        self._refuse_if_entered("jumps into the function whose indirect jumps may lead here, too")
        first, *others = self.parts
        inside = ((first.entry + 1, first.end), *((part.start, part.end) for part in others))
        self.found = [
            replace(leaving, inside=inside) if leaving.indirect and leaving.conditional else leaving
            for leaving in self.found
        ]

    def _refuse_if_entered(self, why: str) -> None:
        """Refuse all if a jump from elsewhere leads into the function, after its entry."""
        for target, source, _ in self.map.entries.references.into(self.function.entry + 1, self.function.end):
            home = self.map.containing(source)
            insn = home.covering(source) if home is not None and home not in self.parts else None
            if insn is not None and insn.target == target and insn.flow in (Flow.JUMP, Flow.JCC):
                self._refuse(insn.address, why)

    def _check_unlisted(self) -> None:
        """Refuse all where what is taken for a function may be two, of which nothing shows where the second begins.

        Then its returns belong to more entries than one.
        """
        self._refuse_if_entered("jumps into a function of which nothing tells; another may begin there")
        if self.refusal is not None:
            return
        function = self.function
        code = {one.ip: one for part in self.parts for one in part.iced}
        undecided = {leaving.address for leaving in self.found if leaving.indirect and leaving.conditional}
        seen = seen_in(self.parts, self._no_return, undecided)
        if balance(function.start, code.get, seen, is_whole=True) is Balance.BROKEN:
            self._refuse(function.start, "its stack is not kept in balance: it may be the pieces of two functions")
            return
        labels = frozenset[int]().union(*(part.table_targets for part in self.parts))
        for pointed in sorted(self.map.entries.pointed_to(function.entry + 1, function.end) - labels):
            if pointed in code and balance(pointed, code.get, seen) is not Balance.BROKEN:
                self._refuse(pointed, "its address is stored or taken: another function may begin there")
                return  # one is enough, and each would follow the same code again

    def _check_last_call(self) -> None:
        """Refuse all where a call is all that ends the function: it may come back, and control run on."""
        function = self.function
        last = function.insn(len(function.addresses) - 1) if function.addresses else None
        if last is not None and last.flow is Flow.CALL and last.target not in self._no_return:
            self._refuse(last.address, "nothing is known to end it but a call, after which control may run on")

    def _leave_out_called(self) -> None:
        """Leave out the ends of pieces that are called; refuse all where the function calls what ends as it does.

        Others that call its middle come by a second door, as those do that jump there, and its ends are theirs.
        """
        pieces = CalledPieces(self.map, self.parts)
        if not pieces.by_itself and not pieces.by_others:
            return
        jump = pieces.undecided_jump()
        if jump is not None:
            if pieces.by_itself:
                self._refuse(jump.address, "the function calls a piece of itself, and this may jump into or out of it")
            return
        own, inner = pieces.own(), pieces.reached(pieces.by_itself)
        for leaving in self.found:
            if leaving.address in own and leaving.address in inner:
                self._refuse(leaving.address, "ends the function and a piece of it that it calls, too")
        theirs = inner | pieces.reached(pieces.by_others)
        self.found = [leaving for leaving in self.found if leaving.address in own or leaving.address not in theirs]

    def _refuse(self, address: int, why: str) -> None:
        if self.refusal is None:
            self.refusal = Refusal(Reason.CONTROL_FLOW_UNKNOWN, address, why)

    def _check_end(self, part: FunctionView) -> None:
        doubt = part.complete if part.has_gaps or part.is_unlisted else part.broken
        if doubt is not None:
            self._refuse(doubt.address, doubt.detail)
        elif part.is_unlisted and not part.analyses.get(Reachability).is_everything:
            self._refuse(part.start, "nothing is known to lead to some of the code, which may be another function's")
        elif part.runs_past_end is not None:
            self._runs_on(part, part.runs_past_end)

    def _runs_on(self, part: FunctionView, address: int) -> None:
        """Take the last instruction for an exit, if control always leaves there: by it, or after it.

        Hand-written code ends that way: ``cmp rcx, rdx; jb __chk_fail``, and after it stands ``memcpy``.
        """
        insn, after = part.insn_at(address), self.map.layout.next_code(part.end)
        if insn is not None and insn.raw == _BREAKPOINT:
            return
        if insn is None or after is None:
            self._refuse(address, "control runs on past the function's end")
        elif part.never_runs(insn) or self._joins(after):
            return
        elif insn.flow is Flow.NEXT:
            self.found.append(Exit(address, ExitKind.TAIL, False, False, after))
        elif insn.flow is Flow.JCC and any(each.address == address for each in self.found):
            self.found = [each for each in self.found if each.address != address]
            self.found.append(Exit(address, ExitKind.TAIL, False, False, after))
        else:
            self._refuse(address, "control runs on past the function's end")

    def _look_at(self, part: FunctionView, insn: Insn) -> None:
        flow = insn.flow
        if flow is Flow.RET and insn.end in self.map.text.resumed:
            self.unmatched = Refusal(Reason.SPLIT_STACK, insn.address, _SPLIT)
        elif flow is Flow.RET and not self._follows_no_return(part, insn):
            self.found.append(Exit(insn.address, ExitKind.RET, False, False, None))
        elif flow is Flow.OTHER:
            self._refuse(insn.address, f"{insn.text} may leave the function")
        elif flow is Flow.SYSCALL and self._returns_from_signal(insn.address):
            self._refuse(insn.address, "goes on where a signal met the program, wherever that was")
        elif flow is Flow.INDIRECT_JUMP:
            self._indirect(part, insn)
        elif insn.target is not None and not self._is_inside(insn.target):
            self._outward(insn, insn.target)

    def _returns_from_signal(self, address: int) -> bool:
        return Reason.SIGNAL_RETURN.value in self.map.text.forbidden_areas.overlapping(address, address + 1)

    def _follows_no_return(self, part: FunctionView, insn: Insn) -> bool:
        """Return whether nothing leads to an instruction but the call before it, which never returns."""
        at = insn.address
        number = part.index_of(at)
        above = part.insn(number - 1) if number else None
        if above is None or above.flow is not Flow.CALL or above.target not in self.map.analyses.get(CertainlyNoReturn):
            return False
        if part.complete is not None or at in part.table_targets:
            return False
        return not self.map.entries.sources_of(at) and not self.map.entries.static_entries(at, at + 1)

    def _is_inside(self, target: int) -> bool:
        return any(part.start <= target < part.end for part in self.parts)

    def _outward(self, insn: Insn, target: int) -> None:
        if self._joins(target):
            return
        owner = self.map.layout.start_of(target)
        pieces = self._pieces
        framed = owner is not None and pieces.is_piece(owner) and target not in self._no_return
        if framed and not pieces.is_never_taken(self.function.start, target):
            self._refuse(insn.address, f"jumps with its frame in place to {target:#x}, which others jump to as well")
        if owner != target and not self.map.analyses.get(FirstBytes).is_stub(target) and self._may_come_back(target):
            home = "code of no function" if owner is None else f"the middle of the function at {owner:#x}"
            self._refuse(insn.address, f"jumps into {home}")
            return
        self.found.append(Exit(insn.address, ExitKind.TAIL, insn.flow is not Flow.JUMP, False, target))

    def _may_come_back(self, target: int) -> bool:
        """Return whether code that a jump leads to may jump back into the function past its entry, calls aside."""
        indirect = any(part.has_inner_entries for part in self.parts)
        if not indirect and not self._is_entered_by_others():
            return False
        homes: list[FunctionView] = []
        pending = {target}
        while pending:
            home = self.map.containing(pending.pop())
            if home is None or len(homes) > _MOST_HOMES:
                return True
            if home in homes:
                continue
            homes.append(home)
            if home.complete is not None or home.runs_past_end is not None:
                return True
            if any(low <= place < high for low, high in self._inside() for place in home.leads_to):
                return True
            pending |= home.leads_to
        return indirect and any(home.indirect_jumps > len(home.tables) for home in homes)

    def _inside(self) -> list[tuple[int, int]]:
        """Return the bounds of the function after its entry and of its parts elsewhere."""
        return [(part.start if number else part.entry + 1, part.end) for number, part in enumerate(self.parts)]

    def _is_entered_by_others(self) -> bool:
        """Return whether other code may jump into the function past its entry."""
        bounds = self._inside()
        if self._others is None or self._others[0] != len(bounds):
            found = (each for low, high in bounds for each in self.map.entries.references.into(low, high))
            jumps = (source for _, source, kind in found if kind is Kind.NEAR or kind is Kind.SHORT)
            parts = [(part.start, part.end) for part in self.parts]
            entered = any(not any(low <= source < high for low, high in parts) for source in jumps)
            self._others = len(bounds), entered
        return self._others[1]

    def _joins(self, target: int) -> bool:
        """Return whether the target lies in a part of this function, and take that part in."""
        if self._is_inside(target):
            return True
        part = self._pieces.part_at(target, self.function)
        if part is None:
            return False
        self.parts.append(part)
        return True

    def _indirect(self, part: FunctionView, insn: Insn) -> None:
        table = part.table_of(insn.address)
        if table is not None:
            outside = [each for each in table.targets if not self._is_inside(each) and not self._joins(each)]
            for target in outside:
                if self.map.layout.start_of(target) != target or self._may_come_back(target):
                    self._refuse(insn.address, f"its jump table leads out of the function, to {target:#x}")
            if outside:
                self.found.append(Exit(insn.address, ExitKind.TAIL, True, True, None))
            return
        may_stay = insn.address in part.unresolved or any(piece.has_inner_entries for piece in self.parts)
        self.found.append(Exit(insn.address, ExitKind.TAIL, may_stay, True, None))


def ways_to(code_map: ModuleView, parts: tuple[FunctionView, ...], address: int) -> tuple[Insn, ...] | None:
    """Return the direct jumps to an instruction, if it is entered by those and from above only, and all are known.

    ``parts`` are a function and its parts: code elsewhere that jumps here makes it ``None``.
    """
    if code_map.entries.static_entries(address, address + 1):
        return None
    if any(part.complete is not None or part.overlapped for part in parts):
        return None
    if any(address in part.table_targets or address in part.after_calls for part in parts):
        return None
    found: dict[int, Insn] = {}
    for source in code_map.entries.sources_of(address):
        insn = next((part.covering(source) for part in parts if part.start <= source < part.end), None)
        if insn is None or insn.target != address or insn.flow not in (Flow.JUMP, Flow.JCC):
            return None
        found[insn.address] = insn
    return tuple(found.values())
