"""Which instructions of a function something leads to: what else is among its bytes may be data."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from anyprobe.binary.analysis.views import FunctionView, ModuleView
from anyprobe.binary.decoding.body import ENDS
from anyprobe.binary.flow.last_calls import last_calls
from anyprobe.binary.flow.pieces import Pieces
from anyprobe.binary.objects.padding import is_padding, padding_length
from anyprobe.core.cachedproperty import cached_property
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import DIRECT, FLOWS, Flow


def reaches_all(function: FunctionView, entries: set[int]) -> bool:
    """Return whether every instruction but padding is led to from ``entries``, by a jump, or from above.

    That is so of nearly all functions, and takes one look after each end. Of the others, and of what calls pieces of
    itself, ``Reached`` knows more.
    """
    addresses, last = function.addresses, function.analyses.get(last_calls).possible
    if not addresses or addresses[0] not in entries:
        return False
    sources, targets = [addresses[number] for number, _ in function.jumps], [target for _, target in function.jumps]
    first_to = dict(zip(reversed(targets), reversed(sources), strict=True))
    first_to |= dict.fromkeys(entries, -1)
    starts, is_all = [addresses[0]], True
    """Where straight pieces begin, and whether one further up leads to each."""
    for number, flow in function.turns:
        if flow not in ENDS and number not in last:
            continue
        following, source = number + 1, None
        while following < len(addresses) and (source := first_to.get(addresses[following])) is None:
            if not is_padding(function.raw_at(following)):
                return False
            following += 1
        if source is not None:
            starts.append(addresses[following])
            is_all = is_all and source < starts[-1]
    if is_all:
        return True
    reached = [*starts[1:], function.end]
    """By piece: the first instruction that is led to, so far after its end."""
    todo = [at for at in entries if addresses[bisect_right(addresses, at) - 1] == at]
    while todo:
        aim = todo.pop()
        piece = bisect_right(starts, aim) - 1
        if piece >= 0 and aim < reached[piece]:
            todo += targets[bisect_left(sources, aim) : bisect_left(sources, reached[piece])]
            reached[piece] = aim
    return reached == starts


class Reached:
    """Which instructions of a function, decoded from the first byte to the last, something is known to lead to."""

    def __init__(self, function: FunctionView, entries: Iterable[int], *, certainly: bool = True) -> None:
        """Follow control flow from ``entries``, ``certainly`` not after calls that may not come back."""
        self._function = function
        self._ends = (
            function.analyses.get(last_calls).possible if certainly else function.analyses.get(last_calls).certain
        )
        self._flags = bytearray(len(function.iced))
        self._stops = [number for number, _ in function.turns]
        self.follow(entries)

    def follow(self, entries: Iterable[int]) -> None:
        """Follow control flow from more entries."""
        iced, index, flags, stops = self._function.iced, self._function.index_of, self._flags, self._stops
        todo = [number for number in map(index, entries) if number is not None]
        while todo:
            number = todo.pop()
            while number < len(iced) and not flags[number]:
                place = bisect_left(stops, number)
                if place == len(stops):  # it runs off the end
                    flags[number:] = b"\1" * (len(iced) - number)
                    break
                last, flow = self._function.turns[place]
                flags[number : last + 1] = b"\1" * (last + 1 - number)
                if flow in DIRECT:
                    target = index(iced[last].near_branch_target)
                    todo += [target] if target is not None else []
                if flow in ENDS or last in self._ends:
                    break
                number = last + 1

    @property
    def is_all(self) -> bool:
        """Whether every instruction but padding is reached."""
        body, at = self._function, self._flags.find(0)
        while at >= 0:
            if not is_padding(body.raw_at(at)):
                return False
            at = self._flags.find(0, at + 1)
        return True

    def __contains__(self, number: object) -> bool:
        """Return whether something leads to the instruction with this number."""
        return isinstance(number, int) and bool(self._flags[number])


class Reachability:
    """What leads to the instructions of one function, by their numbers."""

    def __init__(self, code_map: ModuleView, function: FunctionView) -> None:
        """Look at nothing before it is asked for."""
        self._map, self._function = code_map, function

    def may_be_data(self, number: int) -> bool:
        """Return whether nothing known leads to an instruction, and nothing else says that it is one."""
        if self._begins_with(number) or number <= self._straight_on or self._is_led_to(number):
            return False
        return not (self._function.is_plain_code and self._is_padding(number))

    def _begins_with(self, number: int) -> bool:
        """Return whether an instruction is the first one, or the next, to which control goes on: entries are."""
        function = self._function
        if number > 1 or not function.addresses or function.addresses[0] != function.start:
            return False
        return number == 0 or FLOWS[function.codes[0]] is Flow.NEXT

    def _is_led_to(self, number: int) -> bool:
        return (self._is_all and not is_padding(self._function.raw_at(number))) or number in self.proven

    def may_be_data_up_to(self, last: int) -> bool:
        """Return whether instructions up to the one at an address have to be asked about one by one."""
        straight_on = self._straight_on
        if straight_on >= 0 and last <= self._function.addresses[straight_on]:
            return False
        # elsewhere padding may be a constant
        return not (self._function.is_plain_code and self.is_everything)

    @property
    def is_everything(self) -> bool:
        """Whether something leads to every instruction but padding."""
        return self._is_all or self.proven.is_all

    def in_doubt(self) -> Iterator[Refusal]:
        """Yield a refusal for each stretch of bytes that may be data, or code that nothing is known to lead to."""
        function = self._function
        if not function.addresses or (not self.may_be_data_up_to(function.addresses[-1]) and not function.has_gaps):
            return
        begin = function.start
        for number, end in enumerate(function.ends):
            if not self.may_be_data(number):
                yield from self._doubt(begin, function.addresses[number])
                begin = end
        yield from self._doubt(begin, function.end)

    def _doubt(self, begin: int, end: int) -> Iterator[Refusal]:
        offset, size = begin - self._function.start, end - begin
        if padding_length(self._function.content[: offset + size], offset) < size:
            detail = f"nothing is known to lead to the {size} bytes from here on: they may be data"
            yield Refusal(Reason.NOT_CODE, begin, detail)

    def never_runs(self, number: int) -> bool:
        """Return whether an instruction is certainly never come to: it is padding or data."""
        function = self._function
        is_open = function.complete is not None and not (function.is_unlisted or function.is_nameless)
        if is_open or self._is_led_to(number):
            return False
        return number not in self._possible

    @cached_property
    def _straight_on(self) -> int:
        """The number of the last instruction that control comes to from the start without a jump, as all before it."""
        function = self._function
        if not function.addresses or function.addresses[0] != function.start:
            return -1
        last, broken = function.analyses.get(last_calls).possible, function.broken is not None
        ends = (number for number, flow in function.turns if broken or flow in ENDS or number in last)
        return next(ends, len(function.addresses) - 1)

    @cached_property
    def _is_all(self) -> bool:
        """Whether a quick look shows what ``proven`` would: that all but padding is led to."""
        if self._function.broken is not None:
            return False
        if self._function.is_plain_code and self._map.analyses.get(Pieces).is_crossed(self._function):
            return True  # jump tables of its function may lead here
        known = self._known_entries()
        return reaches_all(self._function, known) or (
            bool(self._others) and reaches_all(self._function, known | self._others)
        )

    @cached_property
    def is_all_possible(self) -> bool:
        """Whether all but padding may be led to by what is known, addresses that may be those of data included."""
        return self._is_all or self._possible.is_all

    @cached_property
    def leads_everywhere(self) -> bool:
        """Whether all but padding is led to by the function itself, wherever instructions begin."""
        entries = self._known_entries()
        return reaches_all(self._function, entries) or Reached(self._function, entries).is_all

    def _is_padding(self, number: int) -> bool:
        """Return whether an instruction is padding that no instruction reads: a constant may look like some."""
        from anyprobe.binary.flow.evidence import Evidence

        raw, address = self._function.raw_at(number), self._function.addresses[number]
        return is_padding(raw) and self._map.analyses.get(Evidence).read_in(address, address + len(raw)) is None

    @cached_property
    def proven(self) -> Reached:
        """The instructions that something other than an address leads to; few where it is in doubt where they begin.

        An address that is taken may be that of a table, and a symbol without a type its name. If there are jumps by
        pointers it is taken for that of a label, but only where an unwind entry tells of the function.
        """
        function = self._function
        if function.is_nameless:  # the rest may be a table
            return Reached(function, {function.start})
        if function.broken is not None:
            return Reached(function, ())
        return Reached(function, self._known_entries() | self._others)

    @cached_property
    def _others(self) -> set[int]:
        """Where other functions, or jumps by pointers, surely enter the function."""
        function = self._function
        if function.is_unlisted:
            return set()
        addresses = function.is_plain_code and function.indirect_jumps > len(function.tables)
        return self._map.entries.surely_entered(function.start, function.end, addresses=addresses)

    def _known_entries(self) -> set[int]:
        """Return where the function is entered, by its tables, too, as far as its own branches do not say it."""
        function = self._function
        entries = {function.start, function.entry, *function.table_targets}
        if not function.is_unlisted:
            plain = function.is_plain_code
            entries.update(self._map.entries.certain_entries(function.start, function.end, pointed=plain))
        return entries

    @cached_property
    def _possible(self) -> Reached:
        function = self._function
        entered = self._map.entries.entered(function.start, function.end)
        entries = {function.start, function.entry, *function.table_targets, *entered}
        return Reached(function, entries, certainly=False)
