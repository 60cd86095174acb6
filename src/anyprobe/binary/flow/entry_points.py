"""What enters the code of a module: symbols, stored pointers, and the branches of its instructions."""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.decoding.code_scan import Kind, References
from anyprobe.binary.flow.candidates import is_reference
from anyprobe.binary.objects.padding import padding_length
from anyprobe.core.cachedproperty import cached_property
from anyprobe.core.refusal import Refusal


class EntryPoints:
    """What enters the functions of one module, and from where."""

    def __init__(self, module: ModuleView) -> None:
        """Look at nothing before it is asked for."""
        self._module, self._text, self._layout = module, module.text, module.layout
        self._checked: References | None = None
        """The references that are what they look like, once all functions have been looked at."""
        self._paddings: dict[int, int] = {}
        """How much padding there is from some addresses to the next entry: thousands of candidates may lie in it."""
        self.has_more = False
        """Whether something is entered here of which the file tells nothing."""

    @cached_property
    def references(self) -> References:
        """Everything in the code that may be a branch or a code address."""
        return References(self._text, self._layout.code)

    @cached_property
    def _entries(self) -> "array[int]":
        return array("q", sorted({*self._text.entries.tolist(), *self._layout.starts}))

    def add(self, address: int) -> bool:
        """Take note of an address that is entered though nothing leads there; return whether it is news."""
        number = bisect_left(self._entries, address)
        is_new = address not in self._entries[number : number + 1]
        if is_new:
            self.has_more = True  # first: what is found with it is not kept
            self._entries.insert(number, address)
            self._paddings.clear()
        return is_new

    def static_entries(self, low: int, high: int) -> list[int]:
        """Return the known entries in ``[low, high)`` other than through code."""
        return list(self._entries[bisect_left(self._entries, low) : bisect_left(self._entries, high)])

    def certain_entries(self, low: int, high: int, *, pointed: bool) -> list[int]:
        """Return the same without what may name data, and, unless asked for, without what may only be pointed to."""
        named, doubtful = self._text.named, frozenset[int]() if pointed else self._text.pointed
        return [at for at in self.static_entries(low, high) if at not in named and at not in doubtful]

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
        number = max(bisect_right(self._layout.starts, low) - 1, 0)
        while number < len(self._layout.starts) and self._layout.starts[number] < high:
            if self._layout.ends[number] > low:
                function = self._module.function_at(self._layout.starts[number])
                if not isinstance(function, Refusal):
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
                if not low <= source < high and self._module.containing(source) is not None:
                    found.add(target)
            elif self._takes_label(source, surely=not addresses):
                found.add(target)
        return found

    def _takes_label(self, source: int, *, surely: bool) -> bool:
        from anyprobe.binary.flow.escaping_jumps import EscapingJumps

        home = self._module.containing(source)
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

            self._checked = checked_references(self._module)

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
        function = self._module.containing(source)
        if function is None:
            return not self.in_padding(source)
        return is_reference(function, target, source, kind)

    def in_padding(self, address: int) -> bool:
        """Return whether an address between functions lies in padding."""
        number = bisect_right(self._layout.starts, address) - 1
        function = self._module.function_at(self._layout.starts[number]) if number >= 0 else None
        if function is None or isinstance(function, Refusal) or function.runs_past_end is not None:
            return False
        return function.end <= address < function.end + self._padding(function.end)

    def _padding(self, address: int) -> int:
        """Return the number of padding bytes from an address to the next function or entry."""
        known = self._paddings.get(address)
        if known is None:
            known = self._paddings[address] = self._measured_padding(address)
        return known

    def _measured_padding(self, address: int) -> int:
        area = self._layout.area_of(address)
        if area is None:
            return 0
        number = bisect_left(self._entries, address)
        limit = min(self._entries[number] if number < len(self._entries) else area.end, area.end)
        return padding_length(area.content[address - area.start : limit - area.start], 0, zeros=False)

    def dead_bytes(self, address: int) -> int:
        """Return the number of padding bytes from an address on that nothing enters."""
        length = self._padding(address)
        if length == 0:
            return 0
        entered = [target for target, _, _ in self.references_into(address, address + length)]
        from anyprobe.binary.flow.evidence import Evidence

        read = self._module.analyses.get(Evidence).read_in(address, address + length)
        return min([*entered, address + length if read is None else read]) - address


_SAYS = {
    Kind.NEAR: "branched to from",
    Kind.SHORT: "branched to from",
    Kind.LEA: "its address is taken at",
    Kind.ABSOLUTE: "its address is in the instruction at",
}


def _entered_from_within(function: FunctionView, low: int, high: int) -> list[tuple[int, str]]:
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
