"""Control flow of a module: what may be entered where, and how much of that is certain.

Nothing is analysed before it is asked for, and nothing twice. Addresses are link-time addresses of the module.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping

from anyprobe.binary.decoding.code_scan import CodeBytes, Kind, References, code_bytes
from anyprobe.binary.decoding.kept_lines import KeptLines
from anyprobe.binary.flow.analyses import Analyses
from anyprobe.binary.flow.candidates import is_reference
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.flow.views import ModuleView
from anyprobe.binary.objects.padding import padding_length
from anyprobe.binary.objects.text import ModuleText
from anyprobe.core.cachedproperty import cached_property
from anyprobe.core.refusal import Reason, Refusal

_MOST_NOPS = 64
"""How many bytes of padding may lie between two functions of which one runs on into the other."""

__all__ = ["CodeMap", "FunctionCode"]


class CodeMap:
    """All functions of one module, analysed on demand.

    ``parts`` maps the start of a part (``name.cold``) to the start of the function that it belongs to, where symbols
    say so; what they do not say is inferred from who jumps where.
    """

    def __init__(self, text: ModuleText, parts: Mapping[int, int] | None = None) -> None:
        """Remember the module; nothing is read yet."""
        self.text = text
        self._functions: dict[int, FunctionCode | Refusal] = {}
        self.named_parts: Mapping[int, int] = parts or {}
        """The functions of which names say that some code elsewhere is a part, by where that begins."""
        self.kept_lines = KeptLines()
        """The functions whose decoded instructions are kept."""
        self._unproven_starts: frozenset[int] | None = None
        """What ``_unproven`` returns, once it is known."""
        self._checked: References | None = None
        """The references that are what they look like, once all functions have been looked at."""
        self.analyses: Analyses[ModuleView] = Analyses(self)
        """The results of analyses of the module."""

    @cached_property
    def code(self) -> tuple[CodeBytes, ...]:
        """The bytes of all code."""
        return code_bytes(self.text)

    @cached_property
    def references(self) -> References:
        """Everything in the code that may be a branch or a code address."""
        return References(self.text, self.code)

    @cached_property
    def _starts(self) -> "array[int]":
        return array("q", self.text.function_starts.astype("<i8").tobytes())

    @cached_property
    def _ends(self) -> "array[int]":
        return array("q", self.text.function_ends.astype("<i8").tobytes())

    @cached_property
    def _entries(self) -> "array[int]":
        return array("q", sorted({*self.text.entries.tolist(), *self._starts}))

    def area_of(self, address: int) -> CodeBytes | None:
        """Return the stretch of code around an address."""
        for part in self.code:
            if part.start <= address < part.end:
                return part
        return None

    # -- functions

    def function_at(self, start: int) -> FunctionCode | Refusal:
        """Return the function that starts at an address."""
        known = self._functions.get(start)
        if known is None:
            known = self._functions[start] = self._analyse(start)
        return known

    def _analyse(self, start: int) -> FunctionCode | Refusal:
        number = bisect_left(self._starts, start)
        if start in self._unproven:
            detail = "a symbol without a type, which may name data, and nothing that is known to lead here"
            return Refusal(Reason.NOT_CODE, start, detail)
        if number == len(self._starts) or self._starts[number] != start:
            return self._nameless(start) or Refusal(Reason.NOT_CODE, start, "no function starts here")
        area = self.area_of(start)
        if area is None:
            return Refusal(Reason.NOT_CODE, start, "not in executable code")
        end = min(self._ends[number], area.end)
        if end <= start:
            return Refusal(Reason.NOT_CODE, start, "the function has no bytes")
        return FunctionCode(self, start, area.content[start - area.start : end - area.start])

    @property
    def _unproven(self) -> frozenset[int]:
        """The functions of which nothing but a symbol without a type tells, and nothing leads there."""
        if self._unproven_starts is None:
            self._unproven_starts = frozenset()  # while they are looked at, they are functions like any others
            doubtful = self.text.named | self.text.pointed
            starts = doubtful.difference(self.text.unlisted).intersection(self._starts) if doubtful else ()
            if starts:
                from anyprobe.binary.flow.untyped_symbols import unproven_starts

                self._unproven_starts = unproven_starts(self, starts)
                for start in self._unproven_starts:
                    self._functions.pop(start, None)
        return self._unproven_starts

    def _nameless(self, address: int) -> FunctionCode | None:
        """Return the code around an address outside of all functions."""
        from anyprobe.binary.flow.nameless import nameless_code

        return nameless_code(self, address) if self.start_of(address) is None else None

    def gap_around(self, address: int) -> tuple[int, bytes] | None:
        """Return where the bytes outside of all functions begin that hold an address, and those bytes."""
        area, number = self.area_of(address), bisect_right(self._starts, address) - 1
        if area is None or (number >= 0 and address < self._ends[number]):
            return None
        low = max(area.start, self._ends[number] if number >= 0 else 0)
        high = min(area.end, self._starts[number + 1] if number + 1 < len(self._starts) else area.end)
        return low, bytes(area.content[low - area.start : high - area.start])

    def start_of(self, address: int) -> int | None:
        """Return the start of the function whose bounds hold an address."""
        number = bisect_right(self._starts, address) - 1
        if number < 0 or address >= self._ends[number]:
            return None
        return self._starts[number]

    def end_of(self, start: int) -> int:
        """Return where the bounds of the function that starts at an address end."""
        return self._ends[bisect_left(self._starts, start)]

    def start_before(self, start: int) -> int | None:
        """Return the start of the function before one."""
        number = bisect_left(self._starts, start)
        return self._starts[number - 1] if number else None

    def start_after(self, start: int) -> int | None:
        """Return the start of the function after one."""
        number = bisect_right(self._starts, start)
        return self._starts[number] if number < len(self._starts) else None

    def starts_between(self, low: int, high: int) -> list[int]:
        """Return the function starts in ``[low, high)``."""
        return list(self._starts[bisect_left(self._starts, low) : bisect_left(self._starts, high)])

    def containing(self, address: int) -> FunctionCode | None:
        """Return the function that an address lies in."""
        start = self.start_of(address)
        found = self.function_at(start) if start is not None else None
        return found if isinstance(found, FunctionCode) and address < found.end else None

    def byte_at(self, address: int) -> int:
        """Return the byte of code at an address, or -1."""
        area = self.area_of(address)
        return area.content[address - area.start] if area is not None else -1

    # -- what enters them

    def static_entries(self, low: int, high: int) -> list[int]:
        """Return the known entries in ``[low, high)`` other than through code."""
        return list(self._entries[bisect_left(self._entries, low) : bisect_left(self._entries, high)])

    def certain_entries(self, low: int, high: int, *, pointed: bool) -> list[int]:
        """Return the same without what may name data, and, unless asked for, without what may only be pointed to."""
        named, doubtful = self.text.named, frozenset[int]() if pointed else self.text.pointed
        return [at for at in self.static_entries(low, high) if at not in named and at not in doubtful]

    def add_entry(self, address: int) -> None:
        """Take note of an address that is entered though nothing in the program leads there."""
        number = bisect_left(self._entries, address)
        if address not in self._entries[number : number + 1]:
            self._entries.insert(number, address)
            start = self.start_of(address)
            known = self._functions.get(address if start is None else start)
            if isinstance(known, FunctionCode):
                known.note_entry()

    def sources_of(self, address: int) -> list[int]:
        """Return where in the code something leads to an address or takes it (somewhere in the instruction)."""
        return [source for source, _ in self.references_to(address)]

    def references_to(self, address: int) -> list[tuple[int, Kind]]:
        """Return the same, and what each is."""
        return [(source, kind) for _, source, kind in self.references_into(address, address + 1)]

    def pointed_to(self, low: int, high: int) -> set[int]:
        """Return what is stored somewhere, or taken by an instruction, of the addresses in ``[low, high)``."""
        found = set(self.static_entries(low, high))
        return found.union(at for at, _, kind in self.references_into(low, high) if kind in (Kind.LEA, Kind.ABSOLUTE))

    def enterable(self, low: int, high: int) -> list[tuple[int, str]]:
        """Return every address in ``[low, high)`` that may be entered other than from the instruction above, and why.

        An address may appear more than once. The list is complete for module code whose indirect jumps are resolved;
        in a function where they are not, every instruction is listed.
        """
        found = [(address, "a symbol, unwind entry or stored pointer is here") for address in
                 self.static_entries(low, high)]  # fmt: skip
        for target, source, kind in self.references_into(low, high):
            found.append((target, f"{_SAYS[kind]} {source:#x}"))
        number = max(bisect_right(self._starts, low) - 1, 0)
        while number < len(self._starts) and self._starts[number] < high:
            if self._ends[number] > low:
                function = self.function_at(self._starts[number])
                if isinstance(function, FunctionCode):
                    found += _entered_from_within(function, low, high)
            number += 1
        return found

    def entered(self, low: int, high: int, *, addresses: bool = True) -> set[int]:
        """Return what symbols, stored pointers, branches and, if asked for, taken addresses name in ``[low, high)``."""
        found = set(self.static_entries(low, high))
        if addresses and self._checked is not None:
            return found.union(self._checked.targets(low, high))
        for target, _, kind in self.references_into(low, high):
            if addresses or kind is Kind.NEAR or kind is Kind.SHORT:
                found.add(target)
        return found

    def surely_entered(self, low: int, high: int, *, addresses: bool) -> set[int]:
        """Return the same without what data in ``[low, high)`` or between functions would say if it were code.

        Symbols without a type and stored addresses count only with ``addresses``: all may be those of data. So may what
        instructions take the address of, unless they jump there at once.
        """
        found = set(self.static_entries(low, high) if addresses else self.certain_entries(low, high, pointed=False))
        for target, source, kind in self.references_into(low, high):
            if kind is Kind.NEAR or kind is Kind.SHORT:
                if not low <= source < high and self.containing(source) is not None:
                    found.add(target)
            elif self._takes_label(source, surely=not addresses):
                found.add(target)
        return found

    def _takes_label(self, source: int, *, surely: bool) -> bool:
        from anyprobe.binary.flow.escaping_jumps import EscapingJumps

        home = self.containing(source)
        return home is not None and home.analyses.get(EscapingJumps).is_label(source, surely=surely)

    @property
    def all_references(self) -> References:
        """What leads anywhere in the module or takes an address of its code, once the module is surveyed."""
        assert self._checked is not None
        return self._checked

    @property
    def is_surveyed(self) -> bool:
        """Whether all functions are being asked about."""
        return self._checked is not None

    def survey(self) -> None:
        """Decide about all candidates of the scan together; worth it where most functions will be asked about."""
        if self._checked is None:
            from anyprobe.binary.flow.survey import checked_references

            self._checked = checked_references(self)

    def references_into(self, low: int, high: int) -> Iterable[tuple[int, int, Kind]]:
        """Yield (target, source, kind) of what leads into ``[low, high)`` or takes an address there."""
        if self._checked is not None:
            yield from self._checked.into(low, high)
            return
        for target, source, kind in self.references.into(low, high):
            if self.may_lead(target, source, kind):
                yield target, source, kind

    def may_lead(self, target: int, source: int, kind: Kind) -> bool:
        """Return whether a candidate of the scan may be what it looks like; in doubt it is."""
        function = self.containing(source)
        if function is None:
            return not self.in_padding(source)
        return is_reference(function, target, source, kind)

    def in_padding(self, address: int) -> bool:
        """Return whether an address between functions lies in padding."""
        number = bisect_right(self._starts, address) - 1
        function = self.function_at(self._starts[number]) if number >= 0 else None
        if not isinstance(function, FunctionCode) or function.runs_past_end is not None:
            return False
        return function.end <= address < function.end + self._padding(function.end)

    def _padding(self, address: int) -> int:
        """Return the number of padding bytes from an address to the next function or entry."""
        area = self.area_of(address)
        if area is None:
            return 0
        number = bisect_left(self._entries, address)
        limit = min(self._entries[number] if number < len(self._entries) else area.end, area.end)
        return padding_length(area.content[address - area.start : limit - area.start], 0, zeros=False)

    def next_code(self, address: int) -> int | None:
        """Return the function that control runs into from an address, over nothing but ``nop`` instructions."""
        starts = self.starts_between(address, address + _MOST_NOPS)
        area = self.area_of(address)
        if not starts or area is None:
            return None
        between = area.content[address - area.start : starts[0] - area.start]
        traps = b"\xcc" in between
        return None if traps or padding_length(between, 0, zeros=False) < len(between) else starts[0]

    def dead_bytes(self, address: int) -> int:
        """Return the number of padding bytes from an address on that nothing enters."""
        length = self._padding(address)
        if length == 0:
            return 0
        entered = [target for target, _, _ in self.references_into(address, address + length)]
        from anyprobe.binary.flow.evidence import Evidence

        read = self.analyses.get(Evidence).read_in(address, address + length)
        return min([*entered, address + length if read is None else read]) - address


_SAYS = {
    Kind.NEAR: "branched to from",
    Kind.SHORT: "branched to from",
    Kind.LEA: "its address is taken at",
    Kind.ABSOLUTE: "its address is in the instruction at",
}


def _entered_from_within(function: FunctionCode, low: int, high: int) -> list[tuple[int, str]]:
    """Return what only decoding tells: return addresses, jump tables, the unknown."""
    found = [(address, "the return address of a call") for address in function.after_calls if low <= address < high]
    refusal = function.complete
    if refusal is not None:
        why = f"the control flow is not known: {refusal.detail} ({refusal.address:#x})"
        found += [(one.ip, why) for one in function.iced if low <= one.ip < high]
        if function.broken is not None and not any(low <= one.ip < high for one in function.iced):
            found.append((low, why))
    found += [(address, "a jump table leads here") for address in function.table_targets if low <= address < high]
    return found
