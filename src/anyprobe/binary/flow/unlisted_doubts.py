"""What is not known of functions that nothing lists: where one ends follows from where the next one begins.

What is only pointed or jumped to may be a place inside of the function in front, and a jump that goes where a stored
pointer says may lead there; that is certainly not so of one that is called. A jump that cannot be followed may lead
into all that is near.
"""

from iced_x86 import Code, Mnemonic, Register

from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.objects.padding import padding_length
from anyprobe.core.refusal import Reason, Refusal

_REACH = 1 << 16
"""How far from its beginning a jump that cannot be followed may lead, past subroutines that hand-written code calls."""
_RESTORING = frozenset({Code.ADD_RM64_IMM8, Code.ADD_RM64_IMM32})


class UnlistedDoubts:
    """Knows it for the functions of one module, once it was asked."""

    def __init__(self, code_map: ModuleView) -> None:
        """Look at no function yet."""
        self._map, self._text = code_map, code_map.text
        self._found: dict[int, Refusal | None] = {}

    def of(self, start: int) -> Refusal | None:
        """Return why control may enter a function, or a piece of it, unseen; ``None`` if it does not."""
        if start not in self._found:
            self._look_around(start)
        return self._found[start]

    def _look_around(self, start: int) -> None:
        """Decide about all functions between two that are listed."""
        chains: list[list[FunctionView]] = []
        for code in self._together(start):
            if not chains or code.start in self._text.called:
                chains.append([])
            chains[-1].append(code)
        unfollowed = [(code, code.own_doubt) for chain in chains for code in chain if code.own_doubt is not None]
        self._found[start] = None
        for chain in chains:
            own = next((code.own_doubt for code in chain if code.own_doubt is not None), None)
            if own is None:
                jumps = (_jump_through_pointer(code) for code in chain if not self._is_closed(code))
                own = next((jump for jump in jumps if jump is not None), None)
            for code in chain:
                near = (doubt for other, doubt in unfollowed if abs(other.start - code.start) < _REACH)
                self._found[code.start] = own or next(near, None)

    def _together(self, start: int) -> list[FunctionView]:
        """Return a function and those beside it, as far as nothing lists them."""
        found = [start]
        while (before := self._map.layout.start_before(found[0])) is not None and before in self._text.unlisted:
            found.insert(0, before)
        while (after := self._map.layout.start_after(found[-1])) is not None and after in self._text.unlisted:
            found.append(after)
        codes = (self._map.function_at(each) for each in found)
        return [each for each in codes if not isinstance(each, Refusal)]

    def _is_closed(self, code: FunctionView) -> bool:
        """Return whether what follows a function, after padding, is listed or called, and so no piece of it."""
        gap = self._map.layout.gap_around(code.end)
        if gap is not None and padding_length(gap[1], 0) < len(gap[1]):
            return False
        after = self._map.layout.start_after(code.start)
        return after is None or after not in self._text.unlisted or after in self._text.called


def _jump_through_pointer(code: FunctionView) -> Refusal | None:
    """Return a jump to what a pointer says, if the function is not certainly left there: its frame is taken down."""
    for number in code.jumps_through_pointers:
        above = code.iced[number - 1] if number else None
        takes_down = above is not None and (
            above.mnemonic in (Mnemonic.POP, Mnemonic.LEAVE)
            or (above.code in _RESTORING and above.op0_register == Register.RSP)
        )
        if not takes_down:
            address = code.addresses[number]
            return Refusal(Reason.CONTROL_FLOW_UNKNOWN, address, "jumps where a pointer says, which may be after here")
    return None
