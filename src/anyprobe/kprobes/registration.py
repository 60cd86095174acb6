"""What is behind registered probes: compiled handlers, places in the process, and their state."""

import errno
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from itertools import count
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from anyprobe.core.errors import KprobeError
from anyprobe.core.refusal import Reason
from anyprobe.data.aggregations import Count
from anyprobe.handlers.values import Alias
from anyprobe.kprobes import wrapping
from anyprobe.kprobes.constants import constants, were_asked
from anyprobe.kprobes.djprobes import check_assumptions, check_size, named
from anyprobe.kprobes.lookup import Location, locate
from anyprobe.kprobes.registers import CALLER, REGISTERS, REGISTERS_AT_RETURN, TASK
from anyprobe.kprobes.replanning import TRAPS, keep_order, switch_optimization
from anyprobe.kprobes.structures import (
    KPROBE_FLAG_DISABLED,
    KPROBE_FLAG_GONE,
    KPROBE_FLAG_OPTIMIZED,
    TRAMPOLINE,
    Djprobe,
    Handler,
    Jprobe,
    Kprobe,
    Kretprobe,
    Registered,
    kprobe_of,
)
from anyprobe.probes.dressing import dress_with, dressing_behind
from anyprobe.probes.handling import Call
from anyprobe.probes.reading import BankValues
from anyprobe.splice.planned import Strategy

if TYPE_CHECKING:
    from anyprobe.probes.probe import Probe
    from anyprobe.probes.session import Session
    from anyprobe.splice.handlerfacts import HandlerFacts

DATA_BYTES = 56
"""Of ``ri.data``, at most: what a call's own data holds besides our mark."""
MAXACTIVE_LIMIT = 4096
"""As in the kernel."""
_numbers = count(1)


@dataclass(eq=False)
class Site:
    """One spec of a registration, and the handler that runs there; ``None``: hits are only counted."""

    spec: str
    handler: "HandlerFacts | None"
    behind: bool = False
    """Whether it runs behind the instruction."""
    at_tails: "Callable[[], HandlerFacts] | None" = None
    """What runs where a function ends in a jump to another one."""


@dataclass(eq=False)
class Registration:
    """A probe in a process."""

    session: "Session"
    probe: Registered
    kind: str
    """``k``, ``j`` or ``r``, as in the kernel's list."""
    location: Location
    sites: list[Site] = field(default_factory=list)
    placed: "list[Probe]" = field(default_factory=list)
    unfollowed: Count | None = None
    """Of a kretprobe: calls that found no instance."""
    disabled: bool = False

    @property
    def armed(self) -> bool:
        """Whether hits are seen now."""
        return any(probe.armed for probe in self.placed)

    @property
    def optimized(self) -> bool:
        """Whether it is armed, and nowhere by a trap."""
        hooks = [place.hook for probe in self.placed for place in probe.places]
        return self.armed and not any(hook.strategy == Strategy.TRAP for hook in hooks if hook.armed)

    @property
    def gone(self) -> bool:
        """Whether the code that was probed is no longer there."""
        reasons = [place.hook.refusal.reason for p in self.placed for place in p.places if place.hook.refusal]
        return not self.armed and Reason.GONE in reasons

    def flags(self) -> int:
        """Return the kernel's flags for its state."""
        found = KPROBE_FLAG_DISABLED * self.disabled | KPROBE_FLAG_OPTIMIZED * self.optimized
        return found | KPROBE_FLAG_GONE * self.gone

    def hits(self) -> int:
        """Return the hits at the first place, without the missed ones."""
        if not self.placed:
            return 0
        values = BankValues()
        return sum(values.hits(place.hook) for place in self.placed[0].places)

    def missed(self) -> int:
        """Return the hits that ran no handler, and the calls that found no instance."""
        values = BankValues()
        missed = sum(values.missed(place.hook) for probe in self.placed[:1] for place in probe.places)
        if self.unfollowed is not None:
            missed += sum(view.result().total.count for view in self.unfollowed.views)
        return missed


class Registry:
    """The probes of one session, in order of registration."""

    def __init__(self, session: "Session") -> None:
        """Begin without any."""
        self._session = session
        self.registrations: list[Registration] = []
        self.enabled = True
        """Whether probes are armed at all; their own states stay what they are."""
        self.optimization = True
        """Whether probes are reached by jumps, and not by traps."""
        self._compiled: dict[tuple[object, ...], HandlerFacts] = {}
        """Handlers that serve any probe, since they ask nothing of it."""

    # -- registering

    def register(self, probes: Sequence[Registered]) -> None:
        """Register all probes or none; raise ``KprobeError`` with what stands against the first bad one."""
        self._session.objects.refresh()
        made: list[Registration] = []
        try:
            for probe in probes:
                made.append(self._made(probe, [each.probe for each in made]))
            if self.enabled:
                self._place([each for each in made if not each.disabled])
        except BaseException:
            for each in made:
                _forget(each)
            raise
        self.registrations += made

    def _made(self, probe: Registered, others: Sequence[Registered]) -> Registration:
        """Look up and compile one probe; nothing is touched."""
        kp = kprobe_of(probe)
        kp.error, kp.refusal = "", None
        if isinstance(probe, Djprobe):
            kp.addr, kp.found = probe.addr, None
        if kp.registration is not None or probe in others:
            raise _failed(kp, KprobeError(errno.EINVAL, "it is registered already"))
        try:
            location = locate(self._session, kp, entry=isinstance(probe, Jprobe | Kretprobe))
            if isinstance(probe, Djprobe):
                self._check(probe, location, others)
            sites, unfollowed = self._sites(probe, location)
        except KprobeError as error:
            raise _failed(kp, named(error) if isinstance(probe, Djprobe) else error) from error
        made = Registration(self._session, probe, _kind(probe), location, sites, unfollowed=unfollowed)
        made.disabled = bool(kp.asked_flags & KPROBE_FLAG_DISABLED)
        if kp.symbol_name is not None:
            kp.found = location.address
        kp.addr, kp.registration = location.address, made
        return made

    def _check(self, probe: Djprobe, location: Location, others: Sequence[Registered]) -> None:
        """Check what a djprobe asks of the code."""
        if self._session.engine.allowed == TRAPS:
            raise KprobeError(errno.EINVAL, "optimization is off, and a djprobe is a jump")
        check_size(location.code, location.link, probe.size)
        if probe.strict:
            known = [kprobe_of(each).registration for each in others] + list(self.registrations)
            near = [each.location.address for each in known if each is not None and isinstance(each.probe, Djprobe)]
            bias = location.address - location.link
            check_assumptions(location.code, location.link, probe.size, [address - bias for address in near])

    def _place(self, made: Sequence[Registration]) -> None:
        """Arm what is not armed yet, in one change; where something cannot be, nothing is."""
        sites = [(each, site) for each in made for site in each.sites]
        if not sites:
            return
        order = iter(sites)

        def dress(probe: "Probe") -> None:
            _, site = next(order)
            own = _dresser(site)
            probe.dress = own
            own(probe)

        placed = self._session.place_made([site.spec for _, site in sites], dress)
        for (each, _), probe in zip(sites, placed, strict=True):
            each.placed.append(probe)
        for each in made:
            refused = next(self._refused(each), None)
            if refused is not None:
                self._session.remove(*placed)
                raise _failed(kprobe_of(each.probe), named(refused) if isinstance(each.probe, Djprobe) else refused)

    def _refused(self, made: Registration) -> Iterator[KprobeError]:
        for probe in made.placed:
            verdicts = [why for _, why in probe.refused]
            verdicts += [place.hook.refusal for place in probe.places if place.hook.refusal is not None]
            yield from (KprobeError(errno.EINVAL, str(why), why) for why in verdicts)

    # -- compiling

    def _sites(self, probe: Registered, location: Location) -> tuple[list[Site], Count | None]:
        match probe:
            case Kprobe():
                return self._kprobe_sites(probe, location), None
            case Jprobe():
                if probe.entry is None:
                    raise KprobeError(errno.EINVAL, "a jprobe needs an entry")
                facts = self._session.handling.prepared(probe.entry)
                return [Site(_named_entry(location), facts)], None
            case Kretprobe():
                return self._kretprobe_sites(probe, location)
            case Djprobe():
                return [self._site(probe.handler, probe, location)], None

    def _kprobe_sites(self, kp: Kprobe, location: Location) -> list[Site]:
        if kp.fault_handler is not None:
            raise KprobeError(errno.EOPNOTSUPP, "fault handlers are not there yet")
        sites = []
        if kp.pre_handler is not None or kp.post_handler is None:
            sites.append(self._site(kp.pre_handler, kp, location))
        if kp.post_handler is not None:
            facts = self._facts(wrapping.behind, kp.post_handler, kp, location)
            sites.append(Site(location.spec, facts, behind=True))
        return sites

    def _site(self, function: Handler | None, probe: Registered, location: Location) -> Site:
        """Return the site of a handler that runs before the instruction."""
        return Site(
            location.spec, None if function is None else self._facts(wrapping.before, function, probe, location)
        )

    def _facts(
        self, wrap: Callable[[Handler, type, type], Handler], function: Handler, probe: Registered, location: Location
    ) -> "HandlerFacts":
        """Return a compiled handler of ``(p, regs)``; probes whose handlers ask nothing of them share one."""
        key = (wrap, function)
        found = self._compiled.get(key)
        if found is None:
            p = constants(type(probe).__name__.lower(), _fields(probe, location))
            found = self._session.handling.prepared(wrap(function, p, REGISTERS), inside=True)
            if found.redirects and wrap is wrapping.before:
                if not wrapping.returns_values(function):
                    raise KprobeError(errno.EINVAL, "a handler that sets regs.ip has to return 1")
                found = self._session.handling.prepared(wrapping.redirecting(function, p, REGISTERS), inside=True)
            if not were_asked([p]):
                self._compiled[key] = found
        return found

    def _kretprobe_sites(self, rp: Kretprobe, location: Location) -> tuple[list[Site], Count]:
        if rp.kp.flags & TRAMPOLINE:
            raise KprobeError(errno.EOPNOTSUPP, "handlers run at exits only, not at replaced return addresses")
        if not 0 <= rp.data_size <= DATA_BYTES:
            raise KprobeError(errno.E2BIG, f"data_size can be {DATA_BYTES} bytes at most, not {rp.data_size}")
        if rp.handler is None and rp.entry_handler is None:
            raise KprobeError(errno.EINVAL, "a kretprobe needs a handler")
        spec = _named_entry(location)
        handling = self._session.handling
        if rp.maxactive > MAXACTIVE_LIMIT:
            raise KprobeError(errno.E2BIG, f"maxactive can be {MAXACTIVE_LIMIT} at most, not {rp.maxactive}")
        call = Call(handling, (spec,), pool=max(rp.maxactive, 0))
        missed = Count(f"{location.function}: calls not followed, kretprobe {next(_numbers)}")
        p = constants("kretprobe", _fields(rp, location))
        ri: dict[str, object] = {"rp": p, "ret_addr": CALLER, "task": TASK, "data": Alias(("data",))}
        instance = constants("kretprobe_instance", ri)
        if rp.entry_handler is None:
            entry = wrapping.followed(missed)
        else:
            entry = wrapping.entered(rp.entry_handler, missed, instance, REGISTERS)
        sites = [Site(spec, handling.prepared(entry, call=call, inside=True))]
        if rp.handler is not None:
            handler = wrapping.returned(rp.handler, instance, REGISTERS_AT_RETURN)
            prepare = partial(handling.prepared, handler, returns=True, call=call)
            at_tails = cache(partial(prepare, tail=True))
            sites.append(Site(spec.removesuffix(":entry") + ":return", prepare(), at_tails=at_tails))
        return sites, missed

    # -- changing

    def unregister(self, probes: Sequence[Registered]) -> None:
        """Remove probes in one change; the ``addr`` of those that are not registered is cleared."""
        known = []
        for probe in probes:
            made = self._find(probe)
            if made is None:
                kprobe_of(probe).addr = None
            elif made not in known:
                known.append(made)
        self._session.remove(*(each for made in known for each in made.placed))
        for made in known:
            self.registrations.remove(made)
            _forget(made)

    def disable(self, probe: Registered) -> None:
        """Disarm a probe; it stays registered."""
        made = self._registered(probe)
        if not made.disabled:
            self._session.remove(*made.placed)
            made.disabled = True

    def enable(self, probe: Registered) -> None:
        """Arm a disabled probe again."""
        made = self._registered(probe)
        if made.disabled and self.enabled:
            self._arm([made])
        made.disabled = False

    def _arm(self, made: Sequence[Registration]) -> None:
        """Arm probes that are registered, so that all run in order of registration."""
        self._session.enable(*(probe for each in made for probe in each.placed))
        self._place([each for each in made if not each.placed])
        for each in made:
            refused = next(self._refused(each), None)
            if refused is not None:
                raise _failed(kprobe_of(each.probe), refused)
        keep_order(self._session, [probe for each in self.registrations for probe in each.placed])

    def switch(self, *, on: bool) -> None:
        """Disarm all probes, or arm those that are not disabled; their own states stay."""
        if on == self.enabled:
            return
        self.enabled = on
        wanted = [each for each in self.registrations if not each.disabled]
        if on:
            self._arm(wanted)
        else:
            self._session.remove(*(probe for each in wanted for probe in each.placed))

    def optimize(self, *, on: bool) -> list[str]:
        """Have all probes reached by jumps, or by traps; return what stays as it is, and why."""
        self.optimization = on
        return switch_optimization(self._session, [p for each in self.registrations for p in each.placed], on=on)

    def _find(self, probe: Registered) -> Registration | None:
        made = kprobe_of(probe).registration
        return made if made in self.registrations and made.probe is probe else None

    def _registered(self, probe: Registered) -> Registration:
        made = self._find(probe)
        if made is None:
            raise KprobeError(errno.EINVAL, "it is not registered")
        return made


_registries: "WeakKeyDictionary[Session, Registry]" = WeakKeyDictionary()


def registry(session: "Session") -> Registry:
    """Return the registry of a session."""
    return _registries.setdefault(session, Registry(session))


def _kind(probe: Registered) -> str:
    match probe:
        case Jprobe():
            return "j"
        case Kretprobe():
            return "r"
        case _:
            return "k"


def _dresser(site: Site) -> "Callable[[Probe], None]":
    if site.handler is None:
        return _count
    return (
        dressing_behind(site.handler)
        if site.behind
        else partial(dress_with, facts=site.handler, at_tails=site.at_tails)
    )


def _named_entry(location: Location) -> str:
    if not location.entry:
        raise KprobeError(errno.EADDRNOTAVAIL, f"{location.function} has no name that means it alone")
    return location.entry


def _fields(probe: Registered, location: Location) -> dict[str, Any]:
    """Return what a handler may read of its probe: what the user has put there, and where it is."""
    fields = {**vars(kprobe_of(probe)), **vars(probe)}
    hidden = ("registration", "refusal", "error", "found", "asked_flags")
    return {**{name: each for name, each in fields.items() if name not in hidden}, "addr": location.address}


def _failed(kp: Kprobe, error: KprobeError) -> KprobeError:
    kp.error, kp.refusal = error.detail, error.refusal
    return error


def _forget(made: Registration) -> None:
    kp = kprobe_of(made.probe)
    kp.asked_flags &= ~KPROBE_FLAG_DISABLED
    kp.asked_flags |= KPROBE_FLAG_DISABLED * made.disabled
    kp.registration = None
    if kp.found is not None:
        kp.addr = kp.found = None


def _count(probe: "Probe") -> None:
    """Leave a probe as it is: hits are counted."""
