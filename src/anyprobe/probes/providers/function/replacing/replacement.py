"""Functions that are replaced: all of a set in one change, until that is taken back."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Self, overload

from anyprobe.core.errors import SiteRefused, SpecError, TargetExited, UsageError
from anyprobe.core.refusal import Refusal
from anyprobe.probes.providers.function.handlers.points import HandlerAt
from anyprobe.probes.providers.function.replacing.callers import refuse_reliant
from anyprobe.probes.providers.function.replacing.instead import Instead, check, of_program, of_shared_object
from anyprobe.probes.providers.function.replacing.moment import Moment
from anyprobe.probes.providers.function.replacing.quiet import Code, Functions, code_of_site
from anyprobe.probes.providers.function.replacing.shared_object import SharedObject
from anyprobe.probes.specs.spec import Spec, parsed

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.handlers.handling import Handling
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.probe import Probe
    from anyprobe.probes.providers.function.resolve import ResolvedSite

TIMEOUT = 5.0
"""Seconds for which a moment without a thread inside is waited for."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A function, or several, and what is called instead."""

    spec: Spec
    replaced: "Sequence[ResolvedSite]"
    by: Instead

    @property
    def code(self) -> "list[Code]":
        """Where the code is of what is replaced."""
        return [code for site in self.replaced for code in code_of_site(site)]


class When(NamedTuple):
    """At which moments functions may be replaced, or called themselves again."""

    quiet: bool = False
    """Whether no thread may be inside of them."""
    outside: "Sequence[str | Spec]" = ()
    """More functions that no thread may be inside of."""
    timeout: float = TIMEOUT

    @property
    def is_chosen(self) -> bool:
        """Whether some moments do not suit."""
        return bool(self.quiet or self.outside)

    def scope(self, host: "ProbeHost", moment: Moment, code: "Iterable[Code]") -> AbstractContextManager[None]:
        """Return the scope in which a change is made as a whole, if the session may stop the program for that.

        Args:
            host: The session.
            moment: What the change is asked for.
            code: That of the functions themselves.

        """
        if host.options.live:
            return nullcontext()
        if self.is_chosen:
            sites = [site for spec in parsed(tuple(self.outside)) for site in host.resolve(spec)[0]]
            moment.wait_for(
                Functions(host, [*code, *(each for site in sites for each in code_of_site(site))]), self.timeout
            )
        return host.splicing.as_a_whole(moment)


class Replacement(Sequence["Probe"]):
    """Functions that are replaced together: a sequence of probes, and a context manager that takes it back.

    Calls that are inside of a function when it is replaced, or taken back, go on and end where they are.
    """

    def __init__(
        self, host: "ProbeHost", pairs: Sequence[Pair], probes: "Sequence[Probe]", remove: "Callable[..., None]"
    ) -> None:
        """Take what is in place; ``remove`` takes probes out."""
        self._host, self._remove = host, remove
        self.pairs, self.probes = pairs, probes

    @overload
    def __getitem__(self, at: int) -> "Probe": ...

    @overload
    def __getitem__(self, at: slice) -> "Sequence[Probe]": ...

    def __getitem__(self, at: int | slice) -> "Probe | Sequence[Probe]":
        """Return the probe of one pair, in their order."""
        return self.probes[at]

    def __len__(self) -> int:
        """Return how many pairs there are."""
        return len(self.probes)

    def __enter__(self) -> Self:
        """Return it."""
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        """Take it back, whatever happened."""
        if self.active and not self._host.is_over:
            with suppress(TargetExited):
                self.revert()

    def __repr__(self) -> str:
        """Return what is replaced by what."""
        pairs = ", ".join(f"{pair.spec.text} by {pair.by.name}" for pair in self.pairs)
        return f"<Replacement: {pairs}{'' if self.active else ', taken back'}>"

    @property
    def active(self) -> bool:
        """Whether the functions are replaced now."""
        return any(probe.armed for probe in self.probes)

    def is_of(self, pairs: Sequence[Pair]) -> bool:
        """Return whether it has replaced the same functions by the same before."""
        return [(pair.spec, pair.by.start) for pair in self.pairs] == [(pair.spec, pair.by.start) for pair in pairs]

    def revert(
        self, *, when_quiet: bool = False, outside: "Sequence[str | Spec]" = (), timeout: float = TIMEOUT
    ) -> None:
        """Have all of the functions called themselves again, in one change.

        Args:
            when_quiet: only at a moment when no thread is inside of what is called instead.
            outside: more functions that no thread may be inside of then, as for ``Session.replace``.
            timeout: for how many seconds such a moment is waited for.

        Raises:
            ThreadInside: there was none; all stays replaced.
        """
        when = When(when_quiet, outside, timeout)
        code = (code for pair in self.pairs for code in pair.by.code)
        with self._host.lock, when.scope(self._host, Moment(self._host.symbols), code):
            self._remove(*self.probes)


class Replacements:
    """What is replaced in one session."""

    def __init__(
        self, host: "ProbeHost", handling: "Callable[[], Handling]", enable: "Callable[..., None]",
        remove: "Callable[..., None]",
    ) -> None:  # fmt: skip
        """Have replaced nothing yet; ``enable`` and ``remove`` put probes in again, and take them out."""
        self._host, self._handling, self._enable, self._remove = host, handling, enable, remove
        self._made: list[Replacement] = []

    def replace(self, pairs: "Mapping[str | Spec, str | Spec | SharedObject]", when: "When") -> Replacement:
        """Replace functions, all in one change or none; see ``Session.replace``."""
        host = self._host
        host.check_attached()
        if not host.unsafe:
            raise UsageError("replace changes what the program computes: unsafe=True, where the session is opened")
        if not pairs:
            raise UsageError("at least one function is needed")
        if host.options.live and (when.is_chosen or len(pairs) > 1):
            raise UsageError("functions are replaced together in a stop of all threads: without live")
        found = self._pairs(pairs)
        known = next((made for made in self._made if made.is_of(found)), None)
        moment = Moment(host.symbols)
        with host.lock, when.scope(host, moment, (code for pair in found for code in pair.code)):
            if known is not None:  # as it was: sets may come and go ten thousand times
                moment.probes += known.probes
                self._enable(*known.probes)
                return Replacement(host, found, known.probes, self._remove)
            made = Replacement(host, found, self._placed(found, moment), self._remove)
        self._made.append(made)
        return made

    def _placed(self, pairs: Sequence[Pair], moment: Moment) -> "Sequence[Probe]":
        host = self._host
        configure = {
            pair.spec: self._handling().configuring(HandlerAt(function=pair.by.handler, specs=(pair.spec,)))
            for pair in pairs
        }

        def assign(probe: "Probe") -> None:
            moment.probes.append(probe)
            configure[probe.wanted](probe)

        self._handling().place_waiting()
        try:
            probes = host.place_made(list(configure), assign)
            moment.check_planned()
        except BaseException:
            host.probes = [probe for probe in host.probes if probe not in moment.probes]
            raise
        return probes

    def _pairs(self, pairs: "Mapping[str | Spec, str | Spec | SharedObject]") -> list[Pair]:
        """Return what is asked for, without what would go round for ever or twice; what is missing is loaded."""
        host = self._host
        active = [pair for made in self._made if made.active for pair in made.pairs]
        known = {site.address for pair in active for site in pair.replaced}
        replaced: dict[Spec, Sequence[ResolvedSite]] = {}
        for spec in parsed(tuple(pairs)):
            sites, refused = host.resolve(spec)
            for name, why in refused:
                raise SiteRefused(Refusal(why.reason, why.address, f"{name}: {why.detail}; nothing was replaced"))
            for site in sites:
                if site.kind != "entry":
                    raise SpecError(spec.text, 0, "this names no function that could be replaced")
                if site.address in known:
                    raise UsageError(f"{site.canonical} is replaced already: take that back first")
                known.add(site.address)
                refuse_reliant(host, site)
            replaced[spec] = sites
        for pair in active:
            if any(
                site.function.start + site.object.bias == pair.by.start for sites in replaced.values() for site in sites
            ):
                raise UsageError(f"{pair.by.name} replaces {pair.spec.text}, so it cannot be replaced itself")
        there: dict[Spec, Instead] = {}
        for (spec, sites), by in zip(replaced.items(), pairs.values(), strict=True):
            if isinstance(by, SharedObject):
                check(by, spec, sites)
            else:
                (function,) = parsed((by,))
                there[spec] = of_program(host, function, spec, sites)
        # what is loaded stays: nothing is, before all that was asked for makes sense
        found = [
            Pair(spec, sites, of_shared_object(host, by, sites[0]) if isinstance(by, SharedObject) else there[spec])
            for (spec, sites), by in zip(replaced.items(), pairs.values(), strict=True)
        ]
        for pair in found:
            if pair.by.start in known:
                raise UsageError(f"{pair.by.name} is itself replaced, so nothing can be replaced by it")
        return found
