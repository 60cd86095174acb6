"""What is attached in the kernel, and how a counting program or a handler gets to each kind of place."""

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from anyprobe.core.errors import KernelRefused, TargetError
from anyprobe.probes.providers.kernel.counters import GO_ON, Counters
from anyprobe.probes.providers.kernel.places.sites import KernelNames, KernelSite, Unable
from anyprobe.target.kernel import bpf, perf, probe_events, programs, tracefs
from anyprobe.target.kernel.btf import Btf, open_module
from anyprobe.target.kernel.symbols import KERNEL
from anyprobe.target.system import gateway

if TYPE_CHECKING:
    from anyprobe.probes.providers.kernel.handlers import KernelHandler
    from anyprobe.probes.providers.kernel.splices.splicing import Spliced

Told = Callable[[], int | None]
Begin = Callable[[Callable[[], None]], None]
"""What is given the last step of attaching a kprobe, to take it now or later."""


def at_once(join: Callable[[], None]) -> None:
    """Take the last step of attaching."""
    join()


@dataclass(eq=False, slots=True)
class Attachment:
    """One thing that the kernel has attached; ``slots`` are the counters of its sites, one each."""

    mechanism: str
    sites: Sequence[KernelSite]
    slots: Sequence[int]
    descriptors: list[int] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    """Ask the kernel for what it has missed."""
    undo: list[Callable[[], None]] = field(default_factory=list)
    """What is to be done when all descriptors are closed."""
    lost: int = 0
    is_told: bool = True
    """Whether the kernel counts what it misses here."""
    splices: "Spliced | None" = None
    """What counts by itself, in place of the probe's counters."""

    def misses(self) -> int:
        """Return how many hits the kernel says that it has missed."""
        if self.descriptors:
            counts = [ask() for ask in self.told]
            self.is_told = None not in counts
            self.lost = sum(count or 0 for count in counts)
        return self.lost

    def counted(self) -> Mapping[int, int]:
        """Return what it has counted by itself, by slot; nothing if that is not its way."""
        if self.splices is None:
            return {}
        counts = self.splices.counts()
        return {slot: counts[slot] for slot in self.slots}

    def gone(self) -> Collection[int]:
        """Return the slots of what has gone with its module."""
        if self.splices is None:
            return ()
        gone = self.splices.gone()
        return {slot for slot in self.slots if slot in gone}

    def missed(self) -> Mapping[int, int]:
        """Return what is known of misses by slot: of splices, and of what has one slot alone."""
        if self.splices is not None:
            missed = self.splices.missed()
            return {slot: missed[slot] for slot in self.slots}
        return {self.slots[0]: self.misses()} if len(self.slots) == 1 else {}

    def close(self) -> None:
        """Take it away; what was missed up to now is kept."""
        with suppress(KernelRefused):
            self.misses()
        if self.splices is not None:
            self.splices.close()
        while self.descriptors:
            gateway.close(self.descriptors.pop())
        while self.undo:
            with suppress(TargetError):  # what is left so is not set, and the next one of these takes it away
                self.undo.pop()()

    def hold(self, descriptor: int) -> int:
        """Keep a descriptor until the end, and return it."""
        self.descriptors.append(descriptor)
        return descriptor

    def join(self, program: int, event: int) -> int | None:
        """Attach a program to an event, and return the link of both if there is one."""
        link = programs.attach_to_event(program, event)
        return link if link is None else self.hold(link)


class Attacher(NamedTuple):
    """What the mechanisms need: the counters of a probe, and what there is in the kernel."""

    counters: Counters
    names: KernelNames
    handler: "KernelHandler | None" = None
    check: Callable[[], None] = lambda: None
    """Called before each attachment; raises an error if no more is wanted."""
    begin: Begin = at_once
    spliced: "Spliced | None" = None
    """What has been spliced already, together with the sites of other probes."""

    def function(self, made: Attachment) -> None:
        """Attach to the entry or exit of a function by its type (``fentry``, ``fexit``)."""
        (site,), (slot,) = made.sites, made.slots
        found = self.names.type_of(site)
        if found is None:
            self.names.check_types()
            raise Unable("BTF has no type of it alone")
        attached = programs.EXIT if site.kind == "return" else programs.ENTRY
        code = self._code(slot, lambda handler: handler.for_function(site, found))
        self._typed(made, code, attached, found.types, found.number)

    def typed_tracepoint(self, made: Attachment) -> None:
        """Attach to a tracepoint by its type (``tp_btf``)."""
        (site,), (slot,) = made.sites, made.slots
        found = self.names.tracepoint_type(site)
        if found is None:
            self.names.check_types()
            raise Unable("BTF has no type of it")
        code = self._code(slot, lambda handler: handler.for_typed_tracepoint(site))
        self._typed(made, code, programs.TRACED, *found)

    def _typed(self, made: Attachment, code: bytes, attached: int, types: Btf, number: int) -> None:
        """Attach a program to what has a type."""
        module = 0 if types.name == KERNEL else open_module(types.name)
        try:
            program = self._load(made, code, programs.Kind(programs.PROGRAM_OF_A_FUNCTION, attached, number, module))
        finally:
            if module:
                os.close(module)
        made.hold(programs.attach_typed(program))

    def _code(self, slot: int, compiled: "Callable[[KernelHandler], bytes]", result: int = 0) -> bytes:
        """Return a program that counts, and then runs the handler if there is one."""
        if self.handler is None:
            return self.counters.program(slot, result=result)
        return self.counters.before(slot, result=result) + compiled(self.handler)

    def kprobe(self, made: Attachment) -> None:
        """Set a kprobe, or a kretprobe."""
        (site,), (slot,) = made.sites, made.slots
        code = self._code(slot, lambda handler: handler.for_registers(site, self.names.type_of(site)))
        program = self._load(made, code, programs.Kind(programs.PROGRAM_OF_A_KPROBE))
        event = self._kprobe_event(made, site.address, returning=site.kind == "return")

        def join() -> None:
            link = made.join(program, event)
            made.told.append(lambda: None if link is None else programs.link_misses(link))

        self.begin(join)

    @staticmethod
    def _kprobe_event(made: Attachment, address: int, *, returning: bool) -> int:
        """Open the event of a kprobe, by tracefs where perf has none."""
        if perf.makes("kprobe"):
            return made.hold(perf.open_kprobe(address, returning=returning))
        name, number = probe_events.define(address, returning=returning)
        made.undo.append(partial(probe_events.remove, name))
        return made.hold(perf.open_tracepoint(number))

    def uprobe(self, made: Attachment) -> None:
        """Set a uprobe or uretprobe in a file, for all processes that run it now or later."""
        (site,), (slot,) = made.sites, made.slots
        assert site.file is not None
        code = self._code(slot, lambda handler: handler.for_registers(site, None))
        program = self._load(made, code, programs.Kind(programs.PROGRAM_OF_A_KPROBE))
        returning, semaphore = site.kind == "return", site.file.semaphore
        event = made.hold(perf.open_uprobe(site.file.path, site.file.offset, returning=returning, semaphore=semaphore))
        made.join(program, event)
        if returning:  # calls that are nested more than 64 deep are left out, and not counted
            made.told.append(lambda: None)

    def multi(self, made: Attachment) -> None:
        """Attach to many functions at once (``kprobe.multi``)."""
        if self.handler is not None:
            raise Unable("it runs one program for all functions, and a handler has one for each")
        kind = programs.Kind(programs.PROGRAM_OF_A_KPROBE, programs.MULTI)
        program = self._load(made, self.counters.program_for_many(), kind)
        cookies = {site.address: slot for site, slot in zip(made.sites, made.slots, strict=True)}
        link = made.hold(programs.attach_to_many(program, cookies, returning=made.sites[0].kind == "return"))
        made.told.append(lambda: programs.link_misses(link, many=True))

    def splice(self, made: Attachment) -> None:
        """Write jumps to patches of anyprobe's into the kernel's text."""
        from anyprobe.probes.providers.kernel.splices.splicing import splice

        handling = None if self.handler is None else self.handler.handling
        made.splices = self.spliced or splice(self.names, [(made.sites, handling)], self.counters.chosen)[0]

    def raw(self, made: Attachment) -> None:
        """Attach to a tracepoint without its record."""
        (site,), (slot,) = made.sites, made.slots
        assert site.raw is not None
        code = self._code(slot, lambda handler: handler.for_tracepoint(site))
        program = self._load(made, code, programs.Kind(programs.PROGRAM_OF_A_TRACEPOINT))
        made.hold(programs.attach_raw(program, site.raw))

    def tracepoint(self, made: Attachment) -> None:
        """Attach to a tracepoint's event, as perf does; others at it see their hits as before."""
        (site,), (slot,) = made.sites, made.slots
        assert site.tracepoint is not None
        number = tracefs.tracepoint_number(*site.tracepoint)
        if number is None:
            raise Unable(f"there is no tracepoint {':'.join(site.tracepoint)}")
        code = self._code(slot, lambda handler: handler.for_record(site), result=GO_ON)
        program = self._load(made, code, programs.Kind(programs.PROGRAM_OF_AN_EVENT))
        link = made.join(program, made.hold(perf.open_tracepoint(number)))
        made.told.append(
            lambda: None if link is None else programs.link_misses(link)
        )  # always 0, but None before 6.7, which counts no misses

    def event(self, made: Attachment) -> None:
        """Let a timer or a kind of event make hits, on each processor that runs now or on one."""
        (site,), (slot,) = made.sites, made.slots
        event, before = site.event, self.counters.read()[slot]
        assert event is not None
        code = self._code(slot, lambda handler: handler.for_event(site))
        program = made.hold(self._loaded(code, programs.Kind(programs.PROGRAM_OF_A_SAMPLE)))
        opened = []
        for processor in bpf.online_processors() if event.everywhere else [bpf.first_processor()]:
            opened.append(made.hold(perf.open_event(event.name or "cpu-clock", processor, event.every)))
            made.join(program, opened[-1])
            perf.enable(opened[-1])

        def throttled() -> int | None:
            """Return how many hits there were more, by the events' own counts: these are of all processes."""
            if event.is_timer or self.counters.chosen:  # timers' counts are times
                return None
            happened = sum(perf.count(each) // event.every for each in opened)
            return max(0, happened - (self.counters.read()[slot] - before))

        made.told.append(throttled)

    def _load(self, made: Attachment, code: bytes, kind: programs.Kind) -> int:
        program = made.hold(self._loaded(code, kind))
        made.told.append(lambda: programs.recursion_misses(program))
        return program

    def _loaded(self, code: bytes, kind: programs.Kind) -> int:
        """Load a program; what the verifier says of a handler's code is the handler's error."""
        try:
            return programs.load(code, kind)
        except programs.VerifierRefusal as refusal:
            if self.handler is None or not refusal.is_of_code:
                raise
            raise self.handler.rejected(refusal, len(self.counters.before(0)) // 8) from None
