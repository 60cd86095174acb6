"""Probes in modules that are loaded later: looked for as modules come, taken away as they go."""

import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, groupby
from typing import TYPE_CHECKING

from anyprobe.core.errors import HandlerError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.duties import PROGRAM_LOOKS, Duties, Tended, locked
from anyprobe.probes.providers.kernel.attacher import Begin, at_once
from anyprobe.probes.providers.kernel.places.sites import KernelNames, KernelSite
from anyprobe.probes.providers.kernel.probe import KernelProbe, detach_all, go_on, present
from anyprobe.probes.scripts.hooks import Scripted
from anyprobe.target.kernel import loaded_modules
from anyprobe.target.kernel.symbols import KERNEL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from anyprobe.data.snapshots.snapshot import SiteResult
    from anyprobe.probes.providers.kernel.splices.splicing import Spliced

_LEAVING = "kprobe"
"""The one mechanism that lets a module be unloaded: the others hold it as long as they are attached."""


@dataclass(eq=False, repr=False)
class FollowedProbe(KernelProbe):
    """A probe with the sites of the kernel itself, and one for each module, as long as that is loaded."""

    in_modules: dict[str, KernelProbe] = field(default_factory=dict)
    _others: list[KernelProbe] = field(default_factory=list)
    """Probes of modules that came again with other functions; they are counted no more."""
    _seen: dict[str, int] = field(default_factory=dict)
    """The modules in which sites have been looked for."""

    @classmethod
    def instead(cls, probe: KernelProbe, names: KernelNames) -> "FollowedProbe":
        """Return a probe that follows what one means now."""
        own = [site for site in probe.sites if names.module_of(site) == KERNEL]
        return cls(probe.wanted, own, probe.counters, probe.mechanism, probe.handler)

    def __repr__(self) -> str:
        """Return the spec and the modules in which it is attached."""
        there = sorted(name for name, each in self.in_modules.items() if each.armed)
        return (
            f"<FollowedProbe {self.spec}: {len(self.sites)} sites in the kernel, and in {', '.join(there) or 'none'}>"
        )

    @property
    def mechanisms(self) -> list[str]:
        """The mechanisms by which it is attached."""
        return sorted({*super().mechanisms, *(way for each in self.in_modules.values() for way in each.mechanisms)})

    def attach(
        self,
        names: KernelNames,
        check: Callable[[], None] = go_on,
        begin: Begin = at_once,
        spliced: "Spliced | None" = None,
    ) -> None:
        """Attach to what there is now, and wait for what may come."""
        super().attach(names, check, begin, spliced)
        self.armed = True
        self._seen = {}
        self.look(names)

    def look(self, names: KernelNames) -> bool:
        """Attach in modules that have come, let go of those that have gone; return whether there was anything to do."""
        now = loaded_modules.loaded()
        gone = [name for name, number in self._seen.items() if now.get(name) != number]
        for name in gone:
            del self._seen[name]
            if name in self.in_modules:
                self.in_modules[name].detach()
        fresh = now.keys() - self._seen.keys()
        if not self.armed or not fresh:
            return bool(gone)
        names.look_again()
        by_module = sorted(present(names, self.wanted), key=names.module_of)
        for name, here in groupby(by_module, names.module_of):
            if name in fresh:
                self._attach_in(name, list(here), names)
                if loaded_modules.loaded().get(name) == now[name]:  # else what was refused is none of its functions
                    known = {spec for spec, _ in self.refused}
                    self.refused += [each for each in self.in_modules[name].refused if each[0] not in known]
        self._seen |= {name: now[name] for name in fresh}
        return True

    def _attach_in(self, module: str, sites: list[KernelSite], names: KernelNames) -> None:
        """Attach in one module; what was counted in it before counts on if it has the same functions."""
        part = self.in_modules.get(module)
        if part is None or [each.spec for each in part.sites] != [each.spec for each in sites]:
            if part is not None:
                self._others.append(part)
            way = self.mechanism or (_LEAVING if sites[0].function is not None else None)
            part = self.in_modules[module] = KernelProbe.of(self.wanted, sites, way, self.handler, self.counters.chosen)
        part.sites = sites
        try:
            part.attach(names)
        except HandlerError as error:  # no caller waits for it here
            part.refused = [(each.spec, Refusal(Reason.KERNEL_REFUSES, each.address, str(error))) for each in sites]

    def _parts(self) -> "chain[KernelProbe]":
        return chain(self._others, self.in_modules.values())

    def note_armed(self) -> None:
        """Let results show as armed what is armed now, also when it has been taken away at the end."""
        super().note_armed()
        for each in self._parts():
            each.note_armed()

    def detach(self) -> None:
        """Take all away; the counters stay."""
        super().detach()
        for each in self._parts():
            each.detach()

    def results(self) -> "Iterator[SiteResult]":
        """Yield what was counted at each site, also in modules that have gone."""
        yield from super().results()
        for each in self._parts():
            yield from each.results()

    def missed_together(self) -> int:
        """Return what the kernel missed at several sites together."""
        return super().missed_together() + sum(each.missed_together() for each in self._parts())

    def close(self) -> None:
        """Give the counters back."""
        super().close()
        for each in self._parts():
            each.close()


class FollowingModules(Scripted, Tended):
    """A session on the kernel, as far as it sees to modules that come and go."""

    probes: list[KernelProbe]
    _names: KernelNames

    @cached_property
    def duties(self) -> Duties:
        """What is due, and when."""
        duties = Duties()
        duties.follow(self.hooks)
        duties.every(PROGRAM_LOOKS, self.reconcile)
        return duties

    @locked
    def reconcile(self) -> list[KernelProbe]:
        """Attach what follows modules in those that have come, let go of those that have gone; return what changed.

        What is in modules alone that have gone and come again is attached in them anew. Done by ``pump``.
        """
        following = [each for each in self.probes if isinstance(each, FollowedProbe)]
        changed = [each for each in following if each.look(self._names)]
        others = (each for each in self.probes if not isinstance(each, FollowedProbe))
        again = [each for each in others if each.find_again(self._names)]
        detach_all(again)
        spliced = self._splice_together(again)
        for each in again:
            each.attach(self._names, spliced=spliced.get(each))
        return [*changed, *again]

    @abstractmethod
    def _splice_together(self, probes: "Sequence[KernelProbe]") -> "dict[KernelProbe, Spliced]":
        """Splice the sites of several probes, where splices are demanded."""

    def pump(self, timeout: float = 0.0) -> bool:
        """Do everything that is due now, and what becomes due until ``timeout`` seconds have passed.

        That is: functions of ``interval``, probes in modules that have been loaded since the last look, and what was
        added to ``duties``.

        Args:
            timeout: seconds to go on for; 0 for what is due now.

        Returns:
            Whether the session is not over.
        """
        deadline = time.monotonic() + timeout
        while not self.is_over:
            due = self.duties.work()
            now = time.monotonic()
            if now >= deadline:
                break
            time.sleep(max(0.0, min(deadline, due if due is not None else deadline) - now))
        return not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether nothing is due any more."""
        return self.detached
