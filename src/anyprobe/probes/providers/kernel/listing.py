"""What could be probed in the kernel: sites with the mechanisms for each, and with the types of parameters.

Which mechanisms this kernel takes is tried, each at a system call that does nothing, and taken away at once. What is to
be listed is not touched, but for single instructions, events and places in files, of which only the kernel itself says,
and for some functions that ftrace does not know.
"""

from collections.abc import Sequence
from typing import Any

from anyprobe.core.errors import TargetError
from anyprobe.core.refusal import Refusal
from anyprobe.data.findings.explanation import ListedSite
from anyprobe.probes.providers.kernel import mechanisms, trials
from anyprobe.probes.providers.kernel.attacher import Attacher
from anyprobe.probes.providers.kernel.counters import Counters
from anyprobe.probes.providers.kernel.mechanisms import FENTRY, KPROBE, MULTI, Mechanism
from anyprobe.probes.providers.kernel.places.sites import FunctionType, KernelNames, KernelSite
from anyprobe.probes.providers.kernel.places.specs import KernelSpec, Provider
from anyprobe.target.kernel import tracefs
from anyprobe.target.kernel.types import Void

_RESULT_OF_A_CALL = "long"
_MOST_PLACED = 50
"""Functions without a call of ftrace at which a kprobe is tried: that takes some ten milliseconds each."""


class Listing:
    """Lists sites; what the kernel takes is tried once."""

    def __init__(self, names: KernelNames) -> None:
        """Try nothing yet."""
        self._names = names
        self._tried: dict[str, str] = {}
        self._restrictions = tracefs.Restrictions()
        self._placed_at = 0

    def listed(self, spec: KernelSpec, demanded: str | None) -> list[ListedSite]:
        """Return the sites that a spec means, each with the mechanisms for it or the reason against it."""
        sites = self._names.resolve(spec)
        mechanisms.check_demanded(spec, sites, demanded)
        order = mechanisms.in_order(len(sites))
        return [self._listed(spec, site, order, demanded) for site in sites]

    def _listed(
        self, spec: KernelSpec, site: KernelSite, order: Sequence[Mechanism], demanded: str | None
    ) -> ListedSite:
        found = self._names.type_of(site)
        verdict = mechanisms.endless(site) or self._verdict(site, found, order, demanded)
        ways, refusal = ((), verdict) if isinstance(verdict, Refusal) else (verdict, None)
        return ListedSite(
            site.spec, site.module, site.name, site.offset, site.address, ways[0] if ways else None, refusal,
            in_kernel=True, mechanisms=ways, **self._types(spec, site, found),
        )  # fmt: skip

    def _verdict(
        self, site: KernelSite, found: FunctionType | None, order: Sequence[Mechanism], demanded: str | None
    ) -> tuple[str, ...] | Refusal:
        by_placing = site.kind == "offset" or demanded == mechanisms.SPLICE.name
        if by_placing or site.event is not None or site.file is not None:
            return self._placed(site, demanded)
        able, failed = [], []
        for way in order:
            if mechanisms.is_meant(way, site, demanded):
                problem = self._against(way, site, found) or self._problem(way.called(site))
                if problem:
                    failed.append(f"{way.called(site)}: {problem}")
                else:
                    able.append(way.called(site))
        is_known = site.function is None or self._restrictions.traceable.has(site.address, site.names) is not False
        if able and not is_known and self._placed_at < _MOST_PLACED:
            self._placed_at += 1
            return self._placed(site, demanded)  # at its first instruction there may be what the kernel changes
        return tuple(able) if able else mechanisms.refusal(site, failed, self._restrictions)

    def _against(self, way: Mechanism, site: KernelSite, found: FunctionType | None) -> str:
        """Return what is known to stand against a mechanism at a site, nothing if it is good."""
        if way is FENTRY and found is None:
            return "BTF has no type of it alone"
        if way in {FENTRY, MULTI} and self._restrictions.traceable.has(site.address, site.names) is False:
            return "the kernel does not trace it"
        if way is KPROBE and self._restrictions.blacklisted(site.address, site.names):
            return "it is on the kernel's blacklist"
        return ""

    def _problem(self, mechanism: str) -> str:
        """Return why the kernel takes no such probes anywhere, nothing if it does."""
        if mechanism not in self._tried:
            trial = trials.of_mechanism(self._names, mechanism)
            self._tried[mechanism] = "" if trial.works else trial.problem or "it misses hits"
        return self._tried[mechanism]

    def _placed(self, site: KernelSite, demanded: str | None) -> tuple[str, ...] | Refusal:
        """Place a probe there, and take it away."""
        counters = Counters(1)
        try:
            made, refused = mechanisms.place(Attacher(counters, self._names), [site], demanded)
            ways = tuple(each.mechanism for each in made)
            for each in made:
                each.close()
        finally:
            counters.close()
        return ways or refused[0][1]

    def _types(self, spec: KernelSpec, site: KernelSite, found: FunctionType | None) -> dict[str, Any]:
        """Return parameters and result as C has them: of system calls and tracepoints those of their events."""
        if spec.provider is Provider.SYSCALL and site.tracepoint is not None:
            category, name = site.tracepoint
            fields = _fields(category, name.replace("sys_exit_", "sys_enter_", 1))
            return {"arguments": fields, "result": None if fields is None else _RESULT_OF_A_CALL}
        if site.tracepoint is not None:
            return {"arguments": _fields(*site.tracepoint)}
        if found is None:
            return {}
        types, prototype = found.types, found.prototype
        is_void = isinstance(types.bare(prototype.result)[1], Void)
        return {
            "arguments": tuple((name, types.described(kind)) for name, kind in prototype.parameters),
            "result": None if is_void else types.described(prototype.result),
        }


def _fields(category: str, name: str) -> tuple[tuple[str, str], ...] | None:
    """Return what an event records, None where it is not told."""
    try:
        return tuple((each.name, each.type) for each in tracefs.fields(category, name))
    except TargetError:
        return None
