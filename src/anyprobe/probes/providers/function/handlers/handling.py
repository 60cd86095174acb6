"""Handlers of a session: compiled, given memory, placed, and what they collected read."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import TYPE_CHECKING

from anyprobe.core.cachedproperty import Lazy
from anyprobe.core.code import MISSES, InputKind, NativeCode
from anyprobe.core.errors import HandlerError, SpecError, UnsupportedTarget, UsageError
from anyprobe.data.aggregates.aggregations import Aggregation
from anyprobe.data.aggregates.records import Records, named
from anyprobe.data.aggregates.results import AggregationResult, MapResult
from anyprobe.data.layouts.layout import room_for
from anyprobe.data.layouts.stacks import StackView
from anyprobe.data.readers.maps import Map, MapView
from anyprobe.data.readers.rings import RingReader
from anyprobe.data.readers.tables import TableView
from anyprobe.handlers.compile_cache import native_code
from anyprobe.handlers.compiler import intermediate
from anyprobe.handlers.csource import CHandler
from anyprobe.handlers.destinations import destinations
from anyprobe.handlers.frontend.context import FEW_WORDS, InstanceLayout
from anyprobe.handlers.frontend.lowering import Setting
from anyprobe.handlers.types.annotations import AnyType, i64
from anyprobe.handlers.types.storages import CALLS, EndRecorder, MapTable, Ring, Stacks, Storages, Table
from anyprobe.probes.clock import step_of_handlers, tick_nanoseconds, tsc_refusal
from anyprobe.probes.providers.function.handlers import changing
from anyprobe.probes.providers.function.handlers.actions import Following, equip_with, equipping_after
from anyprobe.probes.providers.function.handlers.drops import drained, dropped_by
from anyprobe.probes.providers.function.handlers.go_memory import GoMemory
from anyprobe.probes.providers.function.handlers.guarded_memory import READS_BYTES, MemoryReads
from anyprobe.probes.providers.function.handlers.native_needs import asks_kernel, has, reads_clock, releasing, uses
from anyprobe.probes.providers.function.handlers.points import Handler, HandlerAt, Point
from anyprobe.probes.providers.function.handlers.stack_tables import StackTables
from anyprobe.probes.providers.function.probe import Probe
from anyprobe.probes.providers.function.prototypes import Prototypes
from anyprobe.splice.codegen.handlers.facts import (
    INSTANCE_BYTES,
    INSTANCE_THREADS,
    HandlerFacts,
    forget_instances,
    instances_bytes,
)
from anyprobe.splice.codegen.handlers.memory_routines import UNKNOWN
from anyprobe.splice.regions.code_region import SlotBank
from anyprobe.splice.regions.stores import Store
from anyprobe.target.system.procfs import count_threads

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.handlers.speculating import SpeculativeRecords
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.specs.parts import Spec

STACK_LIMIT = 2048
"""Bytes of the program's stack that a handler may take."""


@dataclass(eq=False)
class Call:
    """A handler of both ends of a call; ``ret`` gives it the one for the return, and both are placed in one change."""

    handling: "Handling"
    specs: "tuple[Spec, ...]"
    waiting: "tuple[Handler, Handler | None] | None" = None
    """The entry's handler and its condition, as long as they wait for ``ret``."""
    entry: list[Probe] = field(default_factory=list)
    returns: list[Probe] = field(default_factory=list)
    instance: InstanceLayout = field(default_factory=InstanceLayout)
    store: Store | None = None
    """Where the data of calls under way is."""
    pool: int = 0
    """Calls that can be under way at one time, of all threads; 0: 256 of each thread."""
    threads: int = INSTANCE_THREADS
    """Threads that have data of their own."""
    retval: AnyType | None = None
    """The type of the result, where it was given."""
    follow: bool | None = None
    """Whether it is also placed in what is loaded later; None: as the session's option ``pending`` says."""

    def ret(self, function: Handler) -> Handler:
        """Place the handler that runs when the call returns, and the one at the entry if that waits for it."""
        if self.waiting is not None:
            (entry, when), self.waiting = self.waiting, None
            self.handling.place_both(self, entry, function, when=when)
        else:
            self.returns += self.handling.place(
                self.specs, function, Point.RETURN, call=self, retval=self.retval, follow=self.follow
            )
        return function


class Handling:
    """What handlers of one session have in common."""

    def __init__(self, session: "ProbeHost") -> None:
        """Serve a session."""
        self._session = session
        self._storages: Storages = {}
        self._stores: dict[object, Store] = {}
        self._views: dict[object, TableView | MapView | RingReader] = {}
        self._misses: Store | None = None
        self.demanded: dict[str, None] = {}
        """What handlers compute with that may be missing, which ends them."""
        self._stacks: StackView | None = None
        self._go = GoMemory()
        self._nanoseconds = 0
        self._probes: dict[Handler, list[Probe]] = {}
        self._calls: list[Call] = []
        """The calls that have data."""
        self._begun: list[Call] = []
        """Calls of which there is no handler for the return yet."""
        self.ring_bytes = Setting.ring_bytes
        """Bytes of the ring that each thread has for each kind of record."""
        self.prototypes = Prototypes(lambda spec: session.resolve(spec)[0])

    def place(
        self,
        specs: "Sequence[Spec]",
        function: Handler,
        point: Point = Point.ENTRY,
        *,
        call: Call | None = None,
        when: Handler | None = None,
        retval: AnyType | None = None,
        follow: bool | None = None,
    ) -> list[Probe]:
        """Compile a handler and place it; nothing is touched if it does not compile.

        ``retval``: the type of the function's result, if it is not to be what debug information says, or ``i64``.
        ``follow``: also in what is loaded later; None: as the session's option ``pending`` says.
        """
        self.place_waiting()
        markers = [spec for spec in specs if spec.is_marker]
        if markers and len(markers) < len(specs):
            raise UsageError("markers and functions have handlers of their own: place one for each")
        at = HandlerAt(
            function=function, point=point, specs=specs, when=when, call=call, retval=retval,
            known=self.prototypes.known(specs),
        )  # fmt: skip
        if markers:
            return self._place_at_markers(at, follow)
        equip = equipping_after(self.prepared(at)) if point is Point.AFTER else self.configuring(at)
        meant = [spec.end("return") for spec in specs] if point.is_return else specs
        probes = self._session.place_made(meant, equip, follow=follow)
        self._probes.setdefault(function, []).extend(probes)
        return probes

    def _place_at_markers(self, at: HandlerAt, follow: bool | None) -> list[Probe]:
        from anyprobe.probes.providers.function.handlers.marker_handlers import MarkerHandler

        handler = MarkerHandler(at, self.prepared)
        with suppress(SpecError):  # of libraries that are not there yet: whoever places it says so where it is wrong
            handler.compile([site for spec in at.specs for site in self._session.resolve(spec)[0]])
        probes = self._session.place_made(at.specs, handler.equip, follow=follow)
        self._probes.setdefault(at.function, []).extend(probes)
        return probes

    def place_call(
        self, specs: "Sequence[Spec]", entry: Handler, leaving: Handler, *, retval: AnyType | None = None
    ) -> Call:
        """Compile the handlers of both ends of calls, then place them in one change: none is seen at one end alone.

        ``retval``: the type of the result, if it is not to be what debug information says.
        """
        call = Call(self, tuple(specs), retval=retval)
        self.place_both(call, entry, leaving)
        return call

    def begin_call(
        self, specs: "tuple[Spec, ...]", entry: Handler, *, when: Handler | None = None, retval: AnyType | None = None,
        follow: bool | None = None,
    ) -> Call:  # fmt: skip
        """Compile the handler of the entries of calls; it is placed with the one of their returns, see ``Call.ret``."""
        call = Call(self, specs, (entry, when), retval=retval, follow=follow)
        known = self.prototypes.known(specs)
        self.compiled(HandlerAt(function=entry, call=Call(self, specs), when=when, specs=specs, known=known))
        self.place_waiting()
        self._begun.append(call)
        return call

    def place_waiting(self) -> None:
        """Place what waits for a handler of returns that does not come, or comes later."""
        begun, self._begun = self._begun, []
        for call in begun:
            if call.waiting is not None:
                (entry, when), call.waiting = call.waiting, None
                call.entry += self.place(call.specs, entry, call=call, when=when, follow=call.follow)

    def place_both(self, call: Call, entry: Handler, leaving: Handler, *, when: Handler | None = None) -> None:
        """Place the handlers of both ends of calls in one change."""
        self.place_waiting()
        returns = [spec.end("return") for spec in call.specs]
        at = HandlerAt(function=entry, call=call, when=when, specs=call.specs, known=self.prototypes.known(call.specs))
        end = replace(at, function=leaving, point=Point.RETURN, when=None, retval=call.retval)
        try:
            at_entry, at_return = self.configuring(at), self.configuring(end)
        except HandlerError:
            if not self.prototypes.returns_in_memory(call.specs):
                raise
            call.instance = InstanceLayout(keeps_result=True)
            at_entry, at_return = self.configuring(at), self.configuring(end)

        def equip(probe: Probe) -> None:
            (at_return if probe.wanted in returns else at_entry)(probe)

        for probe in self._session.place_made([*call.specs, *returns], equip, follow=call.follow):
            handler, ends = (leaving, call.returns) if probe.wanted in returns else (entry, call.entry)
            self._probes.setdefault(handler, []).append(probe)
            ends.append(probe)

    def prepared(self, at: HandlerAt) -> HandlerFacts:
        """Compile a handler and map what it needs, for places that are made otherwise."""
        with self._session.lock:
            code, storages = self.compiled(at)
            self._check(code, at.function, storages)
            changing.keep_clear(self._session, code)
            return self._facts(code, storages, at.call, enters=not at.point.is_return)

    def compiled(self, at: HandlerAt) -> tuple[NativeCode, Storages]:
        """Compile a handler and touch nothing."""
        point, call = at.point, at.call
        if call is not None and self._session.symbols.objects.goroutine_number_at() is not None:
            call.instance.room = FEW_WORDS
        setting = Setting(
            self._storages,
            call.instance if call is not None else InstanceLayout(),
            (at.retval or i64) if point.is_return else None,
            self._session.unsafe,
            entry=point.has_parameters,
            tail=point is Point.TAIL,
            prototype=at.known or (self.prototypes.known(at.specs) if at.specs else None),
            ring_bytes=self.ring_bytes,
            marker=at.marker,
        )
        code, storages = self._compiled(at.function, setting, at.when)
        if (
            at.marker is None
            and not point.has_parameters
            and any(each.kind is InputKind.PARAMETER for each in code.inputs)
        ):
            raise HandlerError("the parameters are gone here", instead="ctx.regs, or ctx.data of session.call")
        if point.is_return and call is not None and call.instance.fields:
            code = releasing(code)
        return code, storages

    def configuring(self, at: HandlerAt) -> Callable[[Probe], None]:
        """Compile a handler; return what has probes call it, one variant of it at tail calls."""
        facts, at_tails = self.prepared(at), cache(partial(self.prepared, at.at_tail()))
        following = self.following(facts, at_tails, at.call) if at.point is Point.RETURN else lambda: None
        return partial(equip_with, facts=facts, at_tails=at_tails, following=following)

    def following(
        self, facts: HandlerFacts, at_tails: Callable[[], HandlerFacts] | None, call: Call | None = None
    ) -> Callable[[], Following | None]:
        """Return what tells how a handler of returns sees calls where their callers go on; see ``equip_with``."""
        follows = self._session.splicing.memory.follows_jumps and not _is_split(call)
        always = self._session.options.returns == "callers"
        return cache(lambda: Following.of(facts, at_tails and at_tails(), always=always) if follows else None)

    def probes_of(self, function: Handler) -> list[Probe]:
        """Return the probes that call a handler."""
        self.place_waiting()
        return list(self._probes.get(function, ()))

    def _compiled(self, function: Handler, setting: Setting, when: Handler | None) -> tuple[NativeCode, Storages]:
        if isinstance(function, CHandler):
            if when is not None:
                raise HandlerError("a handler in C has no other condition than its own", instead="if (…) return 0;")
            return function.compiled(), {function: function.storage}
        if isinstance(function, EndRecorder):
            self._storages[CALLS] = function.storage
            return function.compiled(at_jump=setting.tail), {CALLS: function.storage}
        handler = intermediate(function, setting, when)
        self.demanded |= dict.fromkeys(handler.demanded)
        used = {key: each for key, each in self._storages.items() if each in handler.storages}
        by_place = {each: key for key, each in used.items()}
        code = native_code(handler)._replace(destinations=destinations(handler))
        return code, {by_place[each]: each for each in handler.storages}

    def _check(self, code: NativeCode, function: Handler, storages: Storages) -> None:
        name = getattr(function, "__name__", "the handler")
        if code.stack > STACK_LIMIT:
            raise HandlerError(f"{name} needs {code.stack} bytes of stack, more than the {STACK_LIMIT} it may")
        if reads_clock(code, storages.values()):
            self._check_clock()

    def _check_clock(self) -> None:
        """See once that the time stamp counter serves and that threads may read it (docs/safety.md, rule 25)."""
        if self._nanoseconds:
            return
        if (refusal := tsc_refusal()) is not None:
            raise UnsupportedTarget(f"ctx.now and emit need the time: {refusal.detail}")
        session = self._session
        answer = session.process.timestamps()
        session.splicing.access.pause_us["prepare"] += answer.pause_us
        if answer.why_not:
            raise UnsupportedTarget(f"ctx.now and emit need the time: {answer.why_not}")
        self._nanoseconds = tick_nanoseconds()

    @property
    def clock_step_ns(self) -> float:
        """By how much ``ctx.now`` goes on at once, 0 where no handler uses it."""
        return step_of_handlers() if self._nanoseconds else 0.0

    # -- memory

    def forget_child(self, copy: int) -> None:
        """Free the data of the calls of a fork child that has ended, by the number of its copy of all blocks."""
        for call in self._calls:
            if call.store is not None:
                forget_instances(call.store.view(), copy, call.pool)

    @property
    def has_pools(self) -> bool:
        """Whether calls that a process leaves behind take from what others have."""
        return any(call.pool for call in self._calls)

    def _facts(self, code: NativeCode, storages: Storages, call: Call | None, *, enters: bool) -> HandlerFacts:
        """Map what the handler needs and is not there yet."""
        sizes: dict[object, int] = {
            key: each.layout.size  # type: ignore[attr-defined] # tables, maps and rings
            for key, each in storages.items()
            if key not in self._stores
        }
        asks = asks_kernel(code) or (call is not None and call.pool > 0)
        errno = (self._errno or 0) if uses(code, "errno") else -1
        if self._misses is None and (has(code, InputKind.MISSES) or asks or not errno):
            sizes[MISSES] = 8 * len(MISSES) + READS_BYTES
        keeps = call if call is not None and has(code, InputKind.INSTANCE) else None
        sizes |= self._go.wanted(self._session.symbols.objects.goroutine_number_at, keeps, sizes)
        if call is not None and call.store is None and keeps is not None:
            call.threads = max(INSTANCE_THREADS, room_for(count_threads(self._session.pid)))
            sizes[call] = call.pool * INSTANCE_BYTES if call.pool else instances_bytes(call.threads)
        for key, store in zip(sizes, self._session.splicing.map_stores(list(sizes.values())), strict=True):
            if key is MISSES:
                self._misses = store
            elif isinstance(key, Call):
                key.store = store
                self._calls.append(key)
            elif not self._go.adopt(key, store):
                self._adopt(key, storages[key], store)
        if not errno and self._session.symbols.objects.libc() is not None:
            self._tell_errno()
        if uses(code, "tid") or (call is not None and call.pool):
            self._check_tids()
        facts = HandlerFacts(
            code,
            tuple(self._stores[key].address for key in storages),
            0 if self._misses is None else self._misses.address,
            self._reads.facts() if asks else UNKNOWN,
            instances=0 if call is None or call.store is None else call.store.address,
            instance_threads=INSTANCE_THREADS if call is None else call.threads,
            enters=enters,
            pool=0 if call is None else call.pool,
            nanoseconds=self._nanoseconds,
            pid=self._session.pid,
            errno=errno,
            errno_word=0 if errno or self._misses is None else self._misses.address + 8 * len(MISSES) + 8,
            unwinding=self._stack_tables.address_for(code) if has(code, InputKind.UNWINDING) else 0,
            go_calls=self._go.calls_of(keeps),
            stacks=self._go.stacks,
            reads_clock=reads_clock(code, storages.values()),
        )
        if facts.redirects:
            changing.check_redirection(self._session.process)
        return facts

    @Lazy
    def _reads(self) -> MemoryReads:
        assert self._misses is not None
        if self._session.options.children == "count":  # the bank that this may make calls all handlers to come
            self._session.splicing.memory.adopt_children()
        return MemoryReads(self._session, self._misses, 8 * len(MISSES))

    def look_at_memory(self) -> None:
        """See whether memory has come that handlers must not fault in, and name what is on stacks by now."""
        if tables := Handling._stack_tables.made(self):
            tables.learn(self._stacks)
        if (reads := Handling._reads.made(self)) is not None:
            reads.look()

    @Lazy
    def _stack_tables(self) -> StackTables:
        return StackTables(self._session)

    @cached_property
    def _errno(self) -> int | None:
        return changing.errno_in(self._session)

    def _adopt(self, key: object, storage: object, store: Store) -> None:
        self._stores[key] = store
        if isinstance(key, Aggregation) and isinstance(storage, Table):
            view = TableView(store.view(), storage.layout, store.extents)
            view.names = self.shown
            key.views.append(view)
            self._views[key] = view
        elif isinstance(key, Map) and isinstance(storage, MapTable):
            map_view = MapView(store.view(), storage.layout)
            map_view.names = self.shown
            key.views.append(map_view)
            self._views[key] = map_view
        elif isinstance(key, CHandler):
            key.views.append(store.view())
        elif isinstance(storage, Stacks):
            self._stacks = StackView(store.view())
        elif isinstance(storage, Ring):
            self._views[key] = storage.layout.reader_class()(
                store.view(), storage.layout, nanoseconds=self._nanoseconds, allocate=store.allocate
            )

    def recheck(self) -> None:
        """See to what could not be seen in a program that had not yet begun; its libraries are mapped by now."""
        if (reads := Handling._reads.made(self)) is not None:
            reads.place()
        self._follow_code(at_once=True)
        if self.__dict__.pop("_errno", 0) is None:
            self._tell_errno()

    def _tell_errno(self) -> None:
        """Say where the loader will say where ``errno`` is: the C library is mapped, and not linked."""
        if self._misses is not None:
            self._misses.view().cast("Q")[len(MISSES) + 1] = changing.errno_word_in(self._session)

    def store_of(self, key: object) -> Store | None:
        """Return where an aggregation or a map is kept, ``None`` if no handler has used it."""
        return self._stores.get(key)

    def _check_tids(self) -> None:
        """See that each thread has its id where the C library keeps it."""
        asked = self._go.stacks and self._session.symbols.objects.libc() is None  # the kernel, each time
        if not asked:
            self._session.thread_ids.want()

    # -- results

    def aggregations(self) -> tuple[AggregationResult, ...]:
        """Return what the aggregations have counted in this process."""
        self._follow_code()
        with self._session.symbols.looking_once():
            return tuple(view.result() for view in self._views.values() if isinstance(view, TableView))

    def maps(self) -> tuple[MapResult, ...]:
        """Return what the maps hold that are to be shown, in this process."""
        self._follow_code()
        views = [each for each in self._views.values() if isinstance(each, MapView) and each.layout.map.shown]
        with self._session.symbols.looking_once():
            return tuple(MapResult(each.layout.map.name, each.layout.map.by, each.items()) for each in views)

    def misses(self) -> dict[str, int]:
        """Return what went wrong in handlers, by kind."""
        if self._misses is None:
            return {miss.value: 0 for miss in MISSES}
        words = self._misses.view().cast("Q")
        return {miss.value: words[index] for index, miss in enumerate(MISSES)}

    def dropped(self) -> dict[str, dict[str, int]]:
        """Return what maps and records have lost, by name and cause."""
        return dropped_by(self._views, self._stacks, Handling._speculative.made(self))

    def records(self, *, final: bool = False, until: int | None = None) -> Iterator[tuple[str, str, Records]]:
        """Yield what was emitted since the last time, by record: its name, how a row is shown, and the rows.

        What was emitted after ``until``, as ``ctx.now`` has it, is kept for the next time.
        """
        self._follow_code()
        views = self._views.copy()  # another thread may place a handler meanwhile
        readers = {str(key): view for key, view in views.items() if isinstance(view, RingReader)}
        for name, found in drained(readers, lambda: self._speculative, final=final, until=until):
            ring = self._storages.get(name)
            assert isinstance(ring, Ring)
            with self._session.symbols.looking_once():
                rows = named(found, ring.layout.record, self.shown)
            yield name, ring.format, rows

    @Lazy
    def _speculative(self) -> "SpeculativeRecords":
        from anyprobe.probes.providers.function.handlers.speculating import SpeculativeRecords

        return SpeculativeRecords(self._session.process)

    def reader_of(self, name: str) -> RingReader | None:
        """Return what reads the records of a name, None if there are none of them."""
        return found if isinstance(found := self._views.get(name), RingReader) else None

    def _follow_code(self, *, at_once: bool = False) -> None:
        if (tables := Handling._stack_tables.made(self)) is not None:
            tables.follow(at_once=at_once)

    def shown(self, kind: str, number: int) -> str:
        """Return how a number is shown that a result has by name."""
        return self._session.symbols.shown(kind, number, self._stacks)


def _is_split(call: Call | None) -> bool:
    """Return whether a call's entries are seen by a bank that notes no calls: both ends have to be seen by one."""
    banks = [place.hook.bank for probe in call.entry for place in probe.places] if call is not None else []
    return any(isinstance(bank, SlotBank) and not bank.layout.notes_calls for bank in banks)
