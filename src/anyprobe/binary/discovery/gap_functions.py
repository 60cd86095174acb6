"""Code that nothing lists, divided among functions."""

from bisect import bisect_right, insort

from anyprobe.binary.decoding.stack_depth import Balance, Seen, balance
from anyprobe.binary.discovery.gap_code import GapCode
from anyprobe.binary.discovery.gap_starts import ENDS
from anyprobe.binary.objects.padding import ALIGNED
from anyprobe.isa.decode import FLOWS, JUMPS, Flow


class Division:
    """The code that was reached, divided among functions."""

    def __init__(self, code: GapCode, *, are_closed: bool) -> None:
        """Divide ``code``; ``are_closed``: its indirect jumps lead to nothing that control did not come to."""
        self._gaps, self._reached, self._tables, self._are_closed = code.gaps, code.reached, code.tables, are_closed
        self._code = code
        self._starts = sorted(code.starts)
        jumps = ((at, one.near_branch_target) for at, one in code.reached.items() if FLOWS[one.code] is Flow.JUMP)
        self._jumps = {at: aim for at, aim in jumps if aim in code.reached}
        self._balances: dict[int, Balance] = {}
        self._bodies: dict[int, tuple[set[int], int]] = {}
        """By start: the instructions of a function, and its end."""
        self.jumping: set[int] = set()
        """The functions with indirect jumps."""

    def bounds(self) -> list[tuple[int, int]]:
        """Return the bounds of the functions, after more have been found at the targets of jumps between them.

        Those are left out whose ends are in doubt.
        """
        pending = list(self._starts)
        while pending:
            start = pending.pop()
            body, _ = self._bodies[start] = self._body(start)
            for at in body & self._jumps.keys():
                pending += self._begun_at(self._jumps[at])
        found = ((start, *self._bodies[start]) for start in self._starts)
        suspected = self._code.suspected()
        return [(start, end) for start, body, end in found if end > start and suspected.isdisjoint(body)]

    def _begun_at(self, aim: int) -> list[int]:
        """Take what a jump leads to, if no function comes to it, for a start; return which functions have changed."""
        number = bisect_right(self._starts, aim) - 1
        home = self._starts[number] if number >= 0 else -1
        if home >= 0 and home not in self._bodies:
            self._bodies[home] = self._body(home)
        if home == aim or (home >= 0 and aim in self._bodies[home][0]):
            return []
        if aim not in self._balances:
            seen = Seen(self._code.seen.no_return, self._tables)
            self._balances[aim] = balance(aim, self._gaps.instruction_at, seen)
        kept = self._balances[aim]
        if kept is Balance.BROKEN or (kept is Balance.OPEN and aim & ALIGNED):
            return []
        insort(self._starts, aim)
        return [aim] if home < 0 else [home, aim]

    def _limit(self, start: int) -> int:
        number = bisect_right(self._starts, start)
        high = self._gaps.high(start)
        return min(self._starts[number], high) if number < len(self._starts) else high

    def _body(self, start: int) -> tuple[set[int], int]:
        """Return what control comes to from a start within its bounds, and where that ends."""
        limit = self._limit(start)
        found: set[int] = set()
        todo, end, is_open, jumps = [start], start, False, False
        self.jumping.discard(start)
        while todo:
            at = todo.pop()
            while start <= at < limit and at not in found:
                one = self._reached.get(at)
                if one is None:
                    break
                found.add(at)
                end = max(end, one.next_ip)
                flow = FLOWS[one.code]
                if flow in JUMPS:
                    todo.append(one.near_branch_target)
                elif flow is Flow.INDIRECT_JUMP:
                    labels = self._tables.get(at)
                    todo += labels or ()
                    is_open = is_open or (labels is None and not self._are_closed)
                    jumps = True
                if flow in ENDS or at in self._code.last_calls:
                    break
                at = one.next_ip
        if jumps:
            self.jumping.add(start)
        return found, limit if is_open else min(end, limit)
