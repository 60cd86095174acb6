"""The handlers of a probe: wrapped, compiled, and where they are to run."""

import errno
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto
from functools import cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any

from anyprobe.core.errors import KprobeError
from anyprobe.data.aggregates.aggregations import Count
from anyprobe.handlers.csource import CHandler
from anyprobe.handlers.frontend.values import Alias
from anyprobe.kprobes import wrapping
from anyprobe.kprobes.constants import constants, were_asked
from anyprobe.kprobes.lookup import Location, entry_spec
from anyprobe.kprobes.registers import CALLER, REGISTERS, REGISTERS_AT_RETURN, TASK
from anyprobe.kprobes.structures import TRAMPOLINE, Djprobe, Handler, Jprobe, Kprobe, Kretprobe, Registered, kprobe_of
from anyprobe.probes.providers.function.handlers.actions import (
    Following,
    asks_caller,
    equip_with,
    equipping_after,
    equipping_for_faults,
    knowing_stubs,
)
from anyprobe.probes.providers.function.handlers.handling import Call
from anyprobe.probes.providers.function.handlers.points import HandlerAt, Point
from anyprobe.probes.specs.parts import Spec
from anyprobe.splice.codegen.fault_exit import can_land

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.handlers.trampolining import Trampolines
    from anyprobe.probes.providers.function.probe import Probe
    from anyprobe.probes.providers.function.resolve import ResolvedSite
    from anyprobe.probes.session import Session
    from anyprobe.splice.codegen.handlers.facts import HandlerFacts

DATA_BYTES = 56
"""The most that ``ri.data`` may have: what a call's own data holds besides anyprobe's mark."""
MAXACTIVE_LIMIT = 4096
"""As in the kernel."""
_numbers = count(1)


class When(Enum):
    """When a handler runs: before the instruction, after it, or where it has faulted."""

    BEFORE = auto()
    AFTER = auto()
    FAULTED = auto()


@dataclass(eq=False)
class Site:
    """One spec of a registration, and the handler that runs there; ``None``: hits are only counted."""

    spec: Spec
    handler: "HandlerFacts | None"
    when: When = When.BEFORE
    at_tails: "Callable[[], HandlerFacts] | None" = None
    """What runs where a function ends in a jump to another one."""
    at: "ResolvedSite | None" = None
    """What ``spec`` means, where that is known already."""
    following: "Callable[[], Following | None]" = lambda: None
    """How it runs where the callers of such a function go on."""
    trampolines: "Trampolines | None" = None
    """What has it run at replaced return addresses."""

    def equipper(self) -> "Callable[[Probe], None]":
        """Return what has the places of the spec call the handler."""
        if self.handler is None:
            return _count
        if self.trampolines is not None:
            return partial(self.trampolines.handle, facts=self.handler)
        if self.when is When.AFTER:
            return equipping_after(self.handler)
        if self.when is When.FAULTED:
            return equipping_for_faults(self.handler)
        return partial(equip_with, facts=self.handler, at_tails=self.at_tails, following=self.following)


class Compiler:
    """Compiles the handlers of probes in one session."""

    def __init__(self, session: "Session") -> None:
        """Begin with nothing."""
        self._session = session
        self._compiled: dict[tuple[object, ...], HandlerFacts] = {}
        """Handlers that serve any probe, since they ask nothing of it."""

    def sites(self, probe: Registered, location: Location) -> tuple[list[Site], Count | None]:
        """Return where which handlers of a probe run, and what counts the calls that it does not follow."""
        match probe:
            case Kprobe():
                return self._kprobe_sites(probe, location), None
            case Jprobe():
                if probe.entry is None:
                    raise KprobeError(errno.EINVAL, "a jprobe needs an entry")
                spec = entry_spec(self._session, location)
                return [
                    Site(spec, self._session.handling.prepared(HandlerAt(function=probe.entry, specs=(spec,))))
                ], None
            case Kretprobe():
                return self._kretprobe_sites(probe, location)
            case Djprobe():
                wrapping.check_parameters(probe.handler, "p", "regs")
                return [self._site(probe.handler, probe, location)], None

    def _kprobe_sites(self, kp: Kprobe, location: Location) -> list[Site]:
        wrapping.check_parameters(kp.pre_handler, "p", "regs")
        wrapping.check_parameters(kp.post_handler, "p", "regs", "flags")
        wrapping.check_parameters(kp.fault_handler, "p", "regs", "trapnr")
        sites = []
        if kp.pre_handler is not None or kp.post_handler is None:
            sites.append(self._site(kp.pre_handler, kp, location))
        if kp.post_handler is not None:
            facts = self._facts(wrapping.after, kp.post_handler, kp, location)
            sites.append(Site(location.spec, facts, When.AFTER, at=location.site))
        if kp.fault_handler is not None:
            sites.append(self._fault_site(kp, kp.fault_handler, location))
        return sites

    def _fault_site(self, kp: Kprobe, function: Handler, location: Location) -> Site:
        """Return the site of a handler that runs where the instruction has faulted."""
        if isinstance(function, CHandler):
            raise KprobeError(errno.EOPNOTSUPP, "fault handlers are in Python: one in C is not told of the fault")
        if self._session.splicing.live is not None:
            raise KprobeError(errno.EOPNOTSUPP, "fault handlers are not armed without a stop")
        if wrapping.handles(function) and not self._session.unsafe:
            detail = "a fault handler that returns something else than 0 changes what the program does: unsafe=True"
            raise KprobeError(errno.EPERM, detail)
        insn = location.code.insn_at(location.link)
        if insn is None or not can_land(insn):
            raise KprobeError(errno.EOPNOTSUPP, "no fault handlers for what jumps, calls or returns")
        p = constants("kprobe", fields(kp, location.address))
        wrapped = wrapping.faulting(function, p, REGISTERS, location.address)
        facts = self._inside(wrapped)
        return Site(location.spec, facts, When.FAULTED, at=location.site)

    def _inside(self, function: Handler) -> "HandlerFacts":
        """Return a compiled handler that runs before an instruction."""
        return self._session.handling.prepared(HandlerAt(function=function, point=Point.BEFORE))

    def _site(self, function: Handler | None, probe: Registered, location: Location) -> Site:
        """Return the site of a handler that runs before the instruction."""
        facts = None if function is None else self._facts(wrapping.before, function, probe, location)
        return Site(location.spec, facts, at=location.site)

    def _facts(
        self, wrap: Callable[[Handler, type, type], Handler], function: Handler, probe: Registered, location: Location
    ) -> "HandlerFacts":
        """Return a compiled handler of ``(p, regs)``; probes whose handlers ask nothing of them share one."""
        key = (wrap, function)
        found = self._compiled.get(key)
        if isinstance(function, CHandler):  # told of the hit, not of the probe
            found = self._compiled[key] = found or self._inside(function)
        if found is None:
            p = constants(type(probe).__name__.lower(), fields(probe, location.address))
            found = self._inside(wrap(function, p, REGISTERS))
            if found.redirects and wrap is wrapping.before:
                if not wrapping.returns_values(function):
                    raise KprobeError(errno.EINVAL, "a handler that sets regs.ip has to return 1")
                found = self._inside(wrapping.redirecting(function, p, REGISTERS))
            if not were_asked([p]):
                self._compiled[key] = found
        return found

    def _c_return_sites(self, rp: Kretprobe, handler: CHandler, location: Location, spec: Spec) -> list[Site]:
        """Return the sites of a return handler in C, which runs at all returns: it has no instance."""
        if rp.maxactive or rp.data_size or not isinstance(rp.entry_handler, CHandler | None):
            detail = "a return handler in C has no instance: no maxactive, no data_size, no entry handler in Python"
            raise KprobeError(errno.EOPNOTSUPP, detail)
        entry = [] if rp.entry_handler is None else [self._facts(wrapping.before, rp.entry_handler, rp, location)]
        facts = self._session.handling.prepared(HandlerAt(function=handler, point=Point.RETURN))
        following = self._session.handling.following(facts, None)
        at_return = Site(spec.end("return"), facts, following=following)
        return [*(Site(spec, each) for each in entry), at_return]

    def _check_replacing(self, rp: Kretprobe) -> None:
        """See that a probe can be had at replaced return addresses, as far as that is not the function's affair."""
        if self._session.splicing.live is not None:
            raise KprobeError(errno.EOPNOTSUPP, "return addresses are not replaced without a stop")
        if isinstance(rp.handler, CHandler):
            raise KprobeError(errno.EOPNOTSUPP, "handlers in C run at exits only, not at replaced return addresses")
        if rp.maxactive > 0:
            detail = "instances are known by their return address: no maxactive where that is replaced"
            raise KprobeError(errno.EOPNOTSUPP, detail)

    def _knowing_stubs(self, facts: "HandlerFacts") -> "HandlerFacts":
        """Return a handler that is told the true return address where a stub's is in its place."""
        stubs = self._session.splicing.stubs
        return knowing_stubs(facts, stubs.address()) if asks_caller(facts) else facts

    def _kretprobe_sites(self, rp: Kretprobe, location: Location) -> tuple[list[Site], Count | None]:
        wrapping.check_parameters(rp.handler, "ri", "regs")
        wrapping.check_parameters(rp.entry_handler, "ri", "regs")
        replacing = bool(rp.kp.flags & TRAMPOLINE) and rp.handler is not None
        if replacing:
            self._check_replacing(rp)
        if not 0 <= rp.data_size <= DATA_BYTES:
            raise KprobeError(errno.E2BIG, f"data_size can be {DATA_BYTES} bytes at most, not {rp.data_size}")
        if rp.handler is None and rp.entry_handler is None:
            raise KprobeError(errno.EINVAL, "a kretprobe needs a handler")
        spec = entry_spec(self._session, location)
        handling = self._session.handling
        if isinstance(rp.handler, CHandler):
            return self._c_return_sites(rp, rp.handler, location, spec), None
        if rp.maxactive > MAXACTIVE_LIMIT:
            raise KprobeError(errno.E2BIG, f"maxactive can be {MAXACTIVE_LIMIT} at most, not {rp.maxactive}")
        call = Call(handling, (spec,), pool=max(rp.maxactive, 0))
        missed = Count(f"{location.function}: calls not followed, kretprobe {next(_numbers)}")
        p = constants("kretprobe", fields(rp, location.address))
        ri: dict[str, object] = {"rp": p, "ret_addr": CALLER, "task": TASK, "data": Alias(("data",))}
        instance = constants("kretprobe_instance", ri)
        sites = []
        if replacing:
            own = None if isinstance(rp.entry_handler, CHandler) else rp.entry_handler
            entry = wrapping.expected(own, instance, REGISTERS)
        elif rp.entry_handler is None or isinstance(rp.entry_handler, CHandler):
            entry = wrapping.followed(missed)
        else:
            entry = wrapping.entered(rp.entry_handler, missed, instance, REGISTERS)
        at_entry = handling.prepared(HandlerAt(function=entry, point=Point.BEFORE, call=call))
        if at_entry.redirects:
            raise KprobeError(errno.EINVAL, "an entry handler cannot set regs.ip: use a pre_handler that returns 1")
        sites.append(Site(spec, self._knowing_stubs(at_entry) if replacing else at_entry))
        if isinstance(rp.entry_handler, CHandler):
            sites.append(Site(spec, self._facts(wrapping.before, rp.entry_handler, rp, location)))
        if rp.handler is not None and replacing:
            handler = wrapping.come_back(rp.handler, missed, instance, REGISTERS_AT_RETURN)
            facts = self._knowing_stubs(handling.prepared(HandlerAt(function=handler, point=Point.RETURN, call=call)))
            trampolines = self._session.host.trampolines
            sites.append(Site(spec.end("return"), facts, trampolines=trampolines))
        elif rp.handler is not None:
            handler = wrapping.returned(rp.handler, instance, REGISTERS_AT_RETURN)
            at = HandlerAt(function=handler, point=Point.RETURN, call=call)
            at_tails = cache(partial(handling.prepared, at.at_tail()))
            facts = handling.prepared(at)
            following = handling.following(facts, at_tails, call)
            sites.append(Site(spec.end("return"), facts, at_tails=at_tails, following=following))
        return sites, missed


def fields(probe: Registered, address: int) -> dict[str, Any]:
    """Return what a handler may read of its probe: what the user has put there, and where it is."""
    hidden = ("registration", "refusal", "error", "given", "counted", "asked_flags")
    own, kp = (
        {name: each for name, each in structure.items() if name not in hidden} | {"addr": address}
        for structure in map(vars, (probe, kprobe_of(probe)))
    )
    return kp | own if isinstance(probe, Kprobe) else kp | own | {"kp": constants("kprobe", kp)}


def _count(probe: "Probe") -> None:
    """Leave a probe as it is: hits are counted."""
