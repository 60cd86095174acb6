"""Source lines of a process: at which addresses of which objects control comes to one, by debug information."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from anyprobe.core.errors import SpecError, UnsupportedTarget
from anyprobe.probes.specs.parts import Spec

if TYPE_CHECKING:
    from anyprobe.binary.dwarf.lines import Lines
    from anyprobe.binary.images.modules import LoadedObject

_NEAREST = 3


def places_of_line(spec: Spec, objects: "Sequence[LoadedObject]") -> "list[tuple[LoadedObject, int]]":
    """Return where control comes to a line, in functions of its own and where they are inlined.

    Raises ``SpecError`` where there is no code of it, with the nearest lines that have some, and where several files
    have the name and code at this line.
    """
    found, reasons = _files(spec, objects)
    line = spec.line or 0
    places = [
        (loaded, path, at)
        for loaded, path, lines in found
        for at in lines.get(line, ())
        if loaded.runtime(at) in loaded
    ]
    if not places:
        raise _no_code(spec, objects, found, reasons)
    names = _distinct(path for _, path, _ in places)
    if len(names) > 1:
        message = (
            f"{len(names)} source files are named {spec.function.text!r} and have code at this line; say which one"
        )
        raise spec.error(spec.function, message, tuple(f"{each}:{line}" for each in names))
    return sorted({(loaded, at) for loaded, _, at in places}, key=lambda each: each[0].runtime(each[1]))


def _files(spec: Spec, objects: "Sequence[LoadedObject]") -> "tuple[list[tuple[LoadedObject, str, Lines]], list[str]]":
    """Return the files that are meant, with their lines, and why some objects say nothing of any."""
    found, reasons = [], []
    for loaded in objects:
        try:
            files = loaded.image.debug_info.lines(spec.function.text)
        except UnsupportedTarget as refusal:
            reasons.append(str(refusal))
            continue
        found += [(loaded, path, lines) for path, lines in files.items()]
    return found, reasons


def _no_code(
    spec: Spec,
    objects: "Sequence[LoadedObject]",
    found: "Sequence[tuple[LoadedObject, str, Lines]]",
    reasons: Sequence[str],
) -> SpecError:
    line = spec.line or 0
    if not found:
        where = objects[0].name if len(objects) == 1 else "any of the loaded modules"
        why = f" ({reasons[0]})" if reasons and len(objects) == 1 else ""
        message = f"no source file {spec.function.text!r} with code is known to debug information of {where}{why}"
        return spec.error(spec.function, message)
    with_code = {each for loaded, _, lines in found for each, places in lines.items() if each
                 and any(loaded.runtime(at) in loaded for at in places)}  # fmt: skip
    nearest = sorted(with_code, key=lambda each: (abs(each - line), each))[:_NEAREST]
    return spec.name_error("this line has no code", tuple(f"{spec.function.text}:{each}" for each in nearest))


def _distinct(paths: "Iterable[str]") -> list[str]:
    """Return the shortest ends of paths that tell different files from one another.

    A path that is the end of another one may be of the same file: compilers write some paths from where they were run.
    """
    whole: list[str] = []
    for path in sorted(set(paths), key=len, reverse=True):
        if not any(each.endswith("/" + path) for each in whole):
            whole.append(path)
    names = []
    for path in sorted(whole):
        parts = path.strip("/").split("/")
        ends = ("/".join(parts[-count:]) for count in range(1, len(parts) + 1))
        others = [each for each in whole if each != path]
        names.append(next((end for end in ends if not any(f"/{each}".endswith("/" + end) for each in others)), path))
    return names
