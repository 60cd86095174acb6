"""Splices in the running kernel: places planned together, written by the driver, counted by processor.

Each ``Splices`` is a client of the driver of its own: when its descriptor is closed, by whatever ends the process, the
kernel's text is as it was.

Many are written in several stops, so that none of them is long. All of a function are written in the same one: whoever
runs the function is counted at all of its sites, or at none.
"""

import errno
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from anyprobe.binary.kernel.addresses import BIAS
from anyprobe.core.errors import InternalError, KernelRefused, UnsupportedTarget
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.function.clobbering import flags_alone
from anyprobe.probes.providers.kernel.chosen import Chosen
from anyprobe.probes.providers.kernel.code import LiveModule, RunningCode, running, shown
from anyprobe.probes.providers.kernel.places.sites import KernelNames, KernelSite
from anyprobe.probes.providers.kernel.splices.joints import Change, Numbered, test_bytes
from anyprobe.probes.providers.kernel.splices.kernel_facts import processes_of
from anyprobe.probes.providers.kernel.splices.processor_counters import ProcessorCounters
from anyprobe.probes.providers.kernel.splices.wanted import Tag, exits_of, is_tail, joined, number_of
from anyprobe.probes.providers.kernel.splices.writing import write
from anyprobe.splice.codegen.emit import estimate
from anyprobe.splice.codegen.patch import Action
from anyprobe.splice.kernel import planning
from anyprobe.splice.kernel.handlers import ON_ITS_WAY, assemble
from anyprobe.splice.kernel.handlers import KernelHandler as PlacedHandler
from anyprobe.splice.kernel.patches import PatchMaker, count, handle
from anyprobe.splice.kernel.places import entry_of
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.splices import Clobbers, PlannedSplice, Want, WantKind
from anyprobe.target.kernel import loaded_modules
from anyprobe.target.kernel.driver.device import TRIES, Driver, Shared
from anyprobe.target.kernel.symbols import KERNEL

if TYPE_CHECKING:
    from anyprobe.probes.providers.kernel.handlers import KernelHandler, SplicedHandler
    from anyprobe.probes.providers.kernel.splices.shared_storages import SharedStorages

_WORD: Final = 8


class Handling(NamedTuple):
    """A handler that splices run, and what it shares with this process."""

    handler: "KernelHandler"
    shared: "SharedStorages"
    place: "Callable[[SplicedHandler], PlacedHandler]"
    """Gives it the addresses of what it uses."""


def opened() -> Driver:
    """Return a new client of the driver; raise ``KernelRefused`` with what helps where it cannot be opened."""
    try:
        return Driver()
    except KernelRefused as refusal:
        if refusal.errno != errno.ENOENT:
            raise
        raise KernelRefused(refusal.what, refusal.errno, "load the driver: anyprobe driver load") from None


Group = tuple[Sequence[KernelSite], Handling | None]
"""The sites of a probe, and the handler that runs there; None: they are counted."""


def splice(
    names: KernelNames, groups: Sequence[Group], chosen: Chosen | None, shared: "SharedStorages | None" = None
) -> "list[Spliced]":
    """Splice the sites of several probes, planned together, for the hits in some processes; return what each has.

    ``shared``: what they are beside, at the same places as well, where none of them has a handler.
    """
    whole = Splices(names, [(site, handling) for sites, handling in groups for site in sites], chosen, shared)
    try:
        whole.arm()
    except BaseException:
        whole.close()
        raise
    made, first = [], 0
    for sites, _ in groups:
        made.append(Spliced(whole, range(first, first + len(sites))))
        first += len(sites)
    return made


def splice_ends(names: KernelNames, entries: Group, returns: Group, chosen: Chosen | None) -> "list[Spliced]":
    """Splice both ends of the calls of functions; a function of which one is refused has neither."""
    first, second = splice(names, [entries, returns], chosen)
    ends = {site.function: position for position, site in enumerate(returns[0])}
    try:
        for position, site in enumerate(entries[0]):
            other = ends[site.function]
            if position in first.refused and other not in second.refused:
                second.give_up(other, first.refused[position])
            elif other in second.refused and position not in first.refused:
                first.give_up(position, second.refused[other])
    except BaseException:
        first.close()
        second.close()
        raise
    return [first, second]


@dataclass(frozen=True)
class Spliced:
    """The splices of one probe."""

    whole: "Splices"
    """The splices of all probes that it was planned with, and which of them are its own."""
    numbers: range

    @property
    def refused(self) -> Mapping[int, Refusal]:
        """What is refused, by the position of the site."""
        refused, first = self.whole.refused, self.numbers.start
        return {number - first: refused[number] for number in self.numbers if number in refused}

    def counts(self) -> Sequence[int]:
        """Return what has been counted at each site, hits that ran no handler left out."""
        missed = self.missed()  # first: what comes in between is counted
        return [count - lost for count, lost in zip(self.whole.counts(self.numbers), missed, strict=True)]

    def missed(self) -> Sequence[int]:
        """Return how many hits of each site ran no handler."""
        return self.whole.missed()[self.numbers.start : self.numbers.stop]

    def give_up(self, position: int, why: Refusal) -> None:
        """Take the splices of a site out, which is refused now."""
        self.whole.remove([self.numbers[position]])
        self.whole.refused.setdefault(self.numbers[position], why)

    def gone(self) -> Collection[int]:
        """Return the positions of sites that are spliced no more: their module has gone."""
        gone, first = self.whole.gone(), self.numbers.start
        return {number - first for number in self.numbers if number in gone}

    def close(self) -> None:
        """Take the splices out; what was counted is kept."""
        self.whole.remove(self.numbers)

    @staticmethod
    def close_all(several: "Iterable[Spliced]") -> None:
        """Take the splices of several probes out, in as few stops as there can be."""
        numbers: dict[Splices, list[int]] = {}
        for each in several:
            numbers.setdefault(each.whole, []).extend(each.numbers)
        for whole, of_all in numbers.items():
            whole.remove(of_all)


class Splices:
    """Splices that were planned together: a client of the driver."""

    def __init__(
        self,
        names: KernelNames,
        sites: Sequence[tuple[KernelSite, Handling | None]],
        chosen: Chosen | None,
        shared: "SharedStorages | None" = None,
    ) -> None:
        """Open the driver, unless there is a handler: all of a session's are of one client, ``shared``."""
        self._processes = processes_of(names, chosen)
        self._code: RunningCode = running(names.symbols)
        self._names, self._sites = names, [site for site, _ in sites]
        self._handlings = [handling for _, handling in sites]
        functions = enumerate(site.function for site in self._sites)
        self._of_modules = {
            number: each.module for number, each in functions if each is not None and each.module != KERNEL
        }
        """The modules of the sites that are not in the kernel itself."""
        numbers = loaded_modules.loaded() if self._of_modules else {}
        self._loadings = {name: numbers.get(name) for name in self._of_modules.values()}
        """What tells whether each of these modules is still the one that is spliced."""
        self._shared = next((each.shared for each in self._handlings if each is not None), shared)
        self._driver: Driver | None = opened() if self._shared is None else self._shared.driver
        self._lost: Shared | None = None
        """Counters of hits that ran no handler, by site, where handlers may be hit inside themselves."""
        self._missed = [0] * len(sites)
        self._routines: dict[int, tuple[PlacedHandler, int]] = {}
        """Handlers and the addresses of their routines, by the identity of what was compiled."""
        try:
            give = self._driver.per_processor if self._shared is None else self._shared.per_processor
            self._counters = ProcessorCounters(self._driver, len(sites), give)
        except BaseException:
            self._give_back()
            raise
        self._in_force: list[Numbered] = []
        self._late: dict[int, Numbered] = {}
        """What could not be taken out, by where it is written: a task was inside. It is tried again at each look."""
        self._counted = [0] * len(sites)
        self._open = set(range(len(sites)))
        """Whose counts may still grow."""
        self.refused: dict[int, Refusal] = {}
        """By the number of the site."""

    def counts(self, numbers: range) -> list[int]:
        """Return what has been counted at some sites."""
        self._try_late()
        return self._count(numbers)

    def _count(self, numbers: range) -> list[int]:
        if self._driver is not None:
            for number, count in zip(numbers, self._counters.read(numbers), strict=True):
                if number in self._open:
                    self._counted[number] = count
        return self._counted[numbers.start : numbers.stop]

    def missed(self) -> Sequence[int]:
        """Return how many hits of each site ran no handler: they were inside one, on the same processor."""
        if self._lost is not None:
            self._missed = self._lost.view.cast("Q")[: len(self._sites)].tolist()
        return self._missed

    def gone(self) -> Collection[int]:
        """Return the sites of modules whose splices the driver has taken out, before the module went."""
        if self._driver is None or not self._of_modules:
            return ()
        now = loaded_modules.loaded()
        lost = {name for name, loading in self._loadings.items() if now.get(name) != loading}
        return {number for number, name in self._of_modules.items() if name in lost and number in self._open}

    def remove(self, numbers: Iterable[int]) -> None:
        """Take out the splices that only some sites need, and count no more at these."""
        if self._driver is None or not self._driver.is_open or self._open.isdisjoint(numbers):
            return
        last = self._open.difference(numbers)
        try:
            for part in self._parts(self._undone(last)):
                left = {each.site: each for each in part}
                # what others have changed meanwhile, or is gone with its module, the driver sees to
                while left and (refused := self._try([each.change for each in left.values()])):
                    if self._shared is not None:
                        inside = {site for site, why in refused.items() if why.reason is Reason.TASK_INSIDE}
                        self._late |= {site: left[site] for site in inside}
                        late = (want for site in inside for want in left[site].wants)
                        self._shared.joints.leaving.update(want for want in late if number_of(want) not in last)
                    left = {site: each for site, each in left.items() if site not in refused}
            self._count(range(len(self._sites)))
        finally:
            self._open = last
            self._in_force = [each for each in self._in_force if not last.isdisjoint(each.numbers)]
            if not last and not self._late:
                self._give_back()
        self._try_late()

    def _try_late(self) -> None:
        """Take out what tasks have left by now, each by itself; others have changed what is refused otherwise."""
        for site, each in [*self._late.items()]:
            refused = self._try([each.change], tries=1)
            if refused and refused[site].reason is not Reason.TASK_INSIDE and self._shared is not None:
                gone = [want for want in each.wants if number_of(want) not in self._open]
                change = self._shared.joints.drop(site, gone)
                refused = {} if change is None else self._try([change], tries=1)
            if not refused:
                del self._late[site]
                if self._shared is not None:
                    self._shared.joints.leaving.difference_update(each.wants)
                if not self._late and not self._open:
                    self._give_back()

    def _undone(self, last: Collection[int]) -> "Iterator[Numbered]":
        """Yield the changes after which only some sites are counted."""
        for each in self._in_force:
            gone = [want for want in each.wants if number_of(want) not in last]
            if self._shared is not None:
                change = self._shared.joints.drop(each.site, gone) if gone else None
                if change is not None:
                    yield Numbered(change, each.wants)
            elif len(gone) == len(each.wants):
                yield Numbered(Change(each.change.write.undone()), each.wants)

    def _parts(self, changes: "Iterable[Numbered]") -> "Iterator[list[Numbered]]":
        """Yield changes for one stop after the other; those of a function are in the same, or of a site if too many."""

        def functions(each: Numbered) -> set[int]:
            return {site.function.address for site in map(self._sites.__getitem__, each.numbers) if site.function}

        part: list[Numbered] = []
        for group in joined(changes, functions):
            for smaller in [group] if len(group) <= _AT_ONCE else joined(group, lambda each: each.numbers):
                if part and len(part) + len(smaller) > _AT_ONCE:
                    yield part
                    part = []
                part = [*part, *smaller]
        if part:
            yield part

    def close(self) -> None:
        """Give everything back; the driver takes out what is left, in the end that of the session's handlers, too."""
        if self._driver is not None:
            if self._shared is not None and self._open:
                self.remove(tuple(self._open))
            self._give_back()

    def _give_back(self) -> None:
        self.missed()
        self._lost = None  # which would keep the client
        driver, self._driver = self._driver, None
        if driver is not None and self._shared is None:
            driver.close()

    # -- arming

    def arm(self) -> None:
        """Place all; what is refused is in ``refused``.

        A place may be counted in several patches, where control comes from: in all of them, or it is refused.
        """
        patches = [each for name, numbers in self._by_module().items() for each in self.prepare(name, numbers)]
        for part in self._parts(patches):
            while left := [each for each in part if not self.refused.keys() >= each.numbers]:
                refused = self._try([each.change for each in left])
                if not refused:
                    self._in_force += left
                    break
                for each in left:
                    if each.site in refused:
                        self.refused.update(dict.fromkeys(each.numbers, refused[each.site]))

    def _try(self, changes: Sequence[Change], tries: int = TRIES) -> Mapping[int, Refusal]:
        """Write all, or return which ones cannot be written, by address; nothing is written then."""
        assert self._driver is not None
        return write(self._driver, changes, None if self._shared is None else self._shared.joints, tries)

    def _by_module(self) -> Mapping[str, list[int]]:
        found: dict[str, list[int]] = {}
        for number, site in enumerate(self._sites):
            if site.function is None:
                raise UnsupportedTarget(f"{site.spec}: splices are for functions of the kernel")
            found.setdefault(site.function.module, []).append(number)
        return found

    def prepare(self, name: str, numbers: Iterable[int]) -> "list[Numbered]":
        """Write the patches of one module; return them."""
        assert self._driver is not None
        module = self._code.module(name)
        wants: list[Want] = []
        for number in numbers:
            found = self._wants(number)
            if isinstance(found, Refusal):
                self.refused[number] = shown(found)
            else:
                wants += found
        splices, refused = planning.plan(module.code, wants, Claims(), module.image.padding)
        for want, why in refused:
            self.refused[number_of(want)] = shown(why)

        def dead(want: Want) -> Clobbers:
            function = module.code.containing(want.address)
            # of registers the analysis does not see what is read after a fault, or after a static key
            return Clobbers() if function is None else flags_alone(module.code, function, want)

        faulting = frozenset(module.image.tables.fixups[:, 0].tolist())
        return self._lay(PatchMaker(self._live_text(module, splices), faulting, dead), splices)

    def _lay(self, maker: PatchMaker, splices: Sequence[PlannedSplice]) -> "list[Numbered]":
        """Write patches, one after the other, to memory in reach of the text."""
        assert self._driver is not None
        made: list[Numbered] = []
        if not splices:
            return made
        actions = {
            origin: self._actions(origin)
            for splice in splices
            for want in splice.wants
            for origin in (want, want.origin)
            if origin is not None
        }
        per_want = _HANDLING if self._shared is not None else 0
        room = sum(estimate(splice) + _LIVE_FORM + per_want * len(splice.wants) for splice in splices)
        room += sum(map(test_bytes, actions.values()))
        start = at = self._reserve(room)
        code = bytearray()
        for splice in splices:
            numbers = frozenset(map(number_of, splice.wants))
            patch = maker.make(splice, at, lambda want: actions[want])
            if isinstance(patch, Refusal):
                self.refused.update(dict.fromkeys(numbers, shown(patch)))
                continue
            code += patch.code.ljust(patch.end - at, b"\xcc")
            at = patch.end
            change: Change | Refusal = Change.of(patch)
            if self._shared is not None:
                change = self._shared.joints.add(maker, splice, actions, patch)
            if isinstance(change, Refusal):
                self.refused.update(dict.fromkeys(numbers, shown(change)))
            else:
                made.append(Numbered(change, tuple(splice.wants)))
        if len(code) > room:
            raise InternalError(f"patches of {len(code)} bytes where {room} were expected")
        if code:
            self._driver.write_patch(start, bytes(code))
        return made

    def _reserve(self, size: int) -> int:
        """Return the address of so much memory for patches."""
        assert self._driver is not None
        return self._driver.reserve(size) if self._shared is None else self._shared.reserve(size)

    def _actions(self, want: Want) -> tuple[Action, ...]:
        """Return what a patch does for a want."""
        number = number_of(want)
        counting = count(self._counters.place(number), self._processes)
        handling = self._handlings[number]
        if handling is None:
            return (counting,)
        site = self._sites[number]
        assert site.function is not None
        placed, routine = self._routine(site, handling, tail=is_tail(want))
        ip = site.address if placed.asks_place else 0
        function = site.function.address if placed.asks_place else 0
        argument = _WORD * number if placed.guarded else None
        return counting, handle(routine, argument, ip, function, self._processes)

    def _routine(self, site: KernelSite, handling: Handling, *, tail: bool) -> tuple[PlacedHandler, int]:
        """Return a handler as it is placed for a site, and where the routine is that patches call."""
        assert self._driver is not None
        compiled = handling.handler.for_splice(site, self._names.type_of(site), self._driver.processors, tail=tail)
        if id(compiled) not in self._routines:
            placed = handling.place(compiled)
            if placed.guarded:
                if self._lost is None:
                    self._lost = handling.shared.lost(len(self._sites))
                placed = replace(placed, lost=self._lost.address)
            at = handling.shared.reserve(placed.bytes)
            code = assemble(handling.shared.kernel, placed, at)
            if len(code) > placed.bytes:
                raise InternalError(f"a handler's routine of {len(code)} bytes where {placed.bytes} were expected")
            self._driver.write_patch(at, code)
            self._routines[id(compiled)] = placed, at
        return self._routines[id(compiled)]

    def _live_text(self, module: LiveModule, splices: Sequence[PlannedSplice]) -> Callable[[int, int], bytes]:
        """Return what reads the text as it is around some splices: that is read once."""
        low = min((splice.insns[0].address for splice in splices), default=0)
        high = max((splice.end for splice in splices), default=0) + _LIVE_FORM
        high = min(high, module.image.text().ranges[-1].end)
        content = self._code.text_now(low, high) if splices else b""
        return lambda start, end: content[start - low : end - low]

    def _wants(self, number: int) -> Sequence[Want] | Refusal:
        """Return the instructions at which a site is counted."""
        site = self._sites[number]
        assert site.function is not None
        address = site.function.address - BIAS
        if self._handlings[number] is not None and ON_ITS_WAY.intersection(site.names):
            return Refusal(Reason.NO_INSTRUMENTATION, address + site.offset, "handlers run it when they have run")
        if site.kind == "offset":
            return [Want(address + site.offset, WantKind.OFFSET, tag=Tag(number))]
        module = self._code.module(site.function.module)
        function = module.code.function_at(address)
        if isinstance(function, Refusal):
            return function
        if site.kind == "return":
            return exits_of(function, number)
        at = entry_of(module.code, function, module.image.settled)
        return at if isinstance(at, Refusal) else [Want(at, WantKind.OFFSET, tag=Tag(number))]


_AT_ONCE: Final = 512
"""Writes of one stop, but for those of a site with more: so a stop is short, also in an emulated machine."""


_LIVE_FORM: Final = 64
"""Bytes that the copies of what the text has now may take beyond those of what the analysis has seen."""


_HANDLING: Final = 48
"""Bytes that the call of a handler takes in a patch."""
