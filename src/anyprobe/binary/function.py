"""One function: its instructions, and what its own code says of its control flow."""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from anyprobe.binary.exits import Exit, Exits, branches_into, find_exits
from anyprobe.binary.jumptables import Table, Unresolved, resolve
from anyprobe.binary.padding import padding_length
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import Flow, Insn, decode_iced, is_next

if TYPE_CHECKING:
    from iced_x86 import Instruction

    from anyprobe.binary.cfg import CodeMap

_LOCK = 0xF0


class FunctionCode:
    """One function (or a part of one that lies elsewhere): its instructions and what is known of its control flow."""

    def __init__(self, code_map: "CodeMap", start: int, limit: int, content: bytes) -> None:
        """Decode ``content``, which lies at ``start``; padding at its end is cut off."""
        self._map = code_map
        self.start = start
        self._content = content
        iced = decode_iced(content, start)
        self.special = tuple(
            Insn(one, content[one.ip - start : one.ip - start + one.len]) for one in iced if not is_next(one)
        )
        """Every instruction that does not simply go on to the next."""
        self.iced: Sequence[Instruction] = iced
        self.end = limit
        self._trim()

    def _trim(self) -> None:
        """Cut off trailing padding: what lies behind the last instruction that does not fall through."""
        last = next((i for i in reversed(self.special) if not i.falls_through or i.is_call), None)
        if last is None or last.end >= self.end or last.iced.is_invalid:
            return
        tail = last.end - self.start
        if padding_length(self._content, tail) < len(self._content) - tail:
            return
        if any(i.target is not None and last.end <= i.target < self.end for i in self.special):
            return
        self.end = last.end
        keep = bisect_left(self.iced, last.end, key=lambda one: one.ip)
        self.iced = self.iced[:keep]
        self.special = tuple(insn for insn in self.special if insn.address < last.end)
        self._content = self._content[:tail]

    # -- instructions

    @cached_property
    def _index(self) -> dict[int, int]:
        return {one.ip: number for number, one in enumerate(self.iced)}

    @cached_property
    def _made(self) -> dict[int, Insn]:
        return {insn.address: insn for insn in self.special}

    @cached_property
    def insns(self) -> tuple[Insn, ...]:
        """All instructions in address order."""
        return tuple(self.insn(number) for number in range(len(self.iced)))

    def insn(self, number: int) -> Insn:
        """Return the instruction with this number."""
        one = self.iced[number]
        made = self._made.get(one.ip)
        if made is None:
            made = self._made[one.ip] = Insn(one, self.raw_at(number))
        return made

    def raw_at(self, index: int) -> bytes:
        """Return the bytes of the instruction with this number."""
        one = self.iced[index]
        offset = one.ip - self.start
        return self._content[offset : offset + one.len]

    def is_boundary(self, address: int) -> bool:
        """Return whether an instruction starts here."""
        return address in self._index

    def index_of(self, address: int) -> int | None:
        """Return the number of the instruction that starts at an address."""
        return self._index.get(address)

    def insn_at(self, address: int) -> Insn | None:
        """Return the instruction that starts at an address, unless it is entered in its middle, too."""
        number = self._index.get(address)
        if number is None or address in self.overlapped:
            return None
        return self.insn(number)

    def boundaries_near(self, address: int) -> tuple[int, ...]:
        """Return the instruction starts before and behind an address, for messages."""
        number = bisect_right(self.iced, address, key=lambda one: one.ip)
        return tuple(one.ip for one in self.iced[max(number - 1, 0) : number + 1])

    @property
    def entry(self) -> int:
        """Where an entry probe goes: behind ``endbr64``, else the start."""
        return self.start + 4 if self._content.startswith(b"\xf3\x0f\x1e\xfa") else self.start

    # -- control flow

    @cached_property
    def _sources(self) -> dict[int, list[int]]:
        """Direct jumps inside the function: target to numbers of instructions."""
        found: dict[int, list[int]] = {}
        for insn in branches_into(self, self.start, self.end):
            found.setdefault(insn.target or 0, []).append(self._index[insn.address])
        return found

    def branches_to(self, address: int) -> Sequence[int]:
        """Return the numbers of the direct jumps inside the function to an address."""
        return self._sources.get(address, ())

    @cached_property
    def indirect_jumps(self) -> int:
        """The number of indirect jumps."""
        return sum(insn.flow is Flow.INDIRECT_JUMP for insn in self.special)

    @cached_property
    def overlapped(self) -> frozenset[int]:
        """Instructions that are also entered behind their ``lock`` prefix (single-threaded programs skip it)."""
        return frozenset(
            insn.target - 1
            for insn in branches_into(self, self.start, self.end)
            if insn.target is not None and insn.target not in self._index and self._is_locked(insn.target - 1)
        )

    def _is_locked(self, address: int) -> bool:
        return address in self._index and self._content[address - self.start] == _LOCK

    @cached_property
    def broken(self) -> Refusal | None:
        """Why the instruction boundaries themselves are in doubt."""
        for insn in self.special:
            if insn.flow is Flow.INVALID:
                detail = f"the bytes at {insn.address:#x} are no instruction that the decoder knows"
                return Refusal(Reason.CONTROL_FLOW_UNKNOWN, insn.address, detail)
        for insn in branches_into(self, self.start, self.end):
            if insn.target not in self._index and not self._is_locked((insn.target or 0) - 1):
                detail = f"jumps into the middle of an instruction, to {insn.target:#x}"
                return Refusal(Reason.CONTROL_FLOW_UNKNOWN, insn.address, detail)
        return None

    @cached_property
    def _resolved(self) -> tuple[dict[int, Table], dict[int, Unresolved]]:
        """The tables by the address of their jump, and the jumps that are neither table nor plain pointer."""
        tables: dict[int, Table] = {}
        unresolved: dict[int, Unresolved] = {}
        if self.indirect_jumps == 0:
            return tables, unresolved
        for insn in self.special:
            if insn.flow is Flow.INDIRECT_JUMP:
                outcome = resolve(self, self._index[insn.address], self._map.text.memory, self._accepts)
                if isinstance(outcome, Table):
                    tables[insn.address] = outcome
                elif isinstance(outcome, Unresolved):
                    unresolved[insn.address] = outcome
        return tables, unresolved

    def _accepts(self, target: int) -> bool:
        """Return whether a jump table may lead here: in this function, or in a part of it."""
        if self.start <= target < self.end:
            return target in self._index
        part = self._map.part_at(target, self)
        return part is not None and part.is_boundary(target)

    @property
    def tables(self) -> Mapping[int, Table]:
        """The jump tables by the address of the jump."""
        return self._resolved[0]

    def table_of(self, address: int) -> Table | None:
        """Return the jump table of the indirect jump at an address."""
        return self._resolved[0].get(address)

    @property
    def unresolved(self) -> tuple[int, ...]:
        """The indirect jumps of which nothing is known; jumps through stored pointers reach known entries only."""
        return tuple(self._resolved[1])

    @cached_property
    def complete(self) -> Refusal | None:
        """``None`` if everything that may enter the function's middle is known, else the first thing that is not."""
        if self.broken is not None:
            return self.broken
        for address, outcome in self._resolved[1].items():
            return Refusal(Reason.CONTROL_FLOW_UNKNOWN, address, outcome.why)
        return None

    @cached_property
    def runs_past_end(self) -> int | None:
        """The last instruction, if control goes on behind it. A call there is taken to be one that never returns."""
        if not self.iced:
            return self.start
        last = self.insn(len(self.iced) - 1)
        return last.address if last.falls_through and not last.is_call else None

    @cached_property
    def after_calls(self) -> tuple[int, ...]:
        """The return addresses of the function's calls."""
        return tuple(insn.end for insn in self.special if insn.is_call)

    @cached_property
    def table_targets(self) -> frozenset[int]:
        """Every target of the function's jump tables."""
        return frozenset(target for table in self._resolved[0].values() for target in table.targets)

    @cached_property
    def has_inner_entries(self) -> bool:
        """Whether something known may enter the function behind its entry through a stored pointer."""
        return bool(self._map.static_entries(self.entry + 1, self.end))

    @cached_property
    def _exits(self) -> Exits:
        return find_exits(self._map, self)

    @property
    def exits(self) -> tuple[Exit, ...]:
        """Every instruction at which the function may end, in its parts elsewhere too."""
        return self._exits.found

    @property
    def exits_complete(self) -> Refusal | None:
        """``None`` if ``exits`` are all there are."""
        return self._exits.complete

    @cached_property
    def back_to_entry(self) -> tuple[int, ...]:
        """The jumps from inside the function (and its parts) to its entry, by table too."""
        return self._exits_free_back_edges()

    def _exits_free_back_edges(self) -> tuple[int, ...]:
        heads = {self.start, self.entry}
        found = {
            insn.address
            for part in self._exits.parts
            for insn in branches_into(part, self.start, self.entry + 1)
            if insn.target in heads
        }
        for part in self._exits.parts:
            found.update(at for at, table in part.tables.items() if heads.intersection(table.targets))
        return tuple(sorted(found))

    @cached_property
    def leaders(self) -> frozenset[int]:
        """Every address of the function that something may enter other than from the instruction above."""
        entered = self._map.enterable(self.start, self.end)
        return frozenset(address for address, _ in entered) | {self.start}

    # -- straight lines

    @cached_property
    def _leader_list(self) -> list[int]:
        return sorted(self.leaders)

    def run_of(self, address: int) -> tuple[Insn, ...]:
        """Return the longest straight line of instructions around one of which only the first may be entered.

        Where the control flow is not fully known every instruction is a line of its own. A call ends a line, since
        its return address is entered.
        """
        number = self._index.get(address)
        if number is None:
            return ()
        if self.complete is not None or address in self.overlapped:
            return (self.insn(number),)
        first = number
        while first > 0 and self.iced[first].ip not in self.leaders and self._continues(first - 1):
            first -= 1
        last = number
        while last + 1 < len(self.iced) and self._continues(last) and self.iced[last + 1].ip not in self.leaders:
            last += 1
        return tuple(self.insn(n) for n in range(first, last + 1))

    def _continues(self, number: int) -> bool:
        """Return whether a line goes on behind an instruction and neither side is entered in its middle."""
        one, after = self.iced[number], self.iced[number + 1]
        if one.ip in self.overlapped or after.ip in self.overlapped:
            return False
        if is_next(one):
            return True
        insn = self.insn(number)
        return insn.falls_through and not insn.is_call

    # -- bytes that never run

    @cached_property
    def padding_after(self) -> int:
        """The number of bytes behind the function that are padding and that nothing enters."""
        if self.runs_past_end is not None:
            return 0
        return self._map.dead_bytes(self.end)

    def dead_bytes_behind(self, address: int) -> int:
        """Return the number of padding bytes at ``address``, where the instruction above does not fall through."""
        if address >= self.end:
            return self.padding_after if address == self.end else 0
        if self.complete is not None or address in self.leaders:
            return 0
        above = self._index.get(address)
        if above is None or above == 0 or self.insn(above - 1).falls_through:
            return 0
        length = padding_length(self._content, address - self.start)
        return next((i for i in range(length) if address + i in self.leaders), length)
