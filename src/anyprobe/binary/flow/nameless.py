"""Code outside of all functions: the linker's stubs, and what neither a symbol nor an unwind entry mentions.

Such code begins where something that is known leads: a branch of a function, a stored pointer, a symbol. What else may
enter it is not known, so that no two of its instructions move together; and what nothing is known to lead to may be a
table.
"""

from bisect import bisect_right

from anyprobe.binary.analysis.views import ModuleView
from anyprobe.binary.decoding.code_scan import Kind
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.objects.padding import padding_length
from anyprobe.core.cachedproperty import cached_property
from anyprobe.core.refusal import Reason, Refusal


class NamelessCode(FunctionCode):
    """Code between functions, from something that is entered to the next."""

    is_nameless = True
    is_plain_code = False

    @cached_property
    def complete(self) -> Refusal | None:
        """What else may enter code that nothing describes is not known."""
        return self.broken or Refusal(Reason.CONTROL_FLOW_UNKNOWN, self.start, "code that belongs to no function")


def nameless_code(code_map: ModuleView, address: int) -> NamelessCode | None:
    """Return the code around an address in no function's bounds, if something is known to lead to it."""
    gap = code_map.layout.gap_around(address)
    if gap is None:
        return None
    low, content = gap
    entries = code_map.analyses.get(_GapEntries).sorted(low, low + len(content))
    number = bisect_right(entries, address)
    if number == 0:
        return None
    start, end = entries[number - 1], entries[number] if number < len(entries) else low + len(content)
    found = NamelessCode(code_map, start, content[start - low : end - low])
    last_calls = (insn.end for insn in found.special if insn.is_call and insn.target in code_map.text.noreturn)
    last = next(last_calls, None)
    if last is not None:  # what follows may be anything
        found = NamelessCode(code_map, start, content[start - low : last - low])
    return found if found.is_site(address) else None


def runs_into(code_map: ModuleView, start: int) -> bool:
    """Return whether code in no function may run on into the function that begins at an address."""
    gap = code_map.layout.gap_around(start - 1)
    if gap is None or padding_length(gap[1], 0) == len(gap[1]):
        return False
    entries = code_map.analyses.get(_GapEntries).sorted(gap[0], start)
    code = code_map.function_at(entries[-1]) if entries else None
    if code is None or isinstance(code, Refusal):
        return False
    return code.broken is not None or code.runs_past_end is not None


class _GapEntries:
    """What is entered between functions, by where the last one ends."""

    def __init__(self, code_map: ModuleView) -> None:
        self._map = code_map
        self._known: dict[int, list[int]] = {}

    def sorted(self, low: int, high: int) -> list[int]:
        """Return what is certainly entered in a gap, ascending."""
        known = self._known.get(low)
        if known is None:
            known = self._known[low] = sorted(_entries(self._map, low, high))
        return known


def _entries(code_map: ModuleView, low: int, high: int) -> set[int]:
    """Return what is certainly entered: what lies in a gap itself may be a table that looks like a branch."""
    found = set(code_map.entries.static_entries(low, high))
    for target, source, kind in code_map.entries.references.into(low, high):
        if target in found:  # of a linkage stub one call says it, and there may be a hundred thousand
            continue
        home = code_map.containing(source) if kind is Kind.NEAR or kind is Kind.SHORT else None
        if home is not None and home.broken is None and code_map.entries.may_lead(target, source, kind):
            found.add(target)
    return found
