"""Handlers at USDT markers: a marker's arguments are somewhere else at each place, so there are variants."""

import types
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING

from anyprobe.core.errors import UsageError
from anyprobe.handlers.types.annotations import Type
from anyprobe.handlers.types.marker import MarkerAt
from anyprobe.probes.providers.function.handlers.actions import call_at
from anyprobe.probes.providers.function.handlers.points import HandlerAt, Point
from anyprobe.probes.providers.function.probe import Probe
from anyprobe.probes.providers.usdt.arguments import kinds_at, marker_at

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.resolve import ResolvedSite
    from anyprobe.splice.codegen.handlers.facts import HandlerFacts

_POINTS = (Point.ENTRY, Point.BEFORE)


class MarkerHandler:
    """One handler at the places of markers, compiled once for each way in which their arguments are passed."""

    def __init__(self, at: HandlerAt, prepared: "Callable[[HandlerAt], HandlerFacts]") -> None:
        """Compile by ``prepared``; nothing is done yet."""
        if at.point not in _POINTS or at.call is not None:
            raise UsageError("a marker is one place, without return: use session.entry or session.at")
        self._at, self._prepared = replace(at, point=Point.BEFORE, known=None), prepared
        self._kinds: tuple[Type | None, ...] | None = None
        self._variants: dict[MarkerAt, HandlerFacts] = {}

    def compile(self, sites: "Sequence[ResolvedSite]") -> None:
        """Compile what some places need, before anything is touched."""
        if self._kinds is None and sites:
            self._kinds = kinds_at(sites)
        for site in sites:
            self._facts(site)

    def equip(self, probe: Probe) -> None:
        """Have a probe's places call the handler."""
        self.compile([place.site for place in probe.places])
        for place in probe.places:
            call_at(place, self._facts(place.site))

    def _facts(self, site: "ResolvedSite") -> "HandlerFacts":
        marker = self._marker(site)
        facts = self._variants.get(marker)
        if facts is None:
            facts = self._variants[marker] = self._prepared(replace(self._at, marker=marker))
        return facts

    def _marker(self, site: "ResolvedSite") -> MarkerAt:
        if not _takes_arguments(self._at.function):
            return MarkerAt("", (), ())
        own = kinds_at([site])
        kinds = (common or kind for common, kind in zip_longest(self._kinds or (), own))
        return marker_at(site, tuple(kinds))


def _takes_arguments(function: object) -> bool:
    """Return whether a handler has parameters besides ``ctx``; one in C has none."""
    if not isinstance(function, types.FunctionType):
        return False
    code = function.__code__
    return code.co_argcount > (code.co_varnames[:1] == ("ctx",))
