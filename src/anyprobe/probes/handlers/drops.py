"""What maps, records and stacks of handlers have lost."""

from collections.abc import Mapping

from anyprobe.data.layouts.stacks import StackView
from anyprobe.data.readers.maps import MapView
from anyprobe.data.readers.rings import RingReader


def dropped_by(views: Mapping[object, object], stacks: StackView | None) -> dict[str, dict[str, int]]:
    """Return what was lost, by name and cause."""
    found: dict[str, dict[str, int]] = {}
    if stacks is not None and stacks.dropped:
        found["stacks"] = {"no room": stacks.dropped}
    for key, view in views.items():
        if isinstance(view, MapView):
            causes = {"no room": view.dropped, "contended": view.contended}
            name = view.layout.map.name
        elif isinstance(view, RingReader):
            drops = view.drops()
            causes, name = {"ring full": sum(drops.full.values()), "abandoned": drops.abandoned}, str(key)
        else:
            continue
        if any(causes.values()):
            found[name] = {cause: count for cause, count in causes.items() if count}
    return found
