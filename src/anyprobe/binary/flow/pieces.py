"""Which code is a part of which function though it lies elsewhere: cold parts, basic-block sections, outlined tails.

Names tell of some (``name.cold``). Unwind entries tell of more: code that begins with more on the stack than a return
address is no function, since nothing can call it. So does the code: what a function jumps to with its frame in place is
no function either. A part belongs to the function whose jumps, by other parts or directly, are all that enters it.
"""

from collections.abc import Set as AbstractSet

from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.decoding.code_scan import Kind
from anyprobe.core.refusal import Refusal

_CALL = 0xE8
_MOST_ENTERING = 64
"""A place that so many functions jump to is a function, or the end of all of them."""
_MOST_PIECES = 4096


class Pieces:
    """The parts of one module's functions; each is looked at when it is first asked about."""

    def __init__(self, code_map: ModuleView) -> None:
        """Know nothing but what names say."""
        self._map, self._named = code_map, code_map.named_parts
        self._framed = code_map.text.framed
        self._entering: dict[int, frozenset[int] | None] = {}
        self._owning: dict[int, frozenset[int] | None] = {}
        self._called: dict[int, bool] = {}
        self._pieces: dict[int, bool] = {}
        self._pairs: dict[tuple[int, int], bool] = {}
        self._depths: dict[int, dict[int, int | None]] = {}
        self._entry_depths: dict[int, int] = {}
        """What pieces without unwind entries find on the stack that their functions have put there."""

    def part_at(self, target: int, function: FunctionView) -> FunctionView | None:
        """Return the code around ``target`` if it is a part of ``function`` that lies elsewhere."""
        start = self._map.layout.start_of(target)
        if start is None or start == function.start:
            return None
        pair = (start, function.start)
        known = self._pairs.get(pair)
        if known is None:
            self._pairs[pair] = False  # recursion proves nothing
            known = self._pairs[pair] = self._is_part(start, function)
        found = self._map.function_at(start) if known else None
        return found if not isinstance(found, Refusal) else None

    def jumps_from_parts(self, function: FunctionView, heads: AbstractSet[int]) -> set[int]:
        """Return the jumps to some addresses of a function that lie in its parts elsewhere."""
        found: set[int] = set()
        for target, source, kind in self._map.entries.references.into(min(heads), max(heads) + 1):
            inside = function.start <= source < function.end
            if (
                inside
                or target not in heads
                or kind in (Kind.LEA, Kind.ABSOLUTE)
                or self._map.layout.byte_at(source) == _CALL
            ):
                continue
            part = self.part_at(source, function)
            insn = part.covering(source) if part is not None else None
            if insn is not None and insn.target == target:
                found.add(insn.address)
        return found

    def sibling_at(self, target: int, function: FunctionView) -> FunctionView | None:
        """Return the code around ``target`` if it and ``function`` are one function, whichever is a part of which."""
        found = self.part_at(target, function)
        if found is not None or function.start not in self._framed or not self.is_piece(function.start):
            return found
        root, start = self._owner_of_piece(function.start), self._map.layout.start_of(target)
        home = self._map.function_at(root) if root is not None else None
        if home is None or isinstance(home, Refusal) or start == function.start:
            return None
        return home if start == root else self.part_at(target, home)

    def is_crossed(self, function: FunctionView) -> bool:
        """Return whether control comes to the start of some code from others of its function only."""
        return function.start in self._framed and self.owner_of(function) is not None

    def running_into(self, start: int) -> FunctionView | None:
        """Return the code before an address from which control runs on to there."""
        before = self._map.layout.start_before(start)
        above = self._map.function_at(before) if before is not None else None
        if above is None or isinstance(above, Refusal) or self._map.layout.next_code(above.end) != start:
            return None
        return above if above.runs_past_end is not None else None

    def owner_of(self, part: FunctionView) -> int | None:
        """Return the start of the function that some code is a part of."""
        if self.is_piece(part.start):
            return self._owner_of_piece(part.start)
        for source in self._map.entries.references.sources(part.start, part.end):
            home = self._map.layout.start_of(source)
            if home is not None and home != part.start:
                function = self._map.function_at(home)
                owned = not isinstance(function, Refusal) and self.part_at(part.start, function) is not None
                return home if owned else None
        return None

    def is_piece(self, start: int) -> bool:
        """Return whether what begins at an address is certainly no function: it is entered with another's frame."""
        if start in self._named and not self._is_called(start):
            return True
        if start not in self._pieces:
            self._look_at(start)
        return self._pieces[start]

    def _is_part(self, start: int, function: FunctionView) -> bool:
        part = self._map.function_at(start)
        if isinstance(part, Refusal):
            return False
        if not self.is_piece(start):
            return self._jumps_to_and_fro(part, function)
        if start in self._named:
            return self._owner_of_piece(start) == function.start
        owners = self._owners_of(start)  # none: jump tables lead there
        return owners is not None and owners <= {function.start} and not self.is_piece(function.start)

    def _owner_of_piece(self, start: int) -> int | None:
        owners = self._owners_of(start)
        named = self._named.get(start)
        if named is not None and not (owners or frozenset()) - {named}:
            return named
        return next(iter(owners)) if owners is not None and len(owners) == 1 else None

    def _look_at(self, start: int) -> None:
        """Find out of something that may be a piece, and of all that leads to it and may be one, which ones are."""
        chain = [start]
        for each in chain:  # grows while it runs
            entering = self._entering_at(each) if self._may_be_piece(each) else None
            self._pieces[each] = entering is not None and each in self._framed
            if entering is not None and len(chain) < _MOST_PIECES:
                chain += [home for home in entering if home not in self._pieces and home not in chain]
        depths = self._entry_depths
        todo = [each for each in chain if self._may_be_piece(each) and each not in self._framed]
        while todo:
            deeper = {each: depth for each in todo if (depth := self._depth_at(each)) > 0}
            depths.update(deeper)
            self._pieces.update(dict.fromkeys(deeper, True))
            todo = [each for each in todo if each not in deeper] if deeper else []

    def _may_be_piece(self, start: int) -> bool:
        if self._map.text.is_go or (start in self._map.text.outer and start not in self._framed):
            return False
        entering = self._entering_at(start)
        return entering is not None and (start in self._framed or 0 < len(entering) <= _MOST_ENTERING)

    def _depth_at(self, start: int) -> int:
        """Return what others have on the stack where they jump to an address, 0 where that is nothing or not known."""
        found: set[int] = set()
        for home in self._entering_at(start) or ():
            if home in self._framed or home in self._named:
                continue
            depth = self._pushed(home, start)
            if depth is not None:
                found.add(depth + self._entry_depths.get(home, 0))
        return min(found, default=0)

    def _pushed(self, home: int, start: int) -> int | None:
        """Return what a function has put on the stack where it jumps to an address, if that is known."""
        if home not in self._depths:
            from anyprobe.binary.flow.frame_depths import depths_at_jumps

            function = self._map.function_at(home)
            plain = not isinstance(function, Refusal) and function.broken is None
            self._depths[home] = depths_at_jumps(function) if plain else {}  # type: ignore[arg-type]
        return self._depths[home].get(start)

    def is_never_taken(self, home: int, start: int) -> bool:
        """Return whether a function has nothing on the stack where it jumps to what is entered with a frame.

        Compilers let branches that are never taken lead to the end of a function's cold part, where another's begins.
        """
        return start in self._framed and not self.is_piece(home) and self._pushed(home, start) == 0

    def _is_called(self, start: int) -> bool:
        """Return whether a call leads to an address."""
        if start not in self._called:
            found = self._map.entries.references_into(start, start + 1)
            self._called[start] = any(
                kind is Kind.NEAR and self._map.layout.byte_at(at) == _CALL for _, at, kind in found
            )
        return self._called[start]

    def _owners_of(self, piece: int) -> frozenset[int] | None:
        """Return the functions by whose jumps a piece is entered, by other pieces or directly; ``None``: by others."""
        if piece not in self._owning:
            seen, owners, todo = {piece}, set[int](), [piece]
            while todo:
                entering = self._entering_at(todo.pop())
                if entering is None or len(seen) > _MOST_PIECES:
                    self._owning[piece] = None
                    return None
                for home in entering:
                    if not self.is_piece(home):
                        owners.add(home)
                    elif home not in seen:
                        seen.add(home)
                        todo.append(home)
            several = len(owners) > 1
            self._owning[piece] = frozenset(each for each in owners if not (several and self._strays(each, seen)))
        return self._owning[piece]

    def _strays(self, home: int, pieces: set[int]) -> bool:
        """Return whether all jumps of a function to some pieces are never taken."""
        entered = [each for each in pieces if home in (self._entering_at(each) or ())]
        return all(self.is_never_taken(home, each) for each in entered)

    def _entering_at(self, start: int) -> frozenset[int] | None:
        """Return the functions that jump into what begins at an address, or run on into it.

        ``None``: something else enters it, or takes an address in it.
        """
        if start not in self._entering:
            self._entering[start] = self._find_entering(start)
        return self._entering[start]

    def _find_entering(self, start: int) -> frozenset[int] | None:
        part = self._map.function_at(start)
        if isinstance(part, Refusal):
            return None
        found: set[int] = set()
        for target, source, kind in self._map.entries.references_into(part.start, part.end):
            home = self._map.layout.start_of(source)
            if kind is Kind.LEA or kind is Kind.ABSOLUTE or home is None:
                return None
            inside = home == start and source < part.end
            if self._map.layout.byte_at(source) == _CALL and (not inside or target == start):
                return None
            if not inside:
                found.add(home)
        above = self.running_into(start)
        if above is not None:
            found.add(above.start)
        return frozenset(found)

    def _jumps_to_and_fro(self, part: FunctionView, function: FunctionView) -> bool:
        """Infer it of a part without a frame, or without an unwind entry.

        One of the two jumps into the other's middle, and nothing but jumps of the function enters the part. That can
        hold both ways for a function that is never called directly; the part is then the one whose first byte is
        jumped to, or that lies lower, where linkers put ``.text.unlikely``.
        """
        if part.start in self._map.text.outer:
            return False
        jumped_to = _jumps_into(function, part.start, part.start + 1)
        if not jumped_to and part.start > function.start:
            return False
        inward = _jumps_into(function, part.start + 1, part.end)
        back = inward or _jumps_into(part, function.entry + 1, function.end)
        return back and self._only_from(part, function)

    def _only_from(self, part: FunctionView, function: FunctionView) -> bool:
        """Return whether nothing but jumps of ``function`` (and of the part itself) enters the part."""
        for _, source, kind in self._map.entries.references_into(part.start, part.end):
            home = self._map.layout.start_of(source)
            inside = home == part.start and source < part.end
            jumps = home == function.start and source < function.end and self._map.layout.byte_at(source) != _CALL
            if kind is Kind.LEA or kind is Kind.ABSOLUTE or not (inside or jumps):
                return False
        return True


def _jumps_into(part: FunctionView, low: int, high: int) -> bool:
    """Return whether direct jumps of a function lead into an address range elsewhere."""
    return any(low <= target < high for target in part.jumps_out_to)
