"""What is done once for a whole module when most of its functions are wanted."""

from collections import Counter
from collections.abc import Iterable

from anyprobe.binary.images.modules import LoadedObject
from anyprobe.probes.providers.function.resolve import ResolvedSite
from anyprobe.probes.specs.dtrace import EACH

_MANY = 300
"""Functions; a survey of a module with ten thousand costs as much as looking at so many one by one."""
_SHARE = 33
"""In larger modules, one function of so many: of a browser's engine a library's worth is soon looked at by itself."""


def surveyed(sites: Iterable[ResolvedSite], *, timed: bool = False) -> list[LoadedObject]:
    """Return the objects of which so many functions are wanted, inside, that looking at all of them at once pays.

    ``timed``: their calls are, so that their exits are looked for.
    """
    sites = [site for site in sites if timed or site.kind in EACH or site.kind == "return"]
    numbers = Counter(id(site.object) for site in sites)
    objects = {id(site.object): site.object for site in sites}
    return [objects[key] for key, number in numbers.items() if number >= _MANY and _pays(objects[key], number)]


def _pays(loaded: LoadedObject, number: int) -> bool:
    return number * _SHARE >= len(loaded.image.functions.starts)
