"""One line of ``kprobe_events``: ``p[:[GROUP/]EVENT] PLACE [ARGUMENTS]``, ``r[MAXACTIVE]…``, ``-:[GROUP/]EVENT``."""

import errno
import os
import re
import stat
from dataclasses import dataclass
from typing import NoReturn

from anyprobe.kprobes.events.errors import DefinitionError, Problem
from anyprobe.kprobes.events.fetch import FetchArgument, FetchParser

GROUP, MAX_NAME, MAX_ACTIVE, MAX_ARGUMENTS = "kprobes", 64, 4096, 128
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NUMBER = re.compile(r"(?:0[xX][0-9a-fA-F]+|[0-9]+)")


@dataclass(frozen=True, slots=True)
class Point:
    """Where an event is: a symbol, an address, or an offset in a file."""

    text: str
    position: int
    module: str = ""
    symbol: str = ""
    offset: int = 0
    address: int | None = None
    path: str = ""


@dataclass(frozen=True, slots=True)
class Definition:
    """A line, read."""

    line: str
    kind: str
    """``p``, ``r`` or ``-``."""
    group: str
    event: str
    point: Point | None = None
    arguments: tuple[FetchArgument, ...] = ()
    maxactive: int = 0

    @property
    def name(self) -> str:
        """Group and event."""
        return f"{self.group}/{self.event}"

    def __str__(self) -> str:
        """Return the line as the kernel shows it."""
        head = f"{self.kind}{self.maxactive or ''}:{self.name} {self.point.text if self.point else ''}"
        return " ".join([head, *(f"{each.name}={each.text}" for each in self.arguments)])


def parse_definition(line: str) -> Definition:
    """Read a line; raise ``DefinitionError``."""
    return _Parser(line).run()


class _Parser:
    def __init__(self, line: str) -> None:
        self._line = line
        self._words = [(found.group(), found.start()) for found in re.finditer(r"\S+", line)]

    def _fail(self, position: int, problem: Problem, number: int = errno.EINVAL) -> NoReturn:
        raise DefinitionError(self._line, position, problem, number)

    def run(self) -> Definition:
        if not self._words or self._words[0][0][0] not in "pr-":
            self._fail(0, Problem.NO_COMMAND)
        (head, start), *others = self._words
        before, colon, name = head[1:].partition(":")
        kind, maxactive = head[0], self._maxactive(head[0], before, start + 1)
        group, event = self._name(name, start + len(head) - len(name)) if colon else ("", "")
        if kind == "-":
            return Definition(self._line, "-", group, event)
        if not others:
            self._fail(len(self._line), Problem.BAD_PROBE_ADDR)
        point, returns = self._point(*others[0], returns=kind == "r")
        if len(others) - 1 > MAX_ARGUMENTS:
            self._fail(others[MAX_ARGUMENTS + 1][1], Problem.TOO_MANY_ARGS)
        parser, used, arguments = FetchParser(self._line, returns=returns), set[str](), []
        for number, (text, position) in enumerate(others[1:], 1):
            arguments.append(parser.argument(text, position, number, used))
            used.add(arguments[-1].name)
        kind = "r" if returns else "p"
        return Definition(
            self._line, kind, group or GROUP, event or _made_up(kind, point), point, tuple(arguments), maxactive
        )

    def _maxactive(self, kind: str, text: str, position: int) -> int:
        if not text:
            return 0
        if kind != "r":
            self._fail(position, Problem.MAXACT_NO_KPROBE)
        if not text.isdigit():
            self._fail(position, Problem.BAD_MAXACT)
        if int(text) > MAX_ACTIVE:
            self._fail(position, Problem.MAXACT_TOO_BIG, errno.E2BIG)
        return int(text)

    def _name(self, text: str, position: int) -> tuple[str, str]:
        group, slash, event = text.partition("/")
        if not slash:
            group, event = "", text
        elif not group:
            self._fail(position, Problem.NO_GROUP_NAME)
        elif len(group) >= MAX_NAME:
            self._fail(position, Problem.GROUP_TOO_LONG)
        elif not _IDENTIFIER.fullmatch(group):
            self._fail(position, Problem.BAD_GROUP_NAME)
        position += len(text) - len(event)
        if not event:
            self._fail(position, Problem.NO_EVENT_NAME)
        if len(event) >= MAX_NAME:
            self._fail(position, Problem.EVENT_TOO_LONG)
        if not _IDENTIFIER.fullmatch(event):
            self._fail(position, Problem.BAD_EVENT_NAME)
        return group, event

    def _point(self, text: str, position: int, *, returns: bool) -> tuple[Point, bool]:
        place, percent, suffix = text.partition("%")
        if percent and suffix != "return":
            self._fail(position + len(place), Problem.BAD_ADDR_SUFFIX)
        returns = returns or bool(percent)
        if place.startswith("/"):
            point = self._file(place, position)
        elif _NUMBER.fullmatch(place):
            address = int(place, 16) if place[:2].lower() == "0x" else int(place)
            point = Point(place, position, address=address)
        else:
            point = self._symbol(place, position)
        if returns and point.offset and not point.path:
            self._fail(position, Problem.BAD_RETPROBE)
        return point, returns

    def _symbol(self, text: str, position: int) -> Point:
        module, colon, symbol = text.rpartition(":")
        if colon and module.endswith(":"):  # C++'s ::
            module, symbol = "", text
        found = re.search(r"[+-]", symbol)
        name = symbol[: found.start()] if found else symbol
        offset = symbol[found.start() :] if found else "+0"
        if not name or offset[0] == "-" or not _NUMBER.fullmatch(offset[1:]):
            self._fail(position, Problem.BAD_PROBE_ADDR)
        number = offset[1:]
        value = int(number, 16) if number[:2].lower() == "0x" else int(number)
        if value > 0xFFFFFFFF:
            self._fail(position, Problem.BAD_PROBE_ADDR)
        return Point(text, position, module, name, value)

    def _file(self, text: str, position: int) -> Point:
        """Read ``PATH:OFFSET[(REFERENCE_COUNTER)]`` or ``PATH:SYMBOL[+OFFSET]``."""
        path, colon, offset = text.rpartition(":")
        if not colon:
            self._fail(position, Problem.BAD_PROBE_ADDR)
        try:
            mode = os.stat(path).st_mode
        except OSError:
            self._fail(position, Problem.FILE_NOT_FOUND, errno.ENOENT)
        if not stat.S_ISREG(mode):
            self._fail(position, Problem.NO_REGULAR_FILE)
        begin = position + len(path) + 1
        number, brace, counter = offset.partition("(")
        if brace:
            self._reference_counter(counter, begin + len(number) + 1)
        if _NUMBER.fullmatch(number):
            return Point(text, position, path=path, offset=int(number, 16) if number[:2] == "0x" else int(number))
        if not _IDENTIFIER.match(number):
            self._fail(begin, Problem.BAD_UPROBE_OFFS)
        found = self._symbol(number, begin)
        return Point(text, position, module=path, symbol=found.symbol, offset=found.offset)

    def _reference_counter(self, text: str, position: int) -> None:
        number, brace, rest = text.partition(")")
        if not brace:
            self._fail(position + len(text), Problem.REFCNT_OPEN_BRACE)
        if rest:
            self._fail(position + len(number) + 1, Problem.BAD_REFCNT_SUFFIX)
        if not _NUMBER.fullmatch(number):
            self._fail(position, Problem.BAD_REFCNT)


def _made_up(kind: str, point: Point) -> str:
    """Return the name of an event that was given none."""
    if point.address is not None:
        return f"{kind}_0x{point.address:x}"
    base = point.symbol or os.path.basename(point.path)
    return re.sub(r"\W", "_", f"{kind}_{base}_{point.offset:#x}" if point.path else f"{kind}_{base}_{point.offset}")
