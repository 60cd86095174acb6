"""The state of kprobes that are registered in a session on the running kernel."""

import errno
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from typing import TYPE_CHECKING

from anyprobe.core.errors import KernelRefused, KprobeError, TargetError
from anyprobe.data.aggregates.aggregations import Count
from anyprobe.kprobes.djprobes import named
from anyprobe.kprobes.kernel import handlers
from anyprobe.kprobes.kernel.places import after, check_djprobe, locate, refused
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
from anyprobe.probes.providers.kernel.mechanisms import KPROBE, SPLICE
from anyprobe.probes.providers.kernel.places.sites import KernelSite
from anyprobe.target.kernel import kprobelist, switches
from anyprobe.target.kernel.kprobelist import ListedKprobe

if TYPE_CHECKING:
    from anyprobe.probes.providers.kernel.handlers import KernelHandler
    from anyprobe.probes.providers.kernel.probe import KernelProbe
    from anyprobe.probes.providers.kernel.session import KernelSession

    Place = tuple[KernelSite, KernelHandler | None]
    """Where a handler runs; without one hits are counted."""

_numbers = count(1)
_FLAGS = {"GONE": KPROBE_FLAG_GONE, "OPTIMIZED": KPROBE_FLAG_OPTIMIZED}
_ENDBR_BYTES = 4


@dataclass(eq=False)
class KernelRegistration:
    """A kprobe in the kernel."""

    session: "KernelSession"
    probe: Registered
    kind: str
    """``k``, ``j`` or ``r``, as in the kernel's list."""
    site: KernelSite
    disabled: bool = False
    placed: "list[KernelProbe]" = field(default_factory=list)
    """The first one's hits are those of the registration."""
    returns: "list[KernelProbe]" = field(default_factory=list)
    """What sees the calls' ends for a kretprobe."""
    unfollowed: Count | None = None
    """Calls that found no instance of a kretprobe."""
    kept: tuple[int, int] | None = None
    """Hits and missed hits, once the session is over."""

    @property
    def probes(self) -> "list[KernelProbe]":
        """All of its probes: the ends of calls first, since a call whose beginning alone is seen would stay."""
        return [*self.returns, *self.placed]

    def flags(self) -> int:
        """Return the kernel's flags for its state."""
        return sum({_FLAGS.get(flag, 0) for flag in self.states()}) | KPROBE_FLAG_DISABLED * self.disabled

    def states(self) -> tuple[str, ...]:
        """Return what the kernel's list says of it, or would say of a splice: that is a jump, until its module goes."""
        if self.probes and all(each.mechanisms == [SPLICE.name] for each in self.probes):
            gone = any(not site.armed for probe in self.probes if probe.armed for site in probe.results())
            return ("GONE",) if gone else ("OPTIMIZED",) * all(each.armed for each in self.probes)
        return tuple(dict.fromkeys(flag for line in self.listed() for flag in line.flags))

    def listed(self) -> list[ListedKprobe]:
        """Return the kernel's lines of it; nothing where they cannot be read, or it is no kprobe of the kernel's."""
        if not any(KPROBE.name in name.replace("kret", "k") for each in self.probes for name in each.mechanisms):
            return []
        kind = "r" if self.kind == "r" else "k"
        try:
            lines = kprobelist.kprobes()
        except TargetError:
            return []
        places = {self.site.address, self.site.address + _ENDBR_BYTES * (not self.site.offset)}
        return [each for each in lines if each.type == kind and each.address in places]

    def hits(self) -> int:
        """Return the hits at the place, without the calls that are not followed."""
        return self.counted()[0]

    def missed(self) -> int:
        """Return what the kernel missed, and the calls that found no instance."""
        return self.counted()[1]

    def counted(self) -> tuple[int, int]:
        """Return the hits and the missed ones."""
        if self.kept is not None:
            return self.kept
        hits = sum(site.hits for probe in self.placed[:1] for site in probe.results())
        missed = sum(site.nmissed for probe in (*self.placed[:1], *self.returns) for site in probe.results())
        unfollowed = self._unfollowed()
        return hits - unfollowed, missed + unfollowed

    def _unfollowed(self) -> int:
        if self.unfollowed is None:
            return 0
        cell = self.session.collection.numbers(self.unfollowed).get(())
        return 0 if cell is None else cell.count


class KernelRegistry:
    """The kprobes of one session on the kernel, in order of registration."""

    def __init__(self, session: "KernelSession") -> None:
        """Begin without any."""
        self._session = session
        self._spliced = handlers.is_spliced(session)
        """Whether all are splices, in place of the kernel's own kprobes."""
        self.registrations: list[KernelRegistration] = []
        session.endings.append(self._keep_counts)

    # -- the kernel's switches, which are everybody's

    @property
    def enabled(self) -> bool:
        """Whether kprobes are armed at all."""
        return switches.ARMED.read() is not False

    @property
    def optimization(self) -> bool:
        """Whether kprobes are reached by jumps where that is possible."""
        return switches.OPTIMIZATION.read() is True

    def switch(self, *, on: bool) -> None:
        """Arm or disarm all kprobes of the kernel."""
        switches.ARMED.write(on=on)

    def optimize(self, *, on: bool) -> list[str]:
        """Have the kernel's kprobes reached by jumps or by traps; nothing is known to stay as it is."""
        switches.OPTIMIZATION.write(on=on)
        return []

    # -- registering

    def register(self, probes: Sequence[Registered]) -> None:
        """Register all probes or none; raise ``KprobeError`` with what stands against the first bad one."""
        made: list[KernelRegistration] = []
        try:
            for probe in probes:
                made.append(self._described(probe, made))
            for each in made:
                if each.disabled:
                    self._try(each)
            self._place([each for each in made if not each.disabled])
        except BaseException as error:
            if isinstance(error, KprobeError):
                for probe in probes:
                    kprobe_of(probe).error = kprobe_of(probe).error or f"another one is refused: {error.detail}"
            for each in made:
                self._forget(each)
                self._session.forget(*each.probes)
            raise
        self.registrations += made

    def _described(self, probe: Registered, before: Sequence[KernelRegistration]) -> KernelRegistration:
        """Look up one probe; nothing is attached."""
        kp = kprobe_of(probe)
        kp.error, kp.refusal, kp.counted = "", None, (0, 0)
        if isinstance(probe, Djprobe):
            kp.addr = probe.addr
        if kp.registration is not None and not _is_over(kp):
            raise _failed(kp, KprobeError(errno.EINVAL, "it is registered already"))
        kp.registration = None
        try:
            handlers.check(probe, spliced=self._spliced)
            site = locate(self._session, kp, entry=isinstance(probe, Jprobe | Kretprobe))
            if isinstance(probe, Djprobe):
                near = [each.site for each in (*before, *self.registrations) if isinstance(each.probe, Djprobe)]
                check_djprobe(probe, site, near)
        except KprobeError as error:
            raise _failed(kp, named(error) if isinstance(probe, Djprobe) else error) from error
        kind = "j" if isinstance(probe, Jprobe) else "r" if isinstance(probe, Kretprobe) else "k"
        made = KernelRegistration(self._session, probe, kind, site)
        made.disabled = bool(kp.asked_flags & KPROBE_FLAG_DISABLED)
        kp.given = kp.addr
        kp.addr, kp.registration = site.address, made
        return made

    def _try(self, made: KernelRegistration) -> None:
        """See that the kernel takes a probe at a place; nothing stays there."""
        with _telling(made):
            if self._spliced:
                (probe,) = self._session.splice_each([(made.site, None)])
            else:
                probe = self._session.arm_sites(made.site.as_function, [made.site], KPROBE.name, None)
            self._session.forget(probe)
            if probe.refused:
                raise refused(probe.refused[0][1])

    def _place(self, made: Sequence[KernelRegistration]) -> None:
        """Attach probes, splices together; raise ``KprobeError`` where the kernel does not take all of one."""
        places: list[tuple[KernelRegistration, Place]] = []
        for each in made:
            with _telling(each):
                own = self._places(each)
                if self._spliced:
                    places += [(each, place) for place in own]
                else:
                    with self._session.together():  # the post handler begins first: no pre handler runs without it
                        for site, handler in own:
                            each.placed.append(self._session.arm_sites(site.as_function, [site], KPROBE.name, handler))
        if places:
            with _telling(places[0][0]):
                placed = self._session.splice_each([place for _, place in places])
            for (each, _), probe in zip(places, placed, strict=True):
                each.placed.append(probe)
        for each in made:
            with _telling(each):
                if isinstance(each.probe, Kretprobe):
                    self._place_kretprobe(each, each.probe)
                self._see_accepted(each)

    def _places(self, made: KernelRegistration) -> "list[Place]":
        """Return where which handlers of a probe at an instruction run; nothing of a kretprobe."""
        session, site = self._session, made.site
        found: list[Place] = []
        match made.probe:
            case Kprobe() as kp:
                found.append((site, handlers.of_instruction(session, kp, site)))
                if kp.post_handler is not None:
                    # a splice at an entry is after what the kernel needs there, where the post handler runs anyway
                    is_there = self._spliced and site.kind == "entry"
                    found.append((site if is_there else after(session, site), handlers.of_post(session, kp, site)))
            case Djprobe() as djp:
                found.append((site, handlers.of_instruction(session, djp, site)))
            case Jprobe() as jp:
                found.append((site, handlers.of_jprobe(session, jp)))
        for place, handler in found:
            if handler is not None:
                handler.check(place, session.type_of(place))
        return found

    @staticmethod
    def _see_accepted(made: KernelRegistration) -> None:
        """Raise ``KprobeError`` for the first part of a probe that was refused."""
        for probe in made.probes:
            if probe.refused:
                error = refused(probe.refused[0][1])
                raise named(error) if isinstance(made.probe, Djprobe) else error

    def _place_kretprobe(self, made: KernelRegistration, probe: Kretprobe) -> None:
        """Follow calls by the cheapest mechanism, or by kprobes where handlers ask for registers."""
        for mechanism in (SPLICE.name,) if self._spliced else (None, KPROBE.name):
            made.unfollowed = Count(f"{made.site.name}: calls not followed, kretprobe {next(_numbers)}")
            call, leave = handlers.of_kretprobe(self._session, probe, made.site, made.unfollowed)
            call.mechanism = mechanism
            try:
                call.ret(leave)
            finally:
                made.placed, made.returns = call.entry, call.returns
            if not any(each.refused for each in made.probes):
                return
            if mechanism is None:
                self._session.forget(*made.probes)
                made.placed, made.returns = [], []

    # -- changing

    def unregister(self, probes: Sequence[Registered]) -> None:
        """Remove probes; the ``addr`` of those that are not registered is cleared."""
        for probe in probes:
            made = self._find(probe)
            if made is None:
                kprobe_of(probe).addr = None
                continue
            self._detach(made)
            kp = kprobe_of(probe)
            kp.counted = made.counted()
            self.registrations.remove(made)
            self._forget(made)

    def disable(self, *probes: Registered) -> None:
        """Detach probes; they stay registered."""
        for each in map(self._registered, probes):
            self._detach(each)
            each.disabled = True

    def enable(self, *probes: Registered) -> None:
        """Attach disabled probes again."""
        for each in map(self._registered, probes):
            if not each.disabled:
                continue
            if each.probes:
                self._attach_again(each)
            else:
                self._place([each])
            each.disabled = False

    def _attach_again(self, made: KernelRegistration) -> None:
        """Attach all of it, or nothing."""
        try:
            with _telling(made):
                if isinstance(made.probe, Kprobe):
                    with self._session.together():
                        self._session.enable(*made.placed)
                else:
                    self._session.enable(*made.probes)
                self._see_accepted(made)
        except BaseException:
            self._detach(made)
            raise

    def _detach(self, made: KernelRegistration) -> None:
        """Detach: the beginnings of calls first, so that those under way are seen to their ends as far as they come."""
        self._session.remove(*made.placed)
        self._session.remove(*made.returns)

    def _keep_counts(self) -> None:
        """Have what was counted readable when the session is over."""
        for each in self.registrations:
            each.kept = each.counted()

    def _forget(self, made: KernelRegistration) -> None:
        self._detach(made)
        kp = kprobe_of(made.probe)
        kp.asked_flags = kp.asked_flags & ~KPROBE_FLAG_DISABLED | KPROBE_FLAG_DISABLED * made.disabled
        kp.registration = None
        kp.addr, kp.given = kp.given, None

    def _find(self, probe: Registered) -> KernelRegistration | None:
        made = kprobe_of(probe).registration
        return made if isinstance(made, KernelRegistration) and made in self.registrations else None

    def _registered(self, probe: Registered) -> KernelRegistration:
        made = self._find(probe)
        if made is None:
            raise _failed(kprobe_of(probe), KprobeError(errno.EINVAL, "it is not registered"))
        return made


def _is_over(kp: Kprobe) -> bool:
    """Return whether the session in which a probe was registered is over."""
    session = getattr(kp.registration, "session", None)
    return session is None or session.detached


@contextmanager
def _telling(made: KernelRegistration) -> Iterator[None]:
    """Have a probe tell why the block has failed; what the kernel refuses is a ``KprobeError`` then."""
    try:
        yield
    except KprobeError as error:
        raise _failed(kprobe_of(made.probe), error) from error
    except KernelRefused as failure:
        raise _failed(kprobe_of(made.probe), KprobeError(failure.errno, str(failure))) from failure


def _failed(kp: Kprobe, error: KprobeError) -> KprobeError:
    kp.error, kp.refusal = error.detail, error.refusal
    return error
