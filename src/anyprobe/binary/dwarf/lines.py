"""Source lines: at which addresses statements begin, by the line number programs (DWARF 2 to 5, section 6.2)."""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from anyprobe.binary.dwarf import forms
from anyprobe.binary.dwarf.units import Dwarf
from anyprobe.binary.objects.leb128 import read_sleb, read_uleb

_COPY, _ADVANCE_PC, _ADVANCE_LINE, _SET_FILE, _NEGATE, _CONST_ADD, _FIXED_ADVANCE = 1, 2, 3, 4, 6, 8, 9
_END, _SET_ADDRESS = 1, 2
_PATH, _DIRECTORY = 1, 2


@dataclass(frozen=True, slots=True)
class _Program:
    """One unit's program, with what its header says."""

    start: int
    end: int
    is_statement: bool
    line_base: int
    line_range: int
    lengths: bytes
    """How many operands each standard operation has, by its number."""
    files: dict[int, str]


Lines = dict[int, list[int]]
"""The lines of one file that have code, each with the addresses where control comes to it, ascending."""


def lines_of(dwarf: Dwarf, file: str) -> dict[str, Lines]:
    """Return the lines with code of the files that a name means, by their paths.

    ``file`` is a path or the end of one; several files may have the same. An address is among those of a line where a
    statement of it begins and the statement before is of another line: what a line consists of is passed once.
    """
    content, file = dwarf.section(".debug_line"), os.path.normpath(file)
    found: dict[str, dict[int, set[int]]] = {}
    for program in _programs(dwarf, content, file):
        wanted = {number: path for number, path in program.files.items() if _is_called(path, file)}
        if not wanted:
            continue
        for address, number, line in _beginnings(_statements(content, program), wanted):
            found.setdefault(wanted[number], {}).setdefault(line, set()).add(address)
    return {path: {line: sorted(each) for line, each in lines.items()} for path, lines in found.items()}


def statements(dwarf: Dwarf) -> Iterator[tuple[int, str, int]]:
    """Yield the address, file and line of each row at which a statement begins, of all units."""
    content = dwarf.section(".debug_line")
    for program in _programs(dwarf, content, ""):
        for row in _statements(content, program):
            if row is not None and row[1] in program.files:
                yield row[0], program.files[row[1]], row[2]


def files_of(dwarf: Dwarf, place: int) -> dict[int, str]:
    """Return the paths of a unit's files by the numbers that it gives them; ``place``: where its program begins."""
    content = dwarf.section(".debug_line")
    if not 0 <= place < len(content):
        return {}
    size, offset_size, start = forms.initial_length(content, place)
    return _program(dwarf, content, start, start + size, offset_size).files


def _is_called(path: str, file: str) -> bool:
    """Return whether a path is, or ends with, a name; of some files the path from where they were compiled is known."""
    return path == file or path.endswith("/" + file) or (path[:1] != "/" == file[:1] and file.endswith("/" + path))


def _beginnings(rows: Iterator[tuple[int, int, int] | None], files: dict[int, str]) -> Iterator[tuple[int, int, int]]:
    """Yield of statements that follow one another in one line the first; a file may have several numbers."""
    here: dict[tuple[str | None, int], int] = {}
    before: dict[tuple[str | None, int], int] = {}
    at = -1
    for row in rows:
        if row is None or row[0] != at:
            yield from ((at, number, key[1]) for key, number in here.items() if key[0] and key not in before)
            before, here, at = (here, {}, row[0]) if row is not None else ({}, {}, -1)
        if row is not None:
            here.setdefault((files.get(row[1]), row[2]), row[1])


def _programs(dwarf: Dwarf, content: bytes, file: str) -> Iterator[_Program]:
    """Yield the programs of units; ``file``: a name that has to be in them, as far as that can be seen at once."""
    name = file.rpartition("/")[2].encode() + b"\0"
    at = 0
    while at < len(content):
        size, offset_size, start = forms.initial_length(content, at)
        end = start + size
        # from version 5 on names are elsewhere
        if content[start] >= 5 or not file or content.find(name, start, end) >= 0:
            yield _program(dwarf, content, start, end, offset_size)
        at = end


def _program(dwarf: Dwarf, content: bytes, start: int, end: int, offset_size: int) -> _Program:
    version = int.from_bytes(content[start : start + 2], "little")
    at = start + (4 if version >= 5 else 2)
    first = at + offset_size + int.from_bytes(content[at : at + offset_size], "little")
    at += offset_size + (2 if version >= 4 else 1)
    is_statement, base, line_range, operations = content[at : at + 4]
    lengths = content[at + 3 : at + 3 + operations]  # the first operation is 1: that of 0 is never asked for
    read = _entries if version >= 5 else _old_entries
    files = read(dwarf, content, at + 3 + operations, offset_size)
    return _Program(first, end, bool(is_statement), base - (base >> 7 << 8), line_range, lengths, files)


def _old_entries(dwarf: Dwarf, content: bytes, at: int, offset_size: int) -> dict[int, str]:
    """Read the paths of files up to version 4; the directory 0 is left out, which only the unit knows."""
    del dwarf, offset_size
    directories = [""]
    while content[at]:
        end = content.index(b"\0", at)
        directories.append(content[at:end].decode(errors="replace"))
        at = end + 1
    at += 1
    files: dict[int, str] = {}
    while content[at]:
        end = content.index(b"\0", at)
        name = content[at:end].decode(errors="replace")
        directory, at = read_uleb(content, end + 1)
        _, at = read_uleb(content, at)
        _, at = read_uleb(content, at)
        files[len(files) + 1] = _joined(directories, directory, name)
    return files


def _entries(dwarf: Dwarf, content: bytes, at: int, offset_size: int) -> dict[int, str]:
    """Read the paths of files from version 5 on."""
    directories, at = _table(dwarf, content, at, offset_size)
    files, _ = _table(dwarf, content, at, offset_size)
    paths = [path for path, _ in directories]
    return {number: _joined(paths, directory, name) for number, (name, directory) in enumerate(files)}


def _table(dwarf: Dwarf, content: bytes, at: int, offset_size: int) -> tuple[list[tuple[str, int]], int]:
    """Return paths with the numbers of their directories, and where the table ends."""
    kinds, at = content[at], at + 1
    form_of: list[tuple[int, int]] = []
    for _ in range(kinds):
        kind, at = read_uleb(content, at)
        form, at = read_uleb(content, at)
        form_of.append((kind, form))
    count, at = read_uleb(content, at)
    found: list[tuple[str, int]] = []
    for _ in range(count):
        path, directory = "", 0
        for kind, form in form_of:
            form, value, at = forms.read(content, at, form, offset_size)  # noqa: PLW2901 - forms.read may unwrap it
            if kind == _PATH:
                path = _text(dwarf, form, value)
            elif kind == _DIRECTORY and isinstance(value, int):
                directory = value
        found.append((path, directory))
    return found, at


def _text(dwarf: Dwarf, form: int, value: forms.Value) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    texts = dwarf.section(".debug_line_str") if form == forms.LINE_STRP else dwarf.strings
    return texts[value : texts.index(b"\0", value)].decode(errors="replace")


def _joined(directories: list[str], directory: int, name: str) -> str:
    before = directories[directory] if directory < len(directories) else ""
    return os.path.normpath(os.path.join(directories[0], before, name)) if directories else name


def _statements(content: bytes, program: _Program) -> Iterator[tuple[int, int, int] | None]:
    """Yield the address, file and line of each row at which a statement begins, and None after connected code."""
    at, end, special = program.start, program.end, len(program.lengths)
    address, file, line, is_statement = 0, 1, 1, program.is_statement
    while at < end:
        operation, at = content[at], at + 1
        if operation >= special:
            step = operation - special
            address += step // program.line_range
            line += program.line_base + step % program.line_range
            if is_statement:
                yield address, file, line
        elif operation == 0:
            size, at = read_uleb(content, at)
            if content[at] == _END:
                yield None
                address, file, line, is_statement = 0, 1, 1, program.is_statement
            elif content[at] == _SET_ADDRESS:
                address = int.from_bytes(content[at + 1 : at + size], "little")
            at += size
        elif operation == _COPY:
            if is_statement:
                yield address, file, line
        elif operation == _ADVANCE_PC:
            step, at = read_uleb(content, at)
            address += step
        elif operation == _ADVANCE_LINE:
            step, at = read_sleb(content, at)
            line += step
        elif operation == _SET_FILE:
            file, at = read_uleb(content, at)
        elif operation == _NEGATE:
            is_statement = not is_statement
        elif operation == _CONST_ADD:
            address += (255 - special) // program.line_range
        elif operation == _FIXED_ADVANCE:
            address += int.from_bytes(content[at : at + 2], "little")
            at += 2
        else:
            for _ in range(program.lengths[operation]):
                _, at = read_uleb(content, at)
