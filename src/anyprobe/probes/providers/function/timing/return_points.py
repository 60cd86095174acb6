"""Where calls end that leave their function by a jump: at *return points*, where the callers go on.

No return address is touched. The instruction after a call is spliced like any other, and a call ends there if one is
open that was entered with this very stack pointer. Callers that call a function directly, in its own module, are known
beforehand. Others are learnt: threads note return points that are not known, and calls until these are spliced are
counted as ``learning``.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from anyprobe.binary.decoding.code_scan import Kind
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.errors import StopTimeout, TargetError
from anyprobe.core.memory import MemoryFault
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.data.layouts.layout import CALLER_NEW, CALLER_REFUSED, CALLER_SINCE, CALLER_WATCHED, UNSEEN
from anyprobe.isa.decode import Flow
from anyprobe.probes.providers.function.probe import FollowedCalls, Place, Probe, Timed, edits_for
from anyprobe.probes.providers.function.timing.children_text import ChildrenText
from anyprobe.probes.providers.function.timing.transfers import STEPS, some_hand_over
from anyprobe.probes.providers.function.timing.unwinding import Unwinding
from anyprobe.probes.target_errors import typed
from anyprobe.splice.apply.known_points import tables_of
from anyprobe.splice.edits import Module, made
from anyprobe.splice.plan.splices import Want, WantKind
from anyprobe.splice.regions.code_region import GoroutineBank, SlotBank

if TYPE_CHECKING:
    from anyprobe.binary.flow.cfg import CodeMap
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.splice.emitted import FunctionChange

KNOWN_AT_ONCE = 256
"""Return points that are spliced before any call is seen; where there are more, all are learnt."""
APART = (
    "functions that are timed from now on have memory of their own: calls between them and those timed before are not "
    "taken from self times, and are not in one tree; time all functions at once"
)
_CALL = b"\xe8"
_LIBRARY_LOOKS = 0.5
"""Seconds between two looks whether libraries were loaded that throw exceptions."""
_MOST_JUMPING = 64
"""Functions that jump to one that is timed, directly or by others, whose callers are looked for."""


class ReturnPoints:
    """What a session does for functions that end in jumps, and are timed or have handlers at their returns."""

    def __init__(self, session: "ProbeHost") -> None:
        """Know no function yet."""
        self._session, self._unwinding = session, Unwinding(session)
        self._followed: dict[int, tuple[SlotBank, dict[int, FollowedCalls]]] = {}
        """By bank, all functions whose calls may end in their callers, by the offsets by which they are known there."""
        self._nested: dict[int, tuple[SlotBank, dict[int, Timed]]] = {}
        """By bank, all timed functions where it is known which calls they make, by their records."""
        self._change = CALLER_SINCE - 1
        """Counted up with each change of what is spliced."""
        self._children = ChildrenText(session)
        self._made: list[FunctionChange] = []
        """What has been changed in the text for the next number."""
        self._settled: dict[int, bytearray] = {}
        """By bank, a one for each row of its table of noted pairs of which it is known what has become."""
        self._losses: dict[Module, int] = {}
        """How often something had been lost, when that was looked at last, in the modules with return points."""
        self._next_look = 0.0
        """When to look for libraries that leave calls behind."""

    def join(self, probes: Iterable[Probe]) -> None:
        """Have return points of direct calls spliced together with functions that are about to be timed, if not many.

        So none of these calls is to be learnt. Where changes are made without a stop, places go one after the other.
        """
        if self._session.splicing.live is not None or self._session.options.returns == "exits":
            return
        fresh = [timed for probe in probes for timed in probe.timed if not timed.armed and timed.leaves_by_jumps]
        own = [timed for timed in dict.fromkeys(fresh) if not timed.site.object.image.is_go]
        for calls, point in fewest_points(own, KNOWN_AT_ONCE):
            if point not in calls.points and is_called_before(calls, point):  # of others it is to be known what is seen
                found = self._place_of(calls, point)
                if isinstance(found, Refusal):
                    calls.unseen[point] = found
                else:
                    calls.points[point] = found

    def place(self, probes: Iterable[Probe]) -> None:
        """Splice the return points of direct calls of functions that are timed from now on, if these are not many.

        Of those that were spliced together with their functions it is said what has become of them.
        """
        probes = list(probes)
        if STEPS not in self._session.warnings and some_hand_over(probes):
            self._session.warn(STEPS)
        fresh = list(self._fresh(probes))
        if not fresh and not self._nested:
            return
        pairs = [each for each in fewest_points(fresh, KNOWN_AT_ONCE) if each[1] not in each[0].points]
        self._settle_joined(probes, fresh)
        with suppress(StopTimeout):  # they are learnt, then
            self._watch_unwinding()
            self._splice([(calls, point) for calls, point in pairs if point not in calls.unseen])

    def _settle_joined(self, probes: Sequence[Probe], fresh: Iterable[FollowedCalls]) -> None:
        """Take note of the return points that were spliced with their functions, or could not be."""
        for calls in fresh:
            for point, place in calls.points.items():
                self._losses.setdefault(place.module, place.module.losses)
                if not place.hook.armed:
                    self._say(calls, point, CALLER_REFUSED)
            for point in calls.unseen:
                self._say(calls, point, CALLER_REFUSED)
        refused = [timed for probe in probes for timed in probe.timed if not timed.armed]
        left = [place for timed in refused for place in timed.points.values() if place.hook.armed]
        self._session.engine.change(edits_for(left, remove=True))

    def learn(self) -> None:
        """Splice the return points that threads have noted since the last look, as far as that can be now.

        Calls are not timed until then: signal handlers that the program has set since are seen to after that.
        """
        if not self._followed and not self._nested:
            return
        self._forget_lost()
        pairs: list[tuple[FollowedCalls, int]] = []
        for bank, followed in self._followed.values():
            settled = self._settled.setdefault(bank.index, bytearray(bank.layout.callers))
            for row, point, record in tables_of(bank).noted(settled):
                calls = followed.get(record)
                if calls is not None and (point in calls.points or point in calls.unseen):
                    settled[row] = 1
                elif calls is not None and calls.armed:
                    pairs.append((calls, point))
        if not pairs and time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + _LIBRARY_LOOKS
        with suppress(TargetError):  # the next look tries again
            self._watch_unwinding()
            self._splice(pairs, urgent=True)

    def _watch_unwinding(self) -> None:
        """See what leaves calls behind, in libraries that were loaded meanwhile too, while anything is timed."""
        nested = [bank for bank, all_timed in self._nested.values() if any(timed.armed for timed in all_timed.values())]
        followed = [bank for bank, all_calls in self._followed.values() if any(map(_may_end, all_calls.values()))]
        self._made += self._unwinding.watch({bank.index: bank for bank in (*followed, *nested)}.values())

    def look_at_children(self) -> None:
        """Splice return points in fork children that were made before these were known, if these may be stopped."""
        if self._session.splicing.live is None:
            banks = [bank for bank, _ in self._followed.values()]
            self._children.look({bank.change: bank.arena.inode for bank in banks if bank.change})

    @contextmanager
    def given_up(self, followed: Iterable[FollowedCalls], places: Iterable[Place]) -> Iterator[None]:
        """Have no call end any more at the return points that are among the places, which are about to be disarmed.

        While the program runs, places go one after the other: calls that left their function in between, and found no
        end, would take the room of all that are followed later.
        """
        leaving = set(places) if self._session.splicing.live is not None else set()
        points = [
            (calls, point, place)
            for calls in followed
            for point, place in calls.points.items()
            if place in leaving and place.hook.armed
        ]
        for calls, point, _ in points:
            self._say(calls, point, CALLER_REFUSED)
        try:
            yield
        finally:
            for calls, point, place in points:
                if place.hook.armed:
                    self._say(calls, point, self._watched(calls))

    def settle(self, probes: Iterable[Probe]) -> None:
        """Say which return points are watched, after probes were removed or armed again."""
        followed = [calls for probe in probes for calls in probe.followed]
        again = any(place.hook.armed for calls in followed for place in calls.points.values())
        self._children.note(self._change + 1, None if again else ())
        self._note_change()
        for calls in followed:
            for point, place in calls.points.items():
                self._say(calls, point, self._watched(calls) if place.hook.armed else CALLER_REFUSED)
        if self._followed or self._nested:
            with suppress(TargetError):
                self._watch_unwinding()

    def _fresh(self, probes: Iterable[Probe]) -> Iterator[FollowedCalls]:
        probes = list(probes)
        for timed in (timed for probe in probes for timed in probe.timed):
            bank = timed.group.bank
            if isinstance(bank, GoroutineBank):
                continue  # what panics leave behind is known by the stack alone
            if timed.armed and bank is not None and bank.layout.nested:
                if self._nested and bank.index not in self._nested:
                    self._session.warn(APART)
                self._nested.setdefault(bank.index, (bank, {}))[1][timed.offset] = timed
        for calls in (calls for probe in probes for calls in probe.followed):
            bank = calls.bank
            if calls.armed and bank is not None and bank.layout.callers and not isinstance(bank, GoroutineBank):
                _, followed = self._followed.setdefault(bank.index, (bank, {}))
                known = followed.get(calls.offset)
                if known is None or (known is not calls and not known.armed):
                    followed[calls.offset] = calls
                    self._settled.pop(bank.index, None)
                    if bank.change:
                        with suppress(MemoryFault):  # the text has all that was changed before
                            bank.arena.journal.note_change(self._change)
                    self._say_lost(known, calls)
                    yield calls

    def _say_lost(self, known: FollowedCalls | None, calls: FollowedCalls) -> None:
        """Have return points learnt again that were in a library which is loaded again, after other calls of it."""
        for point in known.points if known is not None else ():
            place = calls.points.get(point)
            if place is None or not place.armed:
                self._say(calls, point, CALLER_NEW)

    def _forget_lost(self) -> None:
        """Have return points learnt again whose module is gone."""
        if all(module.losses == known for module, known in self._losses.items()):
            return  # this is asked often, of many functions
        self._losses.clear()
        self._settled.clear()
        for calls in (calls for _, followed in self._followed.values() for calls in followed.values()):
            for point, place in list(calls.points.items()):
                if _is_gone(place):
                    self._say(calls, point, CALLER_NEW)
                    del calls.points[point]
                else:
                    self._losses[place.module] = place.module.losses

    def _splice(self, pairs: list[tuple[FollowedCalls, int]], *, urgent: bool = False) -> None:
        if not pairs:
            return
        session, places = self._session, list[tuple[FollowedCalls, int, Place]]()
        with typed(session.process, "arming probes in"):
            for calls, point in pairs:
                found = self._place_of(calls, point)
                if isinstance(found, Refusal):
                    calls.unseen[point] = found
                    self._say(calls, point, CALLER_REFUSED)
                else:
                    places.append((calls, point, found))
            edits = edits_for([place for _, _, place in places])
            session.engine.change(edits, urgent=urgent)
        self._children.note(self._change + 1, [*self._made, *made(edits)])
        self._made = []
        self._note_change()
        for calls, point, place in places:
            calls.points[point] = place
            self._losses.setdefault(place.module, place.module.losses)
            if _is_gone(place):
                self._losses[place.module] = -1  # this one is to be looked at
            self._say(calls, point, self._watched(calls) if place.hook.armed else CALLER_REFUSED)

    def _note_change(self) -> None:
        """Take note that the text has jumps at further return points: fork children of before have none there."""
        self._change += 1
        for bank in (bank for bank, _ in self._followed.values() if bank.change):
            with suppress(MemoryFault):  # the process has ended
                bank.arena.journal.note_change(self._change)

    def _watched(self, calls: FollowedCalls) -> int:
        """Return the state of a return point that has just been spliced."""
        bank = calls.bank
        return self._change if bank is not None and bank.change else CALLER_WATCHED

    def _place_of(self, calls: FollowedCalls, point: int) -> Place | Refusal:
        module = self._session.module_at(point)
        loaded = self._session.objects.at(point)
        if module is None or loaded is None:
            return Refusal(Reason.NOT_CODE, point, "the caller is in no module: generated code, or none at all")
        why = self._session.objects.refusal(loaded)
        address = point - module.bias
        code = module.code.containing(address)
        if why is None and code is None:
            why = Refusal(Reason.NOT_CODE, point, "no function is known where the call would return")
        if why is None and code is not None:
            why = joined(module.code, code, address)
        if why is not None or code is None:
            assert why is not None
            return why
        bank, alone = calls.bank, is_called_before(calls, point)
        hook = calls.ending(UNSEEN * (bank is not None and not self._unwinding.is_seen(bank)), alone=alone)
        want = Want(address, WantKind.RETURN_POINT, tag=hook)
        return Place(calls.site, module, module.state_of(code), want, hook)

    @staticmethod
    def _say(calls: FollowedCalls, point: int, state: int) -> None:
        bank = calls.bank
        if bank is not None and bank.layout.callers:
            tables_of(bank).set(point, calls.offset, state)


def is_called_before(calls: FollowedCalls, point: int) -> bool:
    """Return whether it is a direct call of the function itself that would return to a run-time address."""
    module = calls.places[0].module
    address = point - module.bias
    caller = module.code.containing(address - 1)
    insn = caller.covering(address - 1) if caller is not None else None
    if insn is None or insn.flow is not Flow.CALL or insn.end != address:
        return False
    return insn.target == calls.site.function.start


def _may_end(calls: FollowedCalls) -> bool:
    """Return whether calls may end at return points, now or when their library is loaded again."""
    return calls.armed or any(place.armed for place in calls.points.values())


def _is_gone(place: Place) -> bool:
    """Return whether a return point is there no more, since its module is not."""
    why = place.hook.refusal
    return why is not None and why.reason is Reason.GONE and not place.hook.armed


def joined(code_map: "CodeMap", code: FunctionCode, address: int) -> Refusal | None:
    """Return why what arrives at a link-time address may be no return, where that cannot be told."""
    if not code.is_boundary(address):
        return Refusal(Reason.NOT_A_BOUNDARY, address, "no instruction is known where the call would return")
    if code_map.entries.static_entries(address, address + 1):
        detail = "a landing pad, a symbol or a stored pointer leads here, too"
        return Refusal(Reason.RETURN_POINT_JOINED, address, detail)
    if code.complete is not None and code.indirect_jumps > len(code.tables):
        return Refusal(Reason.RETURN_POINT_JOINED, address, f"a jump may lead here, too: {code.complete.detail}")
    branches = frozenset(code.back_to(frozenset({address})))
    for source, kind in code_map.entries.references_to(address):
        home = code_map.containing(source)
        insn = home.covering(source) if home is not None else None
        if kind in (Kind.LEA, Kind.ABSOLUTE) or insn is None or insn.address not in branches:
            return Refusal(Reason.RETURN_POINT_JOINED, address, f"{source:#x} leads here, too, or takes its address")
    return None


def fewest_points(followed: Sequence[FollowedCalls], most: int) -> list[tuple[FollowedCalls, int]]:
    """Return known return points of as many functions as have ``most`` together, those with the fewest first.

    Of most functions it is enough to count what looks like a call, which is not much dearer than nothing: where these
    are too many already, the callers are not looked at.
    """
    pairs: list[tuple[FollowedCalls, int]] = []
    heap = [(_calls_seen(calls), 0, number) for number, calls in enumerate(followed)]
    heapify(heap)
    known: dict[int, dict[int, bool]] = {}
    while heap:
        least, is_known, number = heappop(heap)
        if len(pairs) + least > most:
            break
        if is_known:
            pairs += [(followed[number], point) for point in known[number]]
        else:
            known[number] = points_known(followed[number])
            heappush(heap, (len(known[number]), 1, number))
    return pairs


def _calls_seen(calls: FollowedCalls) -> int:
    """Return how many direct calls of a function there seem to be in its own module."""
    code_map, start = calls.places[0].module.code, calls.site.function.start
    own = code_map.function_at(start)
    heads = {start, own.entry if isinstance(own, FunctionCode) else start}
    found = (source for head in heads for source, kind in code_map.entries.references_to(head) if kind is Kind.NEAR)
    return sum(code_map.text.memory.read(source, 1) == _CALL for source in found)


def points_known(calls: FollowedCalls) -> dict[int, bool]:
    """Return where direct calls in a function's own module return to, by run-time address.

    The value says whether the function itself is called there. Otherwise it is another one that jumps to it, and need
    not do so each time.
    """
    place = calls.places[0]
    code_map, bias = place.module.code, place.module.bias
    todo = [calls.site.function.start]
    own = code_map.function_at(todo[0])
    entry = own.entry if isinstance(own, FunctionCode) else todo[0]
    found: dict[int, bool] = {}
    for start in todo:  # grows while it runs
        heads = {start, entry if start == todo[0] else start}
        for head in heads:
            for source, kind in code_map.entries.references_to(head):
                home = code_map.containing(source) if kind is Kind.NEAR or kind is Kind.SHORT else None
                insn = home.covering(source) if home is not None else None
                if home is None or insn is None or insn.target != head:
                    continue
                if insn.flow is Flow.CALL:
                    found[insn.end + bias] = start == todo[0]
                elif home.start not in todo and len(todo) < _MOST_JUMPING:
                    todo.append(home.start)
    return found
