"""The functions that a spec names in one file, with what they are called: the same for each process that maps it."""

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from anyprobe.binary.images.modules import LoadedObject
from anyprobe.binary.objects.functions import STUB_SUFFIX, Function
from anyprobe.core.quoting import QUOTE
from anyprobe.probes.specs.dtrace import EACH
from anyprobe.probes.specs.naming import as_spec
from anyprobe.probes.specs.spec import Spec

if TYPE_CHECKING:
    from anyprobe.binary.images.image import Image

INSTANCES = "[...]"
"""What stands for the types of all instances of a generic function of Go, as in its own backtraces."""
_REMEMBERED = 16
"""Specs of one file."""


class Named(NamedTuple):
    """A function that a spec means."""

    function: Function
    shown: str
    """Its name in results; of what is chosen (IFUNC) the one that was asked for."""
    canonical: str
    chooses: bool
    """Whether sites are those of what it has been resolved to (IFUNC)."""


_kept: "WeakKeyDictionary[Image, dict[tuple[Spec, str], tuple[Named, ...]]]" = WeakKeyDictionary()
"""What globs mean, by specs and the names of modules: where programs are followed, each maps the same libraries."""


def named_in(spec: Spec, loaded: LoadedObject) -> Sequence[Named]:
    """Return the functions that a spec's function part means in an object, those that choose others last."""
    found: Sequence[Named]
    if not is_glob(spec):
        name = spec.function.text
        meant = loaded.image.functions.lookup(name) if spec.function.quoted else _matches(spec, loaded)
        found = _distinguished(_called(spec, loaded, meant))
    else:
        known = _kept.setdefault(loaded.image, {})
        rows = known.get((spec, loaded.name))
        if rows is None:
            if len(known) >= _REMEMBERED:
                known.clear()
            rows = known[spec, loaded.name] = tuple(_distinguished(_called(spec, loaded, _matches(spec, loaded))))
        found = rows
    return [each for each in found if not loaded.lacks(each.function.start)] if loaded.is_part else found


def _called(spec: Spec, loaded: LoadedObject, functions: Iterable[Function]) -> list[Named]:
    shown_name, made = _name_chooser(spec), []
    for function in functions:
        shown = shown_name(function)
        chooses = function.is_ifunc and shown not in function.resolver_names
        shown = shown if chooses else as_spec(shown)
        made.append(Named(function, shown, spec.canonical(loaded.name, shown), chooses))
    return sorted(made, key=attrgetter("chooses"))


def _matches(spec: Spec, loaded: LoadedObject) -> list[Function]:
    """Return the functions that a name means; a glob means parts of functions that have no name only where asked."""
    glob = spec.function.text or "*"
    if glob.endswith(STUB_SUFFIX):  # stubs are no functions: only who asks for them gets them
        return [stub for stub in loaded.image.stubs if fnmatch.fnmatchcase(stub.name, glob)]
    if loaded.image.is_go:
        glob = glob.replace(INSTANCES, "[[]*[]]")
    found = loaded.image.functions.match(glob)
    if spec.name in EACH or not has_glob(glob):
        return found
    return [function for function in found if not _is_unnamed_part(loaded, function)]


def _is_unnamed_part(loaded: LoadedObject, function: Function) -> bool:
    is_unnamed = function.name.endswith(f"+{function.start:#x}")
    return is_unnamed and function.start in loaded.image.unnamed_parts


def is_glob(spec: Spec) -> bool:
    """Return whether a spec's function part is a pattern."""
    return not spec.function or (not spec.function.quoted and has_glob(spec.function.text))


def has_glob(text: str) -> bool:
    """Return whether a part of a spec is a pattern."""
    return any(character in text for character in "*?[")


def _name_chooser(spec: Spec) -> Callable[[Function], str]:
    """Return what chooses the name of a function to show.

    It is the name that the user used or that the glob matched, else the best one, demangled. A name that means another
    function without its version (``memcpy@GLIBC_2.2.5``) is shown with it.
    """
    wanted = spec.function.text
    selective = bool(wanted.strip("*")) and is_glob(spec)
    matches = re.compile(fnmatch.translate(wanted)).match if selective else None

    def shown(function: Function) -> str:
        if wanted in function.names or wanted in function.versions or wanted.endswith(f"@{function.start:#x}"):
            return wanted
        name = function.name
        if matches is not None and not matches(name):
            name = next((each for each in function.names if matches(each)), name)
        if function.versions:
            old = [each for each in function.versions if each.startswith(name + "@")]
            if old and not any(each.startswith(name + "@@") for each in old):
                return old[0]
        return name if name != function.name else function.demangled

    return shown


def _distinguished(rows: Sequence[Named]) -> list[Named]:
    """Return functions with their addresses after the names that several of them have."""
    starts: dict[str, set[int]] = {}
    for row in rows:
        if not row.chooses:
            starts.setdefault(row.shown, set()).add(row.function.start)
    shared = {name for name, found in starts.items() if len(found) > 1}
    return [_with_start(row) if row.shown in shared and not row.chooses else row for row in rows]


def _with_start(row: Named) -> Named:
    body, quote = (row.shown[:-1], QUOTE) if row.shown.startswith(QUOTE) else (row.shown, "")
    name = f"{body}@{row.function.start:#x}{quote}"
    head, found, tail = row.canonical.rpartition(f":{row.shown}:")
    return row._replace(shown=name, canonical=f"{head}:{name}:{tail}" if found else row.canonical)
