"""Where a thread enters a function for the first time it waits a moment, until the function's blocks have their probes.

So the blocks of functions that never run are never planned. The thread then begins the function anew, with the probes.
No thread waits if the controller is gone; if it does not come in time, the first call runs on without them. A fork
child has the text of when it was forked: where it comes to such an entry, all probes are taken out of it.

Code that is entered elsewhere than at its beginning has no gate: parts of functions get their probes with these, and
the rest at once. So do functions that threads are in by now.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from anyprobe.binary.decoding.code_scan import Kind
from anyprobe.binary.objects.table_store import keeping_later
from anyprobe.core.arrays import unique
from anyprobe.core.collection import collection_paused
from anyprobe.core.errors import AnyprobeError, TargetError, TargetExited
from anyprobe.core.refusal import Reason
from anyprobe.core.wording import times
from anyprobe.probes.providers.function.gates.fork_gate import relieve
from anyprobe.probes.providers.function.gates.waiting_tasks import child_that_waits
from anyprobe.probes.providers.function.handlers.callbacks import Callbacks, Hit
from anyprobe.probes.providers.function.placing import add_counted
from anyprobe.probes.providers.function.wanted.entering import Unentered
from anyprobe.splice.codegen.handlers.rendezvous import CALLS, Room
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.edits import Edit
from anyprobe.splice.plan.splices import AUTO, Want, WantKind
from anyprobe.splice.regions.banks import Hook

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from anyprobe.binary.flow.cfg import CodeMap
    from anyprobe.binary.flow.function import FunctionCode
    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.probe import Probe
    from anyprobe.probes.providers.function.resolve import ResolvedSite
    from anyprobe.splice.edits import FunctionState, Module

    Addresses = NDArray[np.int64]

PATIENCE = 5.0
"""Seconds that a thread waits at most for one change."""
PLACES = 256
"""How many threads of a program and of its children may wait at once."""
_FAR = (1 << 64) - 1
_UNKNOWN = ": of what was not hit it is not known whether it has run"
_TRIES, _PAUSE = 5, 0.002
"""How often it is tried to place the probes of a function, and how long the program runs on in between."""


@dataclass(eq=False, slots=True)
class _Group:
    """Functions that get their probes together: one leads into the middle of the other."""

    probe: "Probe"
    functions: list[Unentered] = field(default_factory=list)
    gates: "list[tuple[FunctionState, Want, Hook]]" = field(default_factory=list)
    """Where threads wait."""

    @property
    def is_waiting(self) -> bool:
        """Whether its blocks have no probes yet."""
        return self.functions[0].is_waiting

    @property
    def is_gated(self) -> bool:
        """Whether threads wait at all of its entries."""
        return all(hook.armed for _, _, hook in self.gates)

    def shares(self, states: "set[FunctionState]") -> bool:
        """Return whether a gate is at a function with one of some states."""
        return bool(states) and any(state.root in states for state, _, _ in self.gates)


class EntryGate:
    """The gate of one session."""

    def __init__(self, host: "ProbeHost") -> None:
        """Have no thread wait yet."""
        self._host = host
        self._callbacks = Callbacks(host, room=Room(PLACES, taken=True, gives_up=True))
        self._groups: dict[int, tuple[_Group, int]] = {}
        """By the run-time addresses at which threads wait, with those at which the functions begin."""
        self._fresh: list[_Group] = []
        """Functions whose gates are still to be placed."""
        self._seen: set[tuple[LoadedObject, int]] = set()
        self._alone = 0
        """How many fork children have had their probes taken out."""

    def why_not(self) -> str:
        """Return why threads of this program cannot be made to wait, empty if they can."""
        host = self._host
        if host.objects.c_library() is None:
            return "it has no C library that is known"
        if host.splicing.live is not None or host.splicing.planning.allowed != AUTO or host.slices is not None:
            return "the session has probes placed in another way"
        if host.process.is_filtered(CALLS):
            return "it filters its system calls"
        return "it runs on shadow stacks" if host.process.has_shadow_stacks() else ""

    def take(self, part: "Probe", probe: "Probe", found: "Sequence[Unentered]") -> "list[Unentered]":
        """Have some functions of one module wait for their probes, which ``probe`` gets; return the others.

        ``part`` is what is placed now.
        """
        module = found[0].module
        if module.slotless or module.code.text.is_go:
            return list(found)
        module.code.survey()  # what leads into the middle of functions
        fresh = [each for each in found if (each.site.object, each.code.start) not in self._seen]
        self._seen |= {(each.site.object, each.code.start) for each in fresh}
        facts = self._callbacks.facts_inside(self._serve, PATIENCE, goes=True)
        left: list[Unentered] = []
        for own, parts in _families(module.code, fresh):
            if own is None:
                left += parts
                continue
            group = _Group(probe, [*own, *parts])
            for each in own:
                at = each.code.entry + module.bias
                hook = Hook(ActionKind.HANDLER, handler=facts, ip=at, function=at)
                want = Want(each.code.entry, WantKind.ENTRY, tag=hook, internal=True)
                group.gates.append((module.state_of(each.code), want, hook))
                self._groups[at] = group, each.code.start + module.bias
            self._fresh.append(group)
            part.unentered += group.functions
        return left

    @contextmanager
    def placing(self) -> Iterator[None]:
        """Place gates together with what is placed within a ``with`` block, then what cannot wait for an entry."""
        fresh, self._fresh = self._fresh, []
        edits: dict[FunctionState, Edit] = {edit.state.root: edit for edit in self._callbacks.watching_filters()}
        for group in fresh:
            for state, want, _ in group.gates:
                module = group.functions[0].module
                edits.setdefault(state.root, _edit_of(module, state)).added.append(want)
        try:
            with self._host.functions.joining(list(edits.values())):
                yield
        except BaseException:  # a second try finds them anew
            for each in (one for group in fresh for one in group.functions):
                self._seen.discard((each.site.object, each.code.start))
            raise
        at_once = [group for group in fresh if not group.is_gated]
        if self._host.process.held is None:
            at_once += self._entered(group for group in fresh if group.is_gated)
        self._place(at_once)

    def _entered(self, groups: Iterable[_Group]) -> list[_Group]:
        """Return those with functions that threads are in by now: whose code anything on a stack points to."""
        from anyprobe.splice.apply.saved_pcs import Stacks

        rows = sorted(
            ((each.code.start + each.module.bias, each.code.end + each.module.bias, group)
             for group in groups for each in group.functions), key=lambda row: row[:2],
        )  # fmt: skip
        lows, highs = (np.array([row[column] for row in rows], np.uint64) for column in (0, 1))
        found: set[int] = set()
        try:
            with self._host.process.stop() as stop:
                stop.verify()
                words = [unique(each) for each in Stacks(self._host.process.mem, stop.mappings).words(stop)]
        except TargetExited:
            raise
        except TargetError:  # then it is not known in which
            return list(dict.fromkeys(row[2] for row in rows))
        for each in words:
            near = each[(each >= lows[:1].min(initial=_FAR)) & (each <= highs.max(initial=0))]
            for inside in (near, near - np.uint64(1)):  # after a call that is the last instruction
                numbers = np.searchsorted(lows, inside, side="right").astype(np.int64) - 1
                found.update(numbers[(numbers >= 0) & (inside < highs[numbers])].tolist())
        return list(dict.fromkeys(rows[number][2] for number in sorted(found)))

    def _place(self, groups: "Sequence[_Group]", others: "Sequence[Edit]" = ()) -> None:
        """Place the probes of functions, with ``others``, and have no thread wait for them any more."""
        edits: dict[FunctionState, Edit] = {edit.state.root: edit for edit in others}
        for group in groups:
            probe = group.probe
            for state, want, hook in group.gates:
                if hook.armed:
                    edits.setdefault(state.root, _edit_of(group.functions[0].module, state)).removed.append(want)
            for each in group.functions:
                each.is_waiting, first = False, len(probe.places)
                add_counted(probe, each.site, each.code, each.module)
                for place in probe.places[first:]:
                    state = place.state.root
                    edits.setdefault(state, _edit_of(each.module, state)).added.append(place.want)
        for probe in {group.probe for group in groups}:
            probe.unentered = [each for each in probe.unentered if each.is_waiting]
        self._make(list(edits.values()))

    def _make(self, edits: "list[Edit]") -> None:
        """Make edits; those that a thread is in the way of a few times, and if it stays, without what they add.

        Where probes leave no room for the gates of functions that are planned together, these get theirs, too.
        """
        for _ in range(_TRIES):
            self._host.engine.change(edits)
            failed = [each for each in edits if each.given_up]
            if not failed:
                return
            edits = [_again(each, each.added) for each in failed]
            cramped = {each.state.root for each in failed if each.refusal and each.refusal.reason is Reason.OVERLAP}
            near = {group for group, _ in self._groups.values() if group.is_waiting and group.shares(cramped)}
            if near:
                self._place(list(near), edits)
                return
            time.sleep(_PAUSE)
        self._host.engine.change([_again(each, []) for each in edits])

    def _serve(self, hit: Hit) -> None:
        if self._callbacks.ending:
            return
        host = self._host
        with collection_paused(), keeping_later():
            inodes = host.splicing.holdings.inodes()
            child = child_that_waits(host.pid, hit.tid, inodes, self._callbacks.__contains__)
            with host.lock:
                if host.is_over or self._callbacks.ending:
                    return
                if child is not None:
                    self._relieve(child, hit)
                    return
                group, start = self._groups[hit.ip]
                if group.is_waiting:
                    self._place([group])
                is_open = not any(hook.armed for _, _, hook in group.gates)
        if is_open:  # else it would come back here
            # not where it waited: a probe may have displaced that together with the ``endbr64`` before it, by now or by
            # the time that the thread goes on; a function's beginning is never in the middle of what is displaced
            hit.goes_to = start

    def _relieve(self, pid: int, hit: Hit) -> None:
        """Take all probes out of a fork child: what comes to the program's text does not come to its own."""
        self._alone += 1
        with suppress(AnyprobeError):
            relieve(self._host.splicing, pid, hit.let_go)

    def __contains__(self, address: int) -> bool:
        """Return whether threads sleep at an address of the program's memory."""
        return address in self._callbacks

    def missed(self) -> list[str]:
        """Return in words how often functions were entered without the probes of their blocks."""
        said, late = [], self._count_lost()
        if late:
            said.append(f"functions were entered {times(late)} before their blocks had probes{_UNKNOWN}")
        if self._alone:
            said.append(
                f"the probes of {self._alone} fork children were taken out where they entered functions{_UNKNOWN}"
            )
        return said

    @property
    def is_used(self) -> bool:
        """Whether any function has waited for its probes."""
        return bool(self._groups)

    def is_whole(self) -> bool:
        """Return whether it is certain of what was not found hit that it has not run."""
        return not self._count_lost() and not self._alone

    def _count_lost(self) -> int:
        return sum(self._callbacks.lost().values())

    def end(self) -> None:
        """Let all threads go; none waits from here on. The caller does not hold the session's lock."""
        self._callbacks.release()


def _again(edit: Edit, added: "list[Want]") -> Edit:
    again = _edit_of(edit.module, edit.state)
    again.added, again.removed = added, edit.removed
    return again


def _edit_of(module: "Module", state: "FunctionState") -> Edit:
    return Edit(module, state.root, is_one_of_many=True)


class Waiting:
    """The functions that one look has found, as far as they may wait for their probes."""

    def __init__(self, gate: EntryGate) -> None:
        """Begin with none."""
        self._gate = gate
        self._found: dict[Module, tuple[Probe, Probe, list[Unentered]]] = {}

    def take(self, part: "Probe", probe: "Probe", site: "ResolvedSite", code: "FunctionCode", module: "Module") -> None:
        """Add a function; ``part`` is what is placed now, ``probe`` what it will be a part of."""
        self._found.setdefault(module, (part, probe, []))[2].append(Unentered(site, code, module))

    def left_over(self) -> "Iterator[Unentered]":
        """Have them wait; yield those that cannot."""
        for part, probe, found in self._found.values():
            yield from self._gate.take(part, probe, found)


def _families(
    code: "CodeMap", found: "Sequence[Unentered]"
) -> "Iterator[tuple[list[Unentered] | None, list[Unentered]]]":
    """Yield functions that lead into each other, and their parts; None and parts that nothing is known to lead to."""
    by_start = {each.code.start: each for each in found}
    starts = np.array(sorted(by_start), np.int64)
    ends = np.array([by_start[start].code.end for start in starts.tolist()], np.int64)
    entries = np.array([by_start[start].code.entry for start in starts.tolist()], np.int64)
    parts = {start for start in by_start if start in code.named_parts or start in code.text.framed}

    def number_of(addresses: "Addresses") -> "Addresses":
        numbers = np.searchsorted(starts, addresses, side="right") - 1
        inside = (numbers >= 0) & (addresses < ends[numbers])
        return np.where(inside, numbers, -1)

    targets, sources, kinds = code.entries.all_references.columns()
    to, at = number_of(targets), number_of(sources)
    is_part = np.array([start in parts for start in starts.tolist()], bool)
    inner = (targets != starts[to]) & (targets != entries[to])
    leads = (to >= 0) & (at != to) & (inner | is_part[to])
    jumps = (kinds == int(Kind.NEAR)) | (kinds == int(Kind.SHORT))
    # what data points to in the middle of a function are its own labels and landing pads: it has been entered by then
    named = np.array(sorted(code.text.named), np.int64)
    into = number_of(named)
    odd = (into >= 0) & (named != starts[into]) & (named != entries[into])
    at_once = set(to[leads & ~(jumps & (at >= 0))].tolist()) | set(into[odd].tolist())
    roots = list(range(len(starts)))

    def root(number: int) -> int:
        while roots[number] != number:
            roots[number] = number = roots[roots[number]]
        return number

    pairs = set(zip(to[leads & jumps & (at >= 0)].tolist(), at[leads & jumps & (at >= 0)].tolist(), strict=True))
    place = {start: number for number, start in enumerate(starts.tolist())}
    pairs |= {(place[part], place[own]) for part, own in code.named_parts.items() if part in place and own in place}
    for one, other in pairs:
        roots[root(one)] = root(other)
    at_once = {root(number) for number in at_once}
    families: dict[int, list[Unentered]] = {}
    for number, start in enumerate(starts.tolist()):
        families.setdefault(root(number), []).append(by_start[start])
    for number, members in families.items():
        own = [each for each in members if each.code.start not in parts]
        others = [each for each in members if each.code.start in parts]
        yield (None, members) if number in at_once or not own else (own, others)
