"""One function: its instructions, and what its own code says of its control flow."""

from array import array
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from anyprobe.binary.analysis.jump_outcomes import JumpTables, Table
from anyprobe.binary.analysis.manager import Analyses
from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.decoding.body import LOCK
from anyprobe.binary.decoding.branches import Branches
from anyprobe.binary.decoding.decoded_code import DecodedCode
from anyprobe.binary.flow.straight_lines import StraightLines
from anyprobe.core.cachedproperty import Lazy, cached_property
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import Insn

if TYPE_CHECKING:
    from anyprobe.binary.flow.escaping_jumps import EscapingJumps
    from anyprobe.binary.flow.evidence import Evidence
    from anyprobe.binary.flow.exits import Exits
    from anyprobe.binary.flow.last_calls import LastCalls
    from anyprobe.binary.flow.reachability import Reachability


class FunctionCode(DecodedCode):
    """One function (or a part of one that lies elsewhere): its instructions and what is known of its control flow."""

    is_nameless = False
    """Whether it is code outside of all functions."""
    _map: ModuleView

    @cached_property
    def analyses(self) -> Analyses[ModuleView, FunctionView]:
        """The results of analyses of this function."""
        return Analyses(self._map, self)

    # -- instructions

    def insn_at(self, address: int) -> Insn | None:
        """Return the instruction that starts at an address, if it is one and is entered at its beginning only."""
        number = self._index.get(address)
        if number is None or address in self.overlapped or self.reachability.may_be_data(number):
            return None
        return self.insn(number)

    def is_site(self, address: int) -> bool:
        """Return whether an instruction starts here that is no data."""
        number = self._index.get(address)
        return number is not None and not self.reachability.may_be_data(number)

    def sites_among(self, addresses: Iterable[int]) -> list[int]:
        """Return those of many addresses at which an instruction starts that is no data, ascending."""
        found = sorted(set(addresses).intersection(self.addresses))
        if not found or not self.reachability.may_be_data_up_to(found[-1]):
            return found
        return [at for at in found if not self.reachability.may_be_data(self._index[at])]

    @cached_property
    def reachability(self) -> "Reachability":
        """Which instructions something leads to."""
        from anyprobe.binary.flow.reachability import Reachability

        return self.analyses.get(Reachability)

    def never_runs(self, insn: Insn) -> bool:
        """Return whether an instruction is certainly never come to: it is padding or data."""
        return self.reachability.never_runs(self._index[insn.address])

    def boundaries_near(self, address: int) -> tuple[int, ...]:
        """Return the instruction starts before and after an address, for messages."""
        number = bisect_right(self.addresses, address)
        return tuple(self.addresses[max(number - 1, 0) : number + 1])

    @property
    def entry(self) -> int:
        """Where an entry probe goes: after ``endbr64``, else the start."""
        return self.start + 4 if self.whole.startswith(b"\xf3\x0f\x1e\xfa") else self.start

    # -- control flow

    @cached_property
    def _sources(self) -> dict[int, list[int]]:
        """Direct jumps inside the function: target to numbers of instructions."""
        found: dict[int, list[int]] = {}
        for number, target in self._facts.jumps:
            if self.start <= target < self.end:
                found.setdefault(target, []).append(number)
        return found

    @property
    def jump_targets(self) -> frozenset[int]:
        """Where the direct jumps inside the function lead within it."""
        return frozenset(self._sources)

    @cached_property
    def jumps_out_to(self) -> frozenset[int]:
        """Where direct jumps lead out of the function."""
        low, high = self.start, self.end
        return frozenset(target for _, target in self._facts.jumps if not low <= target < high)

    @cached_property
    def leads_to(self) -> frozenset[int]:
        """Where jumps lead out of the function, as far as that is known."""
        return self.jumps_out_to.union(at for at in self.table_targets if not self.start <= at < self.end)

    @property
    def jumps(self) -> Branches:
        """The numbers of the direct jumps, and where they lead."""
        return self._facts.jumps

    @property
    def calls(self) -> Branches:
        """The numbers of the direct calls, and what they call."""
        return self._facts.calls

    @property
    def _last_calls(self) -> "LastCalls":
        """The calls and system calls after which control does not go on, or may not."""
        from anyprobe.binary.flow.last_calls import last_calls

        return self.analyses.get(last_calls)

    def branches_to(self, address: int) -> Sequence[int]:
        """Return the numbers of the direct jumps inside the function to an address."""
        return self._sources.get(address, ())

    @cached_property
    def indirect_jumps(self) -> int:
        """The number of indirect jumps."""
        return len(self._facts.indirect_jumps) if self._may_jump_indirectly else 0

    @property
    def _may_jump_indirectly(self) -> bool:
        return self.examined is None or self.examined[0].has_indirect_jumps(self.examined[1])

    @property
    def pointer_jumps(self) -> list[int]:
        """The numbers of the indirect jumps that go where a stored pointer says, or a register."""
        if not self._facts.indirect_jumps:
            return []
        known = self._resolved.tables.keys() | self._resolved.unresolved.keys()
        return [number for number in self._facts.indirect_jumps if self.addresses[number] not in known]

    @property
    def jumps_through_pointers(self) -> list[int]:
        """The numbers of the indirect jumps that go neither by a table nor to an unknown place."""
        jumps = self.pointer_jumps
        return [] if jumps and self._escaping_jumps.through_pointers else jumps

    @property
    def _escaping_jumps(self) -> "EscapingJumps":
        """The jumps that may lead to any place in the function."""
        from anyprobe.binary.flow.escaping_jumps import EscapingJumps

        return self.analyses.get(EscapingJumps)

    @property
    def overlapped(self) -> frozenset[int]:
        """Instructions that are also entered after their ``lock`` prefix (single-threaded programs skip it)."""
        return frozenset() if self.examined is not None else self._body.unlocked

    def _is_locked(self, address: int) -> bool:
        return address in self._index and self.content[address - self.start] == LOCK

    @cached_property
    def broken(self) -> Refusal | None:
        """Why the instruction boundaries themselves are in doubt."""
        body = self._body if self.examined is None else None
        if body is not None and body.doubt is not None:
            return Refusal(Reason.CONTROL_FLOW_UNKNOWN, *body.doubt)
        if body is not None and body.missed is not None:
            number, target = body.missed
            detail = f"jumps into the middle of an instruction, to {target:#x}"
            return Refusal(Reason.CONTROL_FLOW_UNKNOWN, self.addresses[number], detail)
        return self._escaping_jumps.in_disguise if self._evidence.may_disguise(self.start, self.end) else None

    @property
    def has_gaps(self) -> bool:
        """Whether there is data between the instructions."""
        return self.examined is None and self._body.has_gaps

    @cached_property
    def _resolved(self) -> JumpTables:
        jumps = self._facts.indirect_jumps if self._may_jump_indirectly else ()
        if not jumps:  # nearly no function has any
            return JumpTables({}, {})
        from anyprobe.binary.flow.jump_tables import resolved_jumps

        return resolved_jumps(self._map, self, jumps)

    @property
    def tables(self) -> Mapping[int, Table]:
        """The jump tables by the address of the jump."""
        return self._resolved.tables

    def table_of(self, address: int) -> Table | None:
        """Return the jump table of the indirect jump at an address."""
        return self._resolved.tables.get(address)

    def leaves_at(self, jump: Insn) -> bool:
        """Return whether an indirect jump certainly leaves the function."""
        address = jump.address
        return not (address in self.tables or address in self.unresolved or self.has_inner_entries)

    @property
    def unresolved(self) -> tuple[int, ...]:
        """The indirect jumps of which nothing is known; jumps through stored pointers reach known entries only."""
        lost = tuple(self._resolved.unresolved)
        strays = self._escaping_jumps.through_pointers if self.pointer_jumps else ()
        return (*lost, *(self.addresses[number] for number in strays)) if strays else lost

    @cached_property
    def complete(self) -> Refusal | None:
        """``None`` if everything that may enter the function's middle is known, else the first thing that is not."""
        return self._unlisted_doubt() if self.is_unlisted else self.own_doubt

    def _unlisted_doubt(self) -> Refusal | None:
        from anyprobe.binary.flow.unlisted_doubts import UnlistedDoubts

        return self._map.analyses.get(UnlistedDoubts).of(self.start)

    @cached_property
    def is_plain_code(self) -> bool:
        """Whether there is certainly no data: an unwind entry tells of the function, and nothing reads its bytes."""
        text, low, high = self._map.text, self.start + 1, self.end
        return self.start not in text.undescribed and not self.is_unlisted and self._first_read(low, high) is None

    def _first_read(self, low: int, high: int) -> int | None:
        """Return the first byte of a range that instructions read or write by its address, if any."""
        return self._evidence.read_in(low, high)

    @property
    def _evidence(self) -> "Evidence":
        from anyprobe.binary.flow.evidence import Evidence

        return self._map.analyses.get(Evidence)

    @property
    def is_unlisted(self) -> bool:
        """Whether neither a symbol nor an unwind entry tells of it."""
        return self.start in self._map.text.unlisted

    @cached_property
    def own_doubt(self) -> Refusal | None:
        """What is not known of the function's own control flow; ``None`` if all of it is."""
        if self.broken is not None:
            return self.broken
        for address, outcome in self._resolved.unresolved.items():
            return Refusal(Reason.CONTROL_FLOW_UNKNOWN, address, outcome.why)
        escaping = self._may_jump_indirectly or self.start in self._evidence.self_takers
        doubt = self._escaping_jumps.doubt if escaping else None
        return doubt or (self._entered_gap() if self.has_gaps else None)

    def _entered_gap(self) -> Refusal | None:
        """Return where something may enter what was taken for data."""
        entered = self._map.entries.entered(self.start, self.end, addresses=self.indirect_jumps > 0)
        for address in sorted(entered - self._index.keys()):
            if not self._is_locked(address - 1):
                detail = f"{address:#x} may be entered, though no code of the function leads there"
                return Refusal(Reason.CONTROL_FLOW_UNKNOWN, address, detail)
        return None

    @cached_property
    def runs_past_end(self) -> int | None:
        """The last instruction, if control goes on after it. A call there is taken to be one that never returns.

        Where nothing lists the function, and so says where it ends, the call has to be known for that.
        """
        if not self.addresses:
            return self.start
        last = self.insn(len(self.addresses) - 1)
        if last.is_call and self.is_unlisted:
            from anyprobe.binary.flow.noreturn_flow import NoReturnFunctions

            comes_back = last.target is None or last.target not in self._map.analyses.get(NoReturnFunctions)
            return last.address if comes_back else None
        if last.is_call or not last.falls_through or len(self.addresses) - 1 in self._last_calls.certain:
            return None
        return last.address

    @property
    def after_calls(self) -> "array[int]":
        """The return addresses of the function's calls, ascending."""
        return self._facts.after_calls

    @cached_property
    def table_targets(self) -> frozenset[int]:
        """Every target of the function's jump tables."""
        return frozenset(target for table in self._resolved.tables.values() for target in table.targets)

    @cached_property
    def has_inner_entries(self) -> bool:
        """Whether something known may enter the function after its entry through a stored pointer."""
        low, high = self.entry + 1, self.end
        return bool(self._map.entries.pointed_to(low, high))

    @property
    def exits(self) -> "Exits":
        """Every instruction at which the function may end, in its parts elsewhere too, and how far that is certain."""
        from anyprobe.binary.flow.exits import find_exits

        return self.analyses.get(find_exits)

    @property
    def parts(self) -> "tuple[FunctionCode, ...]":
        """The function and its parts elsewhere."""
        return tuple(part for part in self.exits.parts if isinstance(part, FunctionCode))

    @cached_property
    def back_to_entry(self) -> tuple[int, ...]:
        """The jumps from inside the function (and its parts) to its entry, by table too."""
        return self.back_to(frozenset({self.start, self.entry}))

    def back_to(self, heads: frozenset[int]) -> tuple[int, ...]:
        """Return the jumps from inside the function (and its parts) to some addresses of it, by table too."""
        from anyprobe.binary.flow.pieces import Pieces

        found = {self.addresses[number] for number, target in self._facts.jumps if target in heads}
        found.update(at for at, table in self.tables.items() if heads.intersection(table.targets))
        found.update(self._map.analyses.get(Pieces).jumps_from_parts(self, heads))
        return tuple(sorted(found))

    @property
    def blocks(self) -> tuple[int, ...]:
        """Where the basic blocks begin, ascending."""
        from anyprobe.binary.flow.blocks import block_starts

        return self.analyses.get(block_starts)

    @Lazy
    def leaders(self) -> frozenset[int]:
        """Every address of the function that something may enter other than from the instruction above."""
        if self.complete is None and not self._map.layout.starts_between(self.start + 1, self.end):
            entered = self._map.entries.entered(self.start, self.end)
            inner = {*self.after_calls, *self.table_targets}
            return frozenset({self.start, *entered, *(at for at in inner if self.start < at < self.end)})
        return frozenset(address for address, _ in self._map.entries.enterable(self.start, self.end)) | {self.start}

    @Lazy
    def lines(self) -> StraightLines:
        """Its straight lines, and what never runs after them, as long as no more is known to enter it."""
        return StraightLines(self._map, self)

    @property
    def knows_leaders(self) -> bool:
        """Whether all of ``leaders`` was asked for already."""
        return FunctionCode.leaders.made(self) is not None

    def enterable(self, low: int, high: int) -> set[int]:
        """Return the addresses in ``[low, high)`` that something may enter."""
        return {where for where, _ in self._map.entries.enterable(low, high)} if low < high else set()

    def note_entry(self) -> None:
        """Forget what is known of who enters the function: there is one more who does."""
        FunctionCode.leaders.forget(self)
        FunctionCode.lines.forget(self)
