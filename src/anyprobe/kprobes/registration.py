"""The state of registered probes: compiled handlers, places in the process, what is enabled."""

import errno
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anyprobe.core.errors import KprobeError, NoSuchProcess, TargetExited
from anyprobe.core.refusal import Reason
from anyprobe.data.aggregates.aggregations import Count
from anyprobe.journal.registrations import Entry
from anyprobe.kprobes.compiling import Compiler, Site
from anyprobe.kprobes.djprobes import check_assumptions, check_size, named
from anyprobe.kprobes.lookup import Location, locate, locations
from anyprobe.kprobes.structures import (
    KPROBE_FLAG_DISABLED,
    KPROBE_FLAG_GONE,
    KPROBE_FLAG_OPTIMIZED,
    Djprobe,
    Jprobe,
    Kprobe,
    Kretprobe,
    Registered,
    kprobe_of,
)
from anyprobe.probes.providers.function.reading import BankValues
from anyprobe.probes.providers.function.wanted.replanning import TRAPS, keep_order, switch_optimization
from anyprobe.splice.plan.splices import Strategy

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.probe import Probe
    from anyprobe.probes.session import Session


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
    """The calls that found no instance, if it is a kretprobe."""
    disabled: bool = False
    instances: tuple[Location, ...] = ()
    """All places of it: several, where inlined instances are probed, too."""
    kept: tuple[int, int] | None = None
    """Hits and missed hits, once the session is over."""

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

    def entries(self) -> list[Entry]:
        """Return its lines in the registrations, for those who look from outside."""
        return [Entry(each.address, self.kind, self.disabled, self.gone) for each in self.instances]

    def flags(self) -> int:
        """Return the kernel's flags for its state."""
        found = KPROBE_FLAG_DISABLED * self.disabled | KPROBE_FLAG_OPTIMIZED * self.optimized
        return found | KPROBE_FLAG_GONE * self.gone

    def hits(self, values: BankValues | None = None) -> int:
        """Return the hits at the first place, without the missed ones."""
        if self.kept is not None:
            return self.kept[0]
        values = values or BankValues()
        seen = sum(values.hits(place.hook) for probe in self._counting() for place in probe.places)
        return seen - self._not_followed() - self._unreplaced(values)

    def missed(self, values: BankValues | None = None) -> int:
        """Return the hits that ran no handler, and the calls that found no instance."""
        if self.kept is not None:
            return self.kept[1]
        values = values or BankValues()
        missed = sum(values.missed(place.hook) for probe in self._counting() for place in probe.places)
        return missed + self._not_followed() + self._unreplaced(values)

    def counted(self, values: BankValues) -> tuple[int, int]:
        """Return the hits and the missed ones."""
        return self.hits(values), self.missed(values)

    def _not_followed(self) -> int:
        """Return how many calls found no instance."""
        return 0 if self.unfollowed is None else sum(view.result().total.count for view in self.unfollowed.views)

    def _unreplaced(self, values: BankValues) -> int:
        """Return how many calls were not followed, since their return address could not be replaced."""
        return sum(values.unreplaced(place.hook) for probe in self.placed for place in probe.places)

    def _counting(self) -> "list[Probe]":
        """Return the probes whose hits are those of the registration: the first of each place."""
        each = len(self.sites) // max(len(self.instances), 1)
        return self.placed[:: max(each, 1)]


class Registry:
    """The probes of one session, in order of registration."""

    def __init__(self, session: "Session") -> None:
        """Begin without any."""
        self._session = session
        self.registrations: list[Registration] = []
        self.enabled = True
        """Whether probes are armed at all; their own states stay what they are."""
        self._compiler = Compiler(session)
        session.host.endings.append(self._keep_counts)

    @property
    def optimization(self) -> bool:
        """Whether probes are reached by jumps, and not by traps."""
        return self._session.splicing.planning.allowed != TRAPS

    # -- registering

    def register(self, probes: Sequence[Registered]) -> None:
        """Register all probes or none; raise ``KprobeError`` with what stands against the first bad one."""
        self._session.objects.refresh()
        made: list[Registration] = []
        try:
            for probe in probes:
                made.append(self._made(probe, made))
            if self.enabled:
                self._place([each for each in made if not each.disabled])
        except BaseException:
            for each in made:
                _forget(each)
            raise
        self.registrations += made
        for each in made:
            self._session.splicing.registrations.enter(each, each.entries)
        self._session.splicing.registrations.write()

    def _made(self, probe: Registered, before: Sequence[Registration]) -> Registration:
        """Look up and compile one probe; nothing is touched."""
        kp = kprobe_of(probe)
        kp.error, kp.refusal, kp.counted = "", None, (0, 0)
        if isinstance(probe, Djprobe):
            kp.addr = probe.addr
        earlier = registration_of(probe)
        if earlier is not None and earlier.session.detached:
            _forget(earlier)
        if kp.registration is not None:
            raise _failed(kp, KprobeError(errno.EINVAL, "it is registered already"))
        try:
            location, *others = self._locations(probe)
            if isinstance(probe, Djprobe):
                self._check(probe, location, before)
            sites, unfollowed = self._compiler.sites(probe, location)
            sites += [site for each in others for site in self._compiler.sites(probe, each)[0]]
        except KprobeError as error:
            raise _failed(kp, named(error) if isinstance(probe, Djprobe) else error) from error
        made = Registration(self._session, probe, _kind(probe), location, sites, unfollowed=unfollowed)
        made.instances = (location, *others)
        made.disabled = bool(kp.asked_flags & KPROBE_FLAG_DISABLED)
        kp.given = kp.addr
        kp.addr, kp.registration = location.address, made
        return made

    def _locations(self, probe: Registered) -> list[Location]:
        kp = kprobe_of(probe)
        if not kp.inlined:
            return [locate(self._session, kp, entry=isinstance(probe, Jprobe | Kretprobe))]
        if not isinstance(probe, Kprobe):
            raise KprobeError(errno.EINVAL, "inlined instances have neither parameters nor returns")
        return locations(self._session, kp)

    def _check(self, probe: Djprobe, location: Location, others: Sequence[Registration]) -> None:
        """Check what a djprobe asks of the code."""
        if self._session.splicing.planning.allowed == TRAPS:
            raise KprobeError(errno.EINVAL, "optimization is off, and a djprobe is a jump")
        check_size(location.code, location.link, probe.size)
        if probe.strict:
            near = [each.location.address for each in (*others, *self.registrations) if isinstance(each.probe, Djprobe)]
            bias = location.address - location.link
            check_assumptions(location.code, location.link, probe.size, [address - bias for address in near])

    def _place(self, made: Sequence[Registration]) -> None:
        """Arm what is not armed yet, in one change; where something cannot be, nothing is."""
        sites = [(each, site) for each in made for site in each.sites]
        if not sites:
            return
        order = iter(sites)

        def equip(probe: "Probe") -> None:
            made, site = next(order)
            own = site.equipper()
            probe.equip, probe.part_of = own, made
            own(probe)

        specs, known = [site.spec for _, site in sites], [site.at for _, site in sites]
        placed = self._session.place_made(specs, equip, known, follow=False)  # as the kernel: what is gone stays gone
        for (each, _), probe in zip(sites, placed, strict=True):
            each.placed.append(probe)
        for each in made:
            refused = next(self._refused(each), None)
            if refused is not None:
                self._session.remove(*placed)
                raise _failed(kprobe_of(each.probe), named(refused) if isinstance(each.probe, Djprobe) else refused)

    def _refused(self, made: Registration) -> Iterator[KprobeError]:
        for probe in made.placed:
            verdicts = [why for _, why in probe.refused if why.reason is not Reason.NO_EXIT]  # ``exit``: nothing to see
            verdicts += [place.hook.refusal for place in probe.places if place.hook.refusal is not None]
            for why in verdicts:
                unsupported = why.reason is Reason.RETURN_ADDRESS
                yield KprobeError(errno.EOPNOTSUPP if unsupported else errno.EINVAL, str(why), why)

    # -- changing

    def unregister(self, probes: Sequence[Registered]) -> None:
        """Remove probes in one change; the ``addr`` of those that are not registered is cleared."""
        known: dict[Registration, None] = {}
        for probe in probes:
            made = self._find(probe)
            if made is None:
                kprobe_of(probe).addr = None
            else:
                known[made] = None
        with suppress(TargetExited, NoSuchProcess):
            placed = [each for made in known for each in made.placed]
            self._session.remove(*placed)
            self._session.host.trampolines.silence(self._session.splicing.holdings.code_regions, placed)
        self.registrations = [made for made in self.registrations if made not in known]
        values = BankValues()
        counted = [made.counted(values) for made in known]
        for made, numbers in zip(known, counted, strict=True):
            _forget(made)
            kprobe_of(made.probe).counted = numbers
        self._session.splicing.registrations.leave(known)
        self._session.splicing.registrations.write()

    def _keep_counts(self) -> None:
        """Have what was counted readable when the session is over."""
        values = BankValues()
        for each in self.registrations:
            each.kept = each.counted(values)

    def disable(self, *probes: Registered) -> None:
        """Disarm probes in one change; they stay registered."""
        made = [each for each in map(self._registered, probes) if not each.disabled]
        self._session.remove(*(probe for each in made for probe in each.placed))
        self._note(made, disabled=True)

    def enable(self, *probes: Registered) -> None:
        """Arm disabled probes again, in one change."""
        made = [each for each in map(self._registered, probes) if each.disabled]
        if made and self.enabled:
            self._arm(made)
        self._note(made, disabled=False)

    def _note(self, made: Sequence[Registration], *, disabled: bool) -> None:
        """Change the state of probes, and have others see it."""
        for each in made:
            each.disabled = disabled
        self._session.splicing.registrations.note(made)
        self._session.splicing.registrations.write()

    def _arm(self, made: Sequence[Registration]) -> None:
        """Arm probes that are registered, so that all run in order of registration."""
        self._session.enable(*(probe for each in made for probe in each.placed))
        self._place([each for each in made if not each.placed])
        for each in made:
            refused = next(self._refused(each), None)
            if refused is not None:
                raise _failed(kprobe_of(each.probe), refused)
        keep_order(self._session.host, [probe for each in self.registrations for probe in each.placed])

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
        return switch_optimization(self._session.host, [p for each in self.registrations for p in each.placed], on=on)

    def _find(self, probe: Registered) -> Registration | None:
        made = registration_of(probe)
        mine = made is not None and made.session is self._session
        return made if made is not None and mine and (made.probe is probe or kprobe_of(made.probe) is probe) else None

    def _registered(self, probe: Registered) -> Registration:
        made = self._find(probe)
        if made is None:
            raise _failed(kprobe_of(probe), KprobeError(errno.EINVAL, "it is not registered"))
        return made


def registration_of(probe: Registered) -> Registration | None:
    """Return the registration of a probe, in whatever session, while there is one."""
    made = kprobe_of(probe).registration
    assert made is None or isinstance(made, Registration)
    return made


_REGISTRY = "kprobes"


def registry(session: "Session") -> Registry:
    """Return the registry of a session, which lives and dies with it."""
    facades = session.host.facades
    found: Registry = facades.get(_REGISTRY) or Registry(session)
    facades[_REGISTRY] = found
    return found


def _kind(probe: Registered) -> str:
    match probe:
        case Jprobe():
            return "j"
        case Kretprobe():
            return "r"
        case _:
            return "k"


def _failed(kp: Kprobe, error: KprobeError) -> KprobeError:
    kp.error, kp.refusal = error.detail, error.refusal
    return error


def _forget(made: Registration) -> None:
    kp = kprobe_of(made.probe)
    kp.asked_flags &= ~KPROBE_FLAG_DISABLED
    kp.asked_flags |= KPROBE_FLAG_DISABLED * made.disabled
    kp.registration = None
    kp.addr, kp.given = kp.given, None
