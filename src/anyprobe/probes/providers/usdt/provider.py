"""The provider of probes at USDT markers: what specs mean there; their places are spliced as those of functions are."""

from typing import TYPE_CHECKING

from anyprobe.probes.providers.function.provider import FunctionProvider
from anyprobe.probes.providers.usdt.sites import MarkerTable

if TYPE_CHECKING:
    from collections.abc import Collection

    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.resolve import Resolution
    from anyprobe.probes.specs.parts import Spec


class UsdtProvider(FunctionProvider):
    """Markers of one process."""

    name = "usdt"

    def __init__(self, host: "ProbeHost") -> None:
        """Know no marker yet."""
        super().__init__(host)
        self._markers = MarkerTable(host.warn)

    def claims(self, spec: "Spec") -> bool:
        """Return whether a spec means markers."""
        return spec.is_marker

    def sites(self, spec: "Spec", within: "Collection[LoadedObject] | None" = None) -> "Resolution":  # noqa: ARG002 - all are known at once
        """Return the markers that a spec means in the process now, and those that are refused."""
        return self._markers.resolve(spec, self._host.objects.objects, self._host.mappings())


PROVIDER = UsdtProvider
