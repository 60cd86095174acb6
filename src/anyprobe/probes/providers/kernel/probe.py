"""One probe in the kernel: its sites, what is attached at them, and what was counted."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anyprobe.core.errors import SpecError
from anyprobe.core.refusal import Refusal
from anyprobe.data.snapshots.snapshot import SiteResult
from anyprobe.probes.providers.kernel import mechanisms
from anyprobe.probes.providers.kernel.attacher import Attacher, Attachment, Begin, at_once
from anyprobe.probes.providers.kernel.chosen import Chosen
from anyprobe.probes.providers.kernel.counters import Counters
from anyprobe.probes.providers.kernel.places.sites import KernelNames, KernelSite
from anyprobe.probes.providers.kernel.places.specs import KernelSpec, Provider
from anyprobe.target.kernel import loaded_modules
from anyprobe.target.kernel.symbols import KERNEL

if TYPE_CHECKING:
    from anyprobe.handlers.types.storages import CallData
    from anyprobe.probes.providers.kernel.handlers import KernelHandler
    from anyprobe.probes.providers.kernel.splices.splicing import Spliced

_UNTOLD = "this kernel does not tell what it misses here"
_GONE = "[GONE] its module has gone, and the splice before that"


def present(names: KernelNames, spec: KernelSpec) -> list[KernelSite]:
    """Return what a spec means now, nothing where a module that is loaded later may have it."""
    try:
        return names.resolve(spec)
    except SpecError:
        if spec.provider not in {Provider.FUNCTION, Provider.TRACEPOINT} or spec.module.text == KERNEL:
            raise
        return []


def go_on() -> None:
    """Let what is being prepared be prepared."""


@dataclass(eq=False, repr=False)
class KernelProbe:
    """What one spec asked for: sites, a counter for each, and what is attached."""

    wanted: KernelSpec
    sites: Sequence[KernelSite]
    counters: Counters
    mechanism: str | None = None
    """The one that was demanded."""
    handler: "KernelHandler | None" = None
    attachments: list[Attachment] = field(default_factory=list)
    refused: list[tuple[str, Refusal]] = field(default_factory=list)
    armed: bool = False
    """Whether at least one site is attached."""
    was_armed: bool = False
    """Whether results say of what is attached no more that it was armed until the end."""
    loadings: Mapping[str, int] = field(default_factory=dict)
    """The modules that it has sites in, by the numbers of their loading when it was attached."""
    earlier: list[Attachment] = field(default_factory=list)
    """What was attached before the probe was removed and enabled again."""

    @property
    def spec(self) -> str:
        """The spec as it was written."""
        return self.wanted.text.strip()

    def __repr__(self) -> str:
        """Return the spec and how much of it is attached."""
        attached = sum(len(each.sites) for each in self.attachments) if self.armed else 0
        return f"<KernelProbe {self.spec}: {attached} of {len(self.sites)} sites attached>"

    @property
    def mechanisms(self) -> list[str]:
        """The mechanisms by which it is attached."""
        return sorted({each.mechanism for each in self.attachments})

    @classmethod
    def of(
        cls,
        spec: KernelSpec,
        sites: Sequence[KernelSite],
        mechanism: str | None,
        handler: "KernelHandler | None",
        chosen: Chosen | None = None,
    ) -> "KernelProbe":
        """Return a probe with counters for some sites, not attached yet; ``chosen``: of no other processes."""
        return KernelProbe(spec, sites, Counters(len(sites), chosen), mechanism, handler)

    def attach(
        self,
        names: KernelNames,
        check: Callable[[], None] = go_on,
        begin: Begin = at_once,
        spliced: "Spliced | None" = None,
    ) -> None:
        """Attach to all sites, as far as the kernel permits it; ``check`` may raise an error between two of them.

        ``begin`` is given the last step of each kprobe, ``spliced`` is what has been spliced already for this probe.
        """
        modules = {names.module_of(site) for site in self.sites} - {KERNEL}
        now = loaded_modules.loaded() if modules else {}
        self.loadings = {name: now[name] for name in modules if name in now}
        self.earlier += self.attachments
        self.attachments, self.was_armed = [], False
        attacher = Attacher(self.counters, names, self.handler, check, begin, spliced)
        self.attachments, self.refused = mechanisms.place(attacher, self.sites, self.mechanism)
        self.armed = bool(self.attachments)

    def find_again(self, names: KernelNames) -> bool:
        """Take the sites where they are now, if all of them are in modules that have been loaded again.

        Return whether that is so: then it has to be attached anew, and counts on.
        """
        now = loaded_modules.loaded() if self.armed and self.loadings else {}
        if not now or any(now.get(name) in {None, number} for name, number in self.loadings.items()):
            return False
        names.look_again()
        if any(names.module_of(site) == KERNEL for site in self.sites):
            return False
        there: dict[str, list[KernelSite]] = {}
        for each in present(names, self.wanted):
            there.setdefault(each.spec, []).append(each)
        found = [there.get(site.spec, []) for site in self.sites]
        if any(len(sites) != 1 for sites in found):
            return False
        self.sites = [site for (site,) in found]
        return True

    def note_armed(self) -> None:
        """Let results show as armed what is armed now, also when it has been taken away at the end."""
        self.was_armed = self.armed

    def detach(self) -> None:
        """Take all away; the counters stay."""
        self.armed = False
        for each in self.attachments:
            each.close()

    def close(self) -> None:
        """Give the counters back."""
        self.counters.close()

    def results(self) -> Iterator[SiteResult]:
        """Yield what was counted at each site."""
        counts = self._counts()
        missed = self._missed()
        armed = set(self.attachments) if self.armed or self.was_armed else set()
        gone = {slot for each in armed for slot in each.gone()}
        latest = {slot: each for each in (*self.earlier, *self.attachments) for slot in each.slots}
        for slot, each in sorted(latest.items()):
            site = self.sites[slot]
            yield SiteResult(
                site.spec, site.module, site.name, site.offset, site.address, each.mechanism,
                each in armed and slot not in gone, counts[slot], missed.get(slot, 0), site.kind,
                notes=(*(() if each.is_told else (_UNTOLD,)), *((_GONE,) if slot in gone else ())),
            )  # fmt: skip

    def _counts(self) -> list[int]:
        """Return what was counted at each site, whatever has counted it."""
        counts = self.counters.read()
        for each in (*self.earlier, *self.attachments):
            for slot, count in each.counted().items():
                counts[slot] += count
        return counts

    def _missed(self) -> dict[int, int]:
        """Return what the kernel missed, by counter, where that is told of one site alone."""
        found: dict[int, int] = {}
        for each in (*self.earlier, *self.attachments):
            for slot, missed in each.missed().items():
                found[slot] = found.get(slot, 0) + missed
        return found

    def missed_together(self) -> int:
        """Return what the kernel missed at several sites together."""
        return sum(each.misses() for each in (*self.earlier, *self.attachments) if len(each.slots) > 1)


def calls_of(probes: Iterable[KernelProbe]) -> "set[CallData]":
    """Return where the data of the calls is that some probes follow."""
    handlers = [probe.handler for probe in probes if probe.handler is not None]
    return {handler.calls for handler in handlers if handler.calls is not None}


def detach_all(probes: Iterable[KernelProbe]) -> None:
    """Take several probes away, their splices together."""
    probes = list(probes)
    spliced = [each.splices for probe in probes for each in probe.attachments if each.splices is not None]
    if spliced:
        spliced[0].close_all(spliced)
    for probe in probes:
        probe.detach()
