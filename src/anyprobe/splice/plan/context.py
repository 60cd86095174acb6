"""What strategies know while the wants of one function are placed: code, claimed bytes, what is allowed."""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING

from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.address import AddressRange, page_floor
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import JUMP_BYTES
from anyprobe.isa.decode import Insn
from anyprobe.isa.relocate import must_stay
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.drafts import PlanDraft, SpliceDraft
from anyprobe.splice.plan.splices import AUTO, Pun, Strategy

if TYPE_CHECKING:
    from anyprobe.binary.objects.goroutines import ParkingPlaces


@dataclass
class PlanContext:
    """What holds for all plans of a module, and, in an attempt, the claims and the plan that strategies look at.

    ``reachable(pun)`` says whether some page that a punned jump can reach may be mapped. ``allowed`` are the
    strategies that the user permits.
    """

    code: CodeMap
    claims: Claims
    reachable: Callable[[Pun], bool]
    allowed: frozenset[Strategy] = AUTO
    plain_jumps_only: bool = False
    """No several-instruction jumps (Go: goroutines parked anywhere keep their pc off the stacks), but where ``parking``
    says that no thread is parked."""
    parking: "ParkingPlaces | None" = None
    faults_handled: bool = False
    """The program handles faults: what may fault is only displaced alone, so that its address and what follows it are
    executable, where a handler may have the program go on."""
    pcs_shown: bool = True
    """Its handlers are shown the program's own pcs. Where they are not, nothing that may fault is displaced at all."""
    faults_skipped: bool = True
    """They may have the program go on after what has faulted; Go's runtime never does, for instance."""
    writable: tuple[AddressRange, ...] = ()
    """Text that the program may write to: it would hit an anyprobe jump, or what is displaced by one."""
    bias: int = 0
    pages_apart: bool = True
    """Bytes on two pages are not written together: a controller that dies in between would leave half of them."""
    retired: Mapping[int, int] = field(default_factory=dict)
    """The springboards that are in use no more, with the sites that led there; run-time addresses."""
    plan: PlanDraft = field(default_factory=PlanDraft)
    """The plan that is being made."""
    wanted: frozenset[int] = frozenset()
    """The instructions that are wanted in it."""

    def attempt(self, claims: Claims, plan: PlanDraft, wanted: frozenset[int]) -> "PlanContext":
        """Return the context of one plan."""
        return self._with({"claims": claims, "plan": plan, "wanted": wanted})

    def asking(self, reachable: Callable[[Pun], bool]) -> "PlanContext":
        """Return the same context, in which it is asked otherwise what punned jumps can reach."""
        return self._with({"reachable": reachable})

    def _with(self, changed: dict[str, object]) -> "PlanContext":
        """Return a copy in which some fields are different: ``replace`` takes ten times as long, for each function."""
        made = object.__new__(PlanContext)
        made.__dict__.update(self.__dict__, **changed)
        return made

    def adopt(self, splice: SpliceDraft) -> list[SpliceDraft]:
        """Add a splice to the plan, with what it leans on and is not there yet; return all that was added."""
        below = [added for each in splice.leans_on if each not in self.plan.splices for added in self.adopt(each)]
        self.plan.splices.append(splice)
        self.claims.claim(splice)
        return [*below, splice]

    def part_of(self, function: FunctionCode, address: int) -> FunctionCode | None:
        """Return the code around an address: a function, most likely, or a part of it elsewhere."""
        return function if function.start <= address < function.end else self.code.containing(address)

    # -- what may move

    def moving(self, insns: tuple[Insn, ...]) -> tuple[Insn, ...]:
        """Return those instructions of a line, from the first on, that may make room for one jump together.

        Goroutines wait after calls, and older versions of Go come back to calls themselves.
        """
        if not self.plain_jumps_only:
            return insns
        parking, alone = self.parking, insns[:1]
        if parking is None or alone[0].is_call:
            return alone
        after = takewhile(lambda insn: not (insn.is_call or parking.may_park(insn.address)), insns[1:])
        return (*alone, *after)

    def may_move(self, insns: tuple[Insn, ...], written: int) -> bool:
        """Return whether all may move of which bytes are written; where that is not known, all that is displaced."""
        if self.plain_jumps_only and self.parking is None:
            return len(insns) == 1
        moving = self.moving(insns)
        return len(moving) == len(insns) or moving[-1].end >= insns[0].address + written

    def short_run(self, run: tuple[Insn, ...], start: int, index: int) -> tuple[Insn, ...] | Refusal:
        """Return the rest of a line from ``run[start]`` on, as far as it may move, if that is shorter than a jump."""
        moving = self.moving(run[start:])
        head, last = run[start].address, moving[-1]
        insns = tuple(insn for insn in moving if insn.end < head + JUMP_BYTES)
        if len(insns) <= index - start or insns[-1] is not last:
            return Refusal(Reason.TOO_SHORT, head, "only a line that is shorter than a jump leans on what is after it")
        return insns

    def forbidden(self, insns: tuple[Insn, ...], end: int = 0) -> Refusal | None:
        """Return why some instructions must stay where they are; ``end``: bytes below it would be overwritten."""
        held = self._held(insns, end)
        return held or next((refusal for refusal in map(must_stay, insns) if refusal is not None), None)

    def _held(self, insns: tuple[Insn, ...], end: int) -> Refusal | None:
        """Return the same of instructions that have displaced forms."""
        low, high = insns[0].address, insns[-1].end
        for reason in self.code.text.forbidden_areas.overlapping(low, high):
            return Refusal(Reason(reason), low, "this code must never be displaced")
        return self._written_at(low, max(high, end)) or self.fault_refusal(insns, end)

    def _written_at(self, low: int, high: int) -> Refusal | None:
        """Return that the program may write to some bytes, if it may."""
        for area in self.writable:
            if area.start < high and low < area.end:
                detail = "the text is writable here: the program may change it, and would change anyprobe's jump"
                return Refusal(Reason.WRITABLE_TEXT, low, detail)
        return None

    def fault_refusal(self, insns: Sequence[Insn], end: int = 0) -> Refusal | None:
        """Return why faults that the program handles keep instructions where they are, if it handles any."""
        if not self.faults_handled:
            return None
        from anyprobe.splice.plan.faulting import fault_refusal

        return fault_refusal(insns, end, shown=self.pcs_shown, skipped=self.faults_skipped)

    def faults_part(self, above: Insn, insn: Insn) -> bool:
        """Return whether faults that the program handles keep an instruction from moving with the one above it."""
        if not self.faults_handled:
            return False
        from anyprobe.splice.plan.faulting import keeps_apart

        return keeps_apart(above, insn, skipped=self.faults_skipped)

    # -- what is free

    def checked(self, splice: SpliceDraft) -> SpliceDraft | Refusal:
        """Return the splice if its bytes may be written and its instructions displaced."""
        start, end = splice.write_at, splice.write_at + splice.written
        if self.pages_apart and page_floor(start) != page_floor(end - 1):
            return Refusal(Reason.PAGE_BOUNDARY, start, "the bytes to write cross a page boundary")
        known = {at for each in splice.leans_on for at in range(each.write_at, each.write_at + each.written)}
        unknown = [at for at in range(end, end + splice.borrowed) if at not in known]
        taken = self.claims.conflict(start, splice.written, 0) or self.claims.overwritten(splice)
        taken = taken or next((why for at in unknown if (why := self.claims.conflict(at, 0, 1))), None)
        return self.forbidden(splice.insns, end) or taken or self._written_at(start, end + splice.borrowed) or splice

    def checked_line(self, splice: SpliceDraft) -> SpliceDraft | Refusal:
        """Return a jump in a line of instructions all of which have displaced forms, if its bytes may be written."""
        start = splice.head
        if self.pages_apart and page_floor(start) != page_floor(start + JUMP_BYTES - 1):
            return Refusal(Reason.PAGE_BOUNDARY, start, "the bytes to write cross a page boundary")
        taken = self.claims.conflict(start, JUMP_BYTES, 0) or self.claims.overwritten(splice)
        return taken or self._held(splice.insns, start + JUMP_BYTES) or splice

    def dead_bytes(self, function: FunctionCode, last: Insn) -> int:
        """Return how many bytes after ``last`` can never run."""
        return 0 if last.falls_through else function.lines.dead_bytes_after(last.end)

    def dead_ranges(self, address: int, low: int, high: int) -> Iterator[tuple[int, int]]:
        """Yield padding after functions, and padding that is not wanted in the function around ``address``."""
        for start in self.code.layout.starts_between(low, high):
            function = self.code.function_at(start)
            if not isinstance(function, Refusal):
                yield function.end, function.end + function.lines.padding_after
        home = self.code.containing(address)
        if home is None:
            return
        first = bisect_left(home.special, low, key=lambda insn: insn.end)
        for insn in takewhile(lambda insn: insn.end < min(high, home.end), home.special[first:]):
            end = insn.end if insn.falls_through else insn.end + home.lines.dead_bytes_after(insn.end)
            if end > insn.end and not any(place in self.wanted for place in range(insn.end, end)):
                yield insn.end, end
