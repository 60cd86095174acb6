"""Descriptions of locks that programs make by themselves: text files that name the functions of a kind of lock."""

import tomllib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from anyprobe.core.errors import TargetError, UsageError

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.probes.session import Session

_SUFFIX = ".toml"
_FUNCTIONS = ("take", "try", "wait", "release", "sleep")
_BYTES, _OF_NUMBERS = (1, 2, 4), frozenset({"offset", "bytes", "names"})


@dataclass(frozen=True, slots=True)
class LockNumber:
    """A number in the memory of locks; those with the same one are shown as one, by its name."""

    offset: int
    bytes: int
    names: tuple[tuple[int, str], ...]
    """Texts with which tables of names begin in the program, and which number each of these has."""


@dataclass(frozen=True, slots=True)
class DescribedLock:
    """A kind of lock, and the functions of a module for it, whose first parameter is the lock."""

    name: str
    module: str
    take: tuple[str, ...]
    """Functions that return when it is taken."""
    tries: tuple[str, ...]
    """Functions that return whether they have taken it, also after a wait."""
    wait: tuple[str, ...]
    """Functions that wait for it, and do not take it."""
    release: tuple[str, ...]
    sleep: tuple[str, ...]
    """What these call where they wait, with any parameters."""
    number: LockNumber | None = None

    def object_of(self, session: "Session") -> "LoadedObject | None":
        """Return what a program has loaded that has these locks."""
        return next((each for each in session.objects.objects if each.matches(self.module)), None)


def read_locks(source: str) -> tuple[DescribedLock, ...]:
    """Return the kinds of locks of a description: a file, or one of anyprobe's own by its name.

    Raises:
        UsageError: it cannot be read, or does not say what a description has to.
    """
    own = resources.files("anyprobe.probes.waiting").joinpath("descriptions")
    try:
        if "/" not in source and not source.endswith(_SUFFIX):
            text = own.joinpath(source + _SUFFIX).read_text("utf-8")
        else:
            with open(source, encoding="utf-8") as file:
                text = file.read()
        document = tomllib.loads(text)
    except FileNotFoundError as error:
        known = ", ".join(sorted(each.name.removesuffix(_SUFFIX) for each in own.iterdir()))
        raise UsageError(f"{source}: there is no such description; known by name: {known}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{source} cannot be read: {error}") from error
    locks = document.get("lock")
    if not isinstance(locks, list) or not locks or set(document) != {"lock"}:
        raise UsageError(f"{source}: a description has [[lock]], and nothing else beside")
    return tuple(_lock(source, each) for each in locks)


def _lock(source: str, table: Mapping[str, Any]) -> DescribedLock:
    wrong = set(table) - {"name", "module", "number", *_FUNCTIONS}
    if wrong:
        raise UsageError(f"{source}: a lock has no {min(wrong)!r}")
    found = {}
    for key in _FUNCTIONS:
        names = table.get(key, [])
        if not isinstance(names, list) or not all(isinstance(each, str) and each for each in names):
            raise UsageError(f"{source}: {key!r} is a list of functions")
        found[key] = tuple(names)
    name, module = table.get("name"), table.get("module")
    if not (isinstance(name, str) and name and isinstance(module, str) and module):
        raise UsageError(f"{source}: a lock has a 'name', and the 'module' that its functions are in")
    if not found["take"] and not found["try"]:
        raise UsageError(f"{source}: {name!r} has functions that 'take' it, or 'try' to")
    tries = found.pop("try")
    return DescribedLock(name, module, tries=tries, number=_number(source, table.get("number")), **found)


def _number(source: str, table: object) -> LockNumber | None:
    if table is None:
        return None
    known = table if isinstance(table, dict) else {}
    offset, size, names = known.get("offset"), known.get("bytes"), known.get("names", {})
    try:
        begun = tuple(sorted((int(number), str(text)) for number, text in names.items()))
    except (AttributeError, ValueError):
        begun = None
    wrong = set(known) - _OF_NUMBERS
    if not isinstance(offset, int) or size not in _BYTES or begun is None or wrong or offset < 0 or offset % size:
        raise UsageError(
            f"{source}: 'number' has 'bytes' of 1, 2 or 4, an 'offset' that is a multiple, and 'names' by number"
        )
    return LockNumber(offset, size, begun)


def names_in(session: "Session", lock: DescribedLock) -> dict[int, str]:
    """Return the names of a kind's numbers, as tables of the program's file have them; nothing where it has none."""
    found: dict[int, str] = {}
    loaded = lock.object_of(session)
    if lock.number is None or loaded is None:
        return found
    from anyprobe.binary.images.text_tables import texts_from

    firsts = lock.number.names
    ends = [number for number, _ in firsts[1:]] + [1 << 8 * lock.number.bytes]
    for (first, text), end in zip(firsts, ends, strict=False):
        with suppress(TargetError):  # its file cannot be read
            found |= dict(enumerate(texts_from(loaded.image.elf, text)[: end - first], first))
    return found
