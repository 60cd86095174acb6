"""Objects that a process has more than once: auditors of the loader (``LD_AUDIT``) and ``dlmopen`` load copies."""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from anyprobe.core.memory import MemoryFault, read_text, read_word

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.core.memory import Memory
    from anyprobe.probes.providers.function.objects import ObjectTable
    from anyprobe.probes.providers.function.probe import Place, Probe
    from anyprobe.target.system.procfs import Mapping

AUDITED = (
    "the loader has auditors (LD_AUDIT), so the probes were placed when it had relocated the first library: IFUNC "
    "resolvers, and what the auditors did until then, are not counted"
)
_DT_DEBUG = 21
_LOADER = "ld-linux"
_L_NAME = 8
"""Where glibc's ``link_map`` has its name."""
_MOST_OBJECTS = 4096
_MOST_BYTES = 4096


class Copies:
    """Says which copy a site is in, and of which copies nothing is counted."""

    def __init__(self, objects: "ObjectTable") -> None:
        """Know what is loaded; nothing is said yet."""
        self._objects = objects
        self._told: set[str] = set()

    def note(self, loaded: "LoadedObject") -> str:
        """Return what to say of a site in an object, nothing where there is only one of its name."""
        names = Counter(each.name for each in self._objects.objects if not each.is_part)
        return f"copy at {loaded.first.start:#x}" if names[loaded.name] > 1 else ""

    def uncounted(self, probes: Iterable["Probe"], mappings: Iterable["Mapping"]) -> list[str]:
        """Return what is to be said, once, of copies of probed objects that were mapped later."""
        places = [place for probe in probes for place in probe.all_places]
        objects = {place.site.object for place in places}
        names = {each.first.inode: each.name for each in objects if each.first.inode}
        known = [(each.first.start, each.mappings[-1].end) for each in objects]
        further = [
            each for each in mappings
            if each.executable and each.inode in names and not any(low <= each.start < high for low, high in known)
        ]  # fmt: skip
        probed = {(place.site.object.first.inode, _offset(place)) for place in places} if further else set()
        fresh = {names[each.inode] for each in further if any(_shows(each, *site) for site in probed)}
        untold = sorted(fresh - self._told)
        self._told |= fresh
        late = "after the probes were placed: what runs there is not counted"
        return [f"the program has loaded a further copy of {name} {late}" for name in untold]


def _offset(place: "Place") -> int:
    """Return where in its file a place is, -1 if no mapping of its object has it."""
    mappings = place.site.object.mappings
    return next((place.address - m.start + m.offset for m in mappings if m.start <= place.address < m.end), -1)


def _shows(mapping: "Mapping", inode: int, offset: int) -> bool:
    return mapping.inode == inode and 0 <= offset - mapping.offset < mapping.end - mapping.start


def has_libraries(objects: "ObjectTable", memory: "Memory") -> bool:
    """Return whether the loader has mapped what the executable needs, into the program's own namespace.

    Where there are auditors it first loads and runs these, with libraries of their own.
    """
    executable = next((each for each in objects.objects if each.is_executable), None)
    of_glibc = any(each.name.startswith(_LOADER) for each in objects.objects)
    if executable is None or not of_glibc or not executable.image.elf.needed or not _is_listed(executable):
        return True
    try:
        return any(name and not name.startswith((_LOADER, "linux-vdso")) for name in _names(objects, memory))
    except MemoryFault:
        return False


def _names(objects: "ObjectTable", memory: "Memory") -> Sequence[str]:
    """Return the file names in the loader's list of what is in the program's namespace."""
    from anyprobe.probes.providers.function.load_order import link_maps

    listed = link_maps(objects.objects, memory)
    names = (read_text(memory, read_word(memory, at + _L_NAME), _MOST_BYTES) for at in islice(listed, _MOST_OBJECTS))
    return [name.decode(errors="replace").rpartition("/")[2] for name in names]


def _is_listed(executable: "LoadedObject") -> bool:
    """Return whether an executable has a place where the loader says what is loaded."""
    return _DT_DEBUG in executable.image.elf.dynamic
