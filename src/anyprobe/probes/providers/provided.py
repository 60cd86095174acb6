"""Probes of providers other than the session's own one for functions."""

import importlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anyprobe.core.errors import UsageError
from anyprobe.probes.providers.function.probe import Probe

if TYPE_CHECKING:
    from anyprobe.data.snapshots.snapshot import SiteResult
    from anyprobe.probes.providers.base import Attachment, Provider
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.provider import FunctionProvider
    from anyprobe.probes.specs.parts import Spec


@dataclass(eq=False, repr=False)
class ProvidedProbe(Probe):
    """What one spec asked another provider for: it has attachments and no places in functions."""

    provider: "Provider[Any]" = field(kw_only=True)
    attachments: "Sequence[Attachment]" = field(kw_only=True)

    def __repr__(self) -> str:
        """Return the spec and how much of it is attached."""
        armed = sum(each.armed for each in self.attachments)
        return f"<Probe {self.spec}: {armed} of {len(self.attachments)} attached, {len(self.refused)} refused>"

    @property
    def armed(self) -> bool:
        """Whether at least one is attached."""
        return any(each.armed for each in self.attachments)


REGISTRY: dict[str, str] = {}
"""Further providers of all sessions: the first part of their specs, and the module whose ``PROVIDER`` makes one."""

SPLICING = {"usdt": "anyprobe.probes.providers.usdt.provider"}
"""Providers whose places the session's host splices, in one change with those of functions."""


class Providers:
    """The providers of one session beside its own, in the order in which they are asked."""

    def __init__(self, host: "ProbeHost | None" = None) -> None:
        """Have none yet; those of the registries are made for the host, or its process, when a spec asks for them."""
        self._host = host
        self._splicing: dict[str, FunctionProvider] = {}
        self._providers: list[Provider[Any]] = []
        self._made: set[str] = set()

    def add(self, provider: "Provider[Any]") -> None:
        """Ask one more, before those that are there."""
        self._providers.insert(0, provider)

    def splicing(self, spec: "Spec") -> "FunctionProvider":
        """Return what knows the places that a spec means, which the host splices: in functions, if nowhere else."""
        assert self._host is not None
        kind = spec.provider
        if kind not in SPLICING:
            return self._host.functions
        if kind not in self._splicing:
            self._splicing[kind] = importlib.import_module(SPLICING[kind]).PROVIDER(self._host)
        return self._splicing[kind]

    def claiming(self, spec: "Spec") -> "Provider[Any] | None":
        """Return whose spec it is, None for one about functions."""
        head = spec.text.partition(":")[0]
        if head in REGISTRY and head not in self._made:
            self._made.add(head)
            self.add(importlib.import_module(REGISTRY[head]).PROVIDER(self._host and self._host.process))
        return next((each for each in self._providers if each.claims(spec)), None)

    def refuse_handlers(self, specs: "Sequence[Spec]", what: str) -> None:
        """Raise where something is wanted that only functions have."""
        for spec in specs:
            provider = self.claiming(spec)
            if provider is not None:
                raise UsageError(f"{spec.text}: probes of the {provider.name} provider count; {what} functions")

    @staticmethod
    def resolved(provider: "Provider[Any]", spec: "Spec") -> ProvidedProbe:
        """Return the probe that a spec means, not armed yet."""
        found = provider.resolve(spec)
        return ProvidedProbe(spec, refused=list(found.refused), provider=provider, attachments=tuple(found.attachments))


def attach(probes: Sequence[Probe]) -> list[str]:
    """Attach probes of other providers, or none of them; return what is to be told."""
    told: list[str] = []
    done: list[ProvidedProbe] = []
    try:
        for probe in provided(probes):
            told += probe.provider.attach(probe.attachments)
            done.append(probe)
    except BaseException:
        detach(done)
        raise
    return told


def detach(probes: Sequence[Probe]) -> list[str]:
    """Detach probes of other providers; return what had to stay."""
    told: list[str] = []
    for probe in provided(probes):
        told += probe.provider.detach(probe.attachments) if probe.armed else ()
    return told


def read(probes: Sequence[Probe]) -> "list[SiteResult]":
    """Return what probes of other providers have counted."""
    return [each for probe in provided(probes) for each in probe.provider.read(probe.attachments)]


def provided(probes: Sequence[Probe]) -> list[ProvidedProbe]:
    """Return those probes that another provider has."""
    return [probe for probe in probes if isinstance(probe, ProvidedProbe)]
