"""Descriptions of virtual markers: text files that name places of a build of a file, whose notes do not."""

import os
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from typing import Any

from anyprobe.binary.objects.marker_arguments import Followed, InMemory, MarkerArgument, Operand, parse_arguments
from anyprobe.core.errors import SourceError, UsageError
from anyprobe.isa.registers import NUMBERS

_SUFFIX = ".toml"
_SIZES = {
    "i8": "-1", "i16": "-2", "i32": "-4", "i64": "-8", "u8": "1", "u16": "2", "u32": "4", "u64": "8", "bool": "1",
    "f32": "4f", "f64": "8f", "ptr": "8", "cstr": "8",
}  # fmt: skip
_ARGUMENT = re.compile(r"\s*([A-Za-z_]\w*)\s*:\s*(\w+)\s*=\s*(\S.*?)\s*")
_MARKER = re.compile(r"([A-Za-z_]\w*):([A-Za-z_][\w-]*)", re.ASCII)
_PLACE = re.compile(r"(0x[0-9a-fA-F]+)|([^\s+]+?)(?:\+(0x[0-9a-fA-F]+|\d+))?")
_PATTERN = re.compile(r"(?:[0-9a-fA-F]{2}|\?\?)(?:\s+(?:[0-9a-fA-F]{2}|\?\?))*")
_BASE = re.compile(r"%(\w+)\s*(?:([+-])\s*(0x[0-9a-fA-F]+|\d+))?")
_ADDED = re.compile(r"\s*([+-])\s*(0x[0-9a-fA-F]+|\d+)")
_ADDRESS_BYTES = 8


@dataclass(frozen=True, slots=True)
class DescribedPlace:
    """Where a marker is: in a function, or at a link-time address."""

    text: str
    function: str
    offset: int
    """From the function's beginning, or from the pattern's; without a function, the address."""
    pattern: str = ""
    """Bytes of the function, ``??`` for any, which it has once."""


@dataclass(frozen=True, slots=True)
class DescribedMarker:
    """A marker that a description gives a file."""

    provider: str
    name: str
    place: DescribedPlace
    arguments: tuple[MarkerArgument, ...]


@dataclass(frozen=True, slots=True)
class DescribedFile:
    """The markers of one build of a file."""

    source: str
    """The description's own file."""
    name: str
    of: str
    """The package, for people."""
    build_id: str
    markers: tuple[DescribedMarker, ...]


def read_description(path: str) -> list[DescribedFile]:
    """Return what a description says; raise ``SourceError`` with line and caret."""
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    return parse_description(text, path)


def parse_description(text: str, source: str) -> list[DescribedFile]:
    """Return what the text of a description says."""
    return _Reader(text, source).read()


@lru_cache(maxsize=1)
def known_descriptions() -> tuple[tuple[DescribedFile, ...], tuple[str, ...]]:
    """Return what is described in anyprobe's own files and the user's, and what is wrong with the user's."""
    found: list[DescribedFile] = []
    problems: list[str] = []
    folder = resources.files("anyprobe.probes.providers.usdt").joinpath("descriptions")
    for each in sorted(folder.iterdir(), key=lambda each: each.name):
        if each.name.endswith(_SUFFIX):
            found += parse_description(each.read_text("utf-8"), each.name)
    for path in _own_paths():
        try:
            found += read_description(path)
        except UsageError as error:
            problems.append(str(error).partition("\n")[0])
    return tuple(found), tuple(problems)


def own_folder() -> str:
    """Return where the user's descriptions are."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "anyprobe", "usdt")


def _own_paths() -> Iterator[str]:
    folder = own_folder()
    if os.path.isdir(folder):
        yield from (os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(_SUFFIX))


class _Reader:
    def __init__(self, text: str, source: str) -> None:
        self._lines, self._source = text.splitlines(), source
        try:
            self._document = tomllib.loads(text)
        except tomllib.TOMLDecodeError as error:
            at = re.search(r"\(at line (\d+), column (\d+)\)", str(error))
            line, column = (int(at[1]), int(at[2])) if at else (len(self._lines), 1)
            message = str(error).partition(" (at ")[0]
            raise self._at(line, column, message[:1].lower() + message[1:]) from error

    def read(self) -> list[DescribedFile]:
        self._check_keys(self._document, {"file"}, "a description")
        files = self._document.get("file")
        if not isinstance(files, list) or not files:
            raise self._error("", "a description begins with [[file]]")
        return [self._file(each) for each in files]

    def _file(self, table: Mapping[str, Any]) -> DescribedFile:
        self._check_keys(table, {"name", "of", "build-id", "probes"}, "a file")
        name, of = str(table.get("name", "")), str(table.get("of", ""))
        build_id = table.get("build-id")
        if not isinstance(build_id, str) or not re.fullmatch(r"[0-9a-f]{8,}", build_id):
            raise self._error("build-id", "a file has a build-id in hexadecimal: readelf -n shows it")
        probes = table.get("probes")
        if not isinstance(probes, dict) or not probes:
            raise self._error(build_id, "a file has probes", '[file.probes."PROVIDER:NAME"]')
        markers = [
            marker
            for key, value in probes.items()
            for part in (value if isinstance(value, list) else [value])
            for marker in self._markers(key, part)
        ]
        return DescribedFile(self._source, name, of, build_id, tuple(markers))

    def _markers(self, key: str, table: Any) -> Iterator[DescribedMarker]:  # noqa: ANN401 - of a user's file
        named = _MARKER.fullmatch(key)
        if named is None:
            raise self._error(key, f"{key!r} is no PROVIDER:NAME of a marker")
        if not isinstance(table, dict):
            raise self._error(key, f"{key} has neither a place nor arguments")
        self._check_keys(table, {"at", "pattern", "offset", "arguments"}, key)
        places = table.get("at")
        texts = places if isinstance(places, list) else [places]
        arguments = table.get("arguments", [])
        if not isinstance(arguments, list) or len(arguments) > 12:
            raise self._error(key, f"the arguments of {key} are a list of 12 texts at most")
        typed = tuple(self._argument(key, each) for each in arguments)
        if len({each.name for each in typed}) < len(typed):
            raise self._error(key, f"two arguments of {key} have one name")
        pattern = table.get("pattern", "")
        if pattern and (not isinstance(pattern, str) or not _PATTERN.fullmatch(pattern)):
            raise self._error(str(pattern), "a pattern is bytes in hexadecimal, ?? for any", "0f b6 ?? c3")
        for text in texts:
            found = _PLACE.fullmatch(text) if isinstance(text, str) else None
            if found is None:
                raise self._error(str(text or key), f"a place of {key} is missing or not understood", "FUNCTION+0x12")
            offset = int(found[1] or found[3] or "0", 0)
            if pattern:
                offset = table.get("offset", 0)
                if not isinstance(offset, int) or found[1]:
                    raise self._error(key, "with a pattern, there is a function, and a number as offset")
            place = DescribedPlace(str(text), found[2] or "", offset, pattern)
            yield DescribedMarker(named[1], named[2].replace("-", "__"), place, typed)

    def _argument(self, key: str, text: Any) -> MarkerArgument:  # noqa: ANN401
        found = _ARGUMENT.fullmatch(text) if isinstance(text, str) else None
        if found is None or found[2] not in _SIZES:
            known = ", ".join(_SIZES)
            raise self._error(str(text), f"an argument of {key} is not understood", f"NAME: TYPE = %rdi; {known}")
        name, kind, where = found[1], found[2], found[3]
        size, operand, problem = _SIZES[kind], None, "nothing is there"
        if "[" in where or _is_sum(where):
            operand = self._operand(text, where)
        else:
            for each in parse_arguments(f"{size}@{where}"):
                operand, problem = each.operand, each.problem
        if operand is None:
            raise self._error(text, f"{name} of {key} cannot be read: {problem}")
        is_float, width = kind in ("f32", "f64"), int(size.strip("-f"))
        return MarkerArgument(where, width, size[0] == "-", is_float, operand, name=name, is_text=kind == "cstr")

    def _operand(self, text: str, where: str) -> Operand:
        """Return what brackets mean: each is an address that is read where it leads."""
        is_read = where.startswith("[") and _closing(where) == len(where) - 1
        base, offsets = self._chain(text, where[1:-1] if is_read else where)
        if is_read and len(offsets) == 1:
            return InMemory(base, displacement=offsets[0])
        return Followed(base, tuple(offsets), is_read)

    def _chain(self, text: str, where: str) -> tuple[str, list[int]]:
        where = where.strip()
        if where.startswith("["):
            end = _closing(where)
            added = _ADDED.fullmatch(where[end + 1 :]) if end else None
            if not end or (added is None and where[end + 1 :].strip()):
                raise self._error(text, f"{where} is no address", "[[%rdi+8]+16]")
            base, offsets = self._chain(text, where[1:end])
            return base, [*offsets, _number(added[1], added[2]) if added else 0]
        found = _BASE.fullmatch(where)
        if found is None or found[1] not in NUMBERS:
            raise self._error(text, f"{where} is no register with an offset", "%rdi+8")
        return found[1], [_number(found[2], found[3]) if found[2] else 0]

    def _check_keys(self, table: Mapping[str, Any], known: set[str], what: str) -> None:
        for key in table:
            if key not in known:
                raise self._error(key, f"{what} has no {key!r}", ", ".join(sorted(known)))

    def _error(self, near: str, message: str, instead: str = "") -> SourceError:
        """Return the error at the first line that has a text; TOML's reader keeps no places of values."""
        for number, line in enumerate(self._lines, 1):
            if near and near in line:
                return self._at(number, line.index(near) + 1, message, instead)
        return self._at(1, 1, message, instead)

    def _at(self, line: int, column: int, message: str, instead: str = "") -> SourceError:
        source = self._lines[line - 1] if line <= len(self._lines) else ""
        return SourceError(
            message, file=self._source, line=line, column=column, source=source, instead=instead
        )  # fmt: skip


def _is_sum(where: str) -> bool:
    return _BASE.fullmatch(where) is not None and ("+" in where or "-" in where)


def _closing(where: str) -> int:
    """Return where the first bracket is closed, 0 if it is not."""
    depth = 0
    for index, character in enumerate(where):
        depth += (character == "[") - (character == "]")
        if not depth:
            return index
    return 0


def _number(sign: str, digits: str) -> int:
    return (-1 if sign == "-" else 1) * int(digits, 0)


def described_as(build_id: str, files: Sequence[DescribedFile]) -> list[DescribedFile]:
    """Return what is described of the file with a build-id."""
    return [each for each in files if each.build_id == build_id]
