"""Libraries that may be loaded soon: those in which probes were placed before, once a program had loaded them.

What earlier sessions have found out about them is read while no thread of the program waits for anyprobe. The list of
them is kept in the user's cache: where it is wrong or lost, only time is lost.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from anyprobe.binary.images.modules import DELETED, module_matches
from anyprobe.binary.objects.cache import FORMAT
from anyprobe.core import kept
from anyprobe.core.errors import TargetError

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.objects import ObjectTable
    from anyprobe.probes.specs.spec import Spec

_NAME = f"libraries.v{FORMAT}"
_MOST, _MOST_READ = 256, 4
"""How many are kept, the last ones first, and how many are read for all specs of a session together."""
_MOST_FUNCTIONS = 2000
"""How many functions of these are got ready at most."""


def paths() -> list[str]:
    """Return the paths of the libraries, the last ones first."""
    try:
        found = json.loads(kept.read(_NAME) or b"[]")
    except (ValueError, RecursionError):
        return []
    return [each for each in found if isinstance(each, str)] if isinstance(found, list) else []


def note(fresh: Iterable[str]) -> None:
    """Expect libraries from now on."""
    known, fresh = paths(), {each for each in fresh if each.startswith("/") and not each.endswith(DELETED)}
    if not fresh.issubset(known):
        kept.write(_NAME, json.dumps([*fresh, *(each for each in known if each not in fresh)][:_MOST]).encode())


def get_ready(objects: "ObjectTable", specs: "Sequence[Spec]") -> None:
    """Read what will be asked of libraries that specs mean and that are not loaded yet."""
    there = {each.path for each in objects.objects}
    wanted = [spec for spec in specs if spec.module]
    expected = [path for path in (paths() if wanted else ()) if path not in there]
    number = 0
    for path in expected:
        name = path.rpartition("/")[2]
        meaning = [spec for spec in wanted if module_matches(spec.module.text, name, path)]
        if not meaning or number == _MOST_READ:
            continue
        number += 1
        with suppress(TargetError, OSError):
            _read(objects, path, meaning)


def _read(objects: "ObjectTable", path: str, specs: "Sequence[Spec]") -> None:
    code = objects.code_of(path)
    if code is None:
        return
    image, functions = code
    for spec in specs:
        glob = spec.function.text or "*"
        found = image.functions.match(glob) if not (spec.function.quoted or spec.is_absolute or spec.line) else []
        for each in found if len(found) <= _MOST_FUNCTIONS else ():
            functions.function_at(each.start)
