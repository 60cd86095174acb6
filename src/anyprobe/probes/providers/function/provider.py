"""The provider of probes at instructions of functions: places are spliced by the session's engine."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from anyprobe.probes.providers.function import reading, removal
from anyprobe.probes.providers.function.probe import Place, edits_for
from anyprobe.probes.providers.function.resolve import resolve_all
from anyprobe.splice.edits import joined

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.data.snapshots.snapshot import SiteResult
    from anyprobe.probes.providers.base import Resolution
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.resolve import Resolution as Sites
    from anyprobe.probes.specs.parts import Spec
    from anyprobe.splice.edits import Edit


class FunctionProvider:
    """Places in the functions of one process."""

    name = "function"

    def __init__(self, host: "ProbeHost") -> None:
        """Splice what a session's host splices."""
        self._host, self._splicing = host, host.splicing
        self._joining: list[Edit] = []

    def claims(self, spec: "Spec") -> bool:  # noqa: ARG002 - the interface
        """Return that every spec is about functions: this provider is asked last."""
        return True

    def resolve(self, spec: "Spec") -> "Resolution[Place]":
        """Return the places that count what a spec means."""
        from anyprobe.probes.providers.base import Resolution

        made = self._host.wanted_once(spec)
        return Resolution(made.places, made.refused)

    def sites(self, spec: "Spec", within: "Collection[LoadedObject] | None" = None) -> "Sites":
        """Return the sites that a spec means in the process now, or in some of its objects, and what is refused."""
        host, objects = self._host, self._host.objects
        slots = objects.ifunc_slots
        return resolve_all(spec, objects.objects, ifunc_targets=slots, pid=host.pid, within=within)

    def attach(self, attachments: Sequence[Place]) -> Sequence[str]:
        """Splice all places in one change of the program."""
        joining, self._joining = self._joining, []
        self._splicing.engine.change(joined(edits_for(list(attachments)), joining))
        return [*self._splicing.view.complaints(), *self._splicing.semaphores.complaints()]

    @contextmanager
    def joining(self, edits: "Sequence[Edit]") -> Iterator[None]:
        """Have edits that add something made with the first places within a ``with`` block, or at its end."""
        self._joining = joined(self._joining, edits)
        try:
            yield
        except BaseException:
            self._joining = []
            raise
        joining, self._joining = self._joining, []
        self._splicing.engine.change(joining)

    def detach(self, attachments: Sequence[Place]) -> Sequence[str]:
        """Put the program's own bytes back."""
        return [*removal.disarm(self._splicing, attachments), *self._splicing.semaphores.complaints()]

    def read(self, attachments: Sequence[Place]) -> "Sequence[SiteResult]":
        """Return the hits of all places, ends of functions read first."""
        return list(reading.sites(attachments, cache(self._host.copies.note)))
