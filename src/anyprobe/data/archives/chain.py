"""Files of JSON lines that are chained by hashes: what is changed, left out or moved is found, and named by line.

A line is an object; its last member, ``hash``, is the SHA-256 of all before it on the line, and ``prev`` that of the
line before. ``seq`` counts lines from 1. A file that was made anew as a whole is told by the hash of a line of it
that is kept elsewhere, and by nothing else.
"""

import fcntl
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from anyprobe.core.errors import TargetError, UsageError

FIRST = "0" * 64
"""What the first line has as the hash of the one before."""
BEGIN, END = "begin", "end"
"""The events of the first and the last line of a run."""
_MARK = b', "hash": "'
_HASH_BYTES = len(_MARK) + 64 + len(b'"}')
_MOST_FAULTS = 20
"""Faults that are told of."""


class Fault(NamedTuple):
    """What is wrong with a line."""

    line: int
    what: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What a file's lines say about it."""

    lines: int
    """Whole lines that follow each other, from the first on."""
    last_hash: str
    """The hash of the last of these."""
    events: int
    lost: int
    """Events that there were no lines for, as the lines say."""
    faults: tuple[Fault, ...]
    open_since: int | None
    """The first line of the run at the end of the file, where that run has no last line."""
    is_torn: bool = False
    """Whether the last line is a part of one."""
    has_head: bool = True
    """Whether there is a line with the hash that was asked for."""

    @property
    def is_whole(self) -> bool:
        """Whether nothing is missing or changed."""
        return not (self.faults or self.is_torn or self.open_since is not None) and self.has_head


class Chain:
    """A file that lines are appended to; each is written by one system call, and none is ever changed."""

    def __init__(self, path: str, text_of: Callable[[dict[str, Any]], str]) -> None:
        """Make a file, or go on with one that is whole.

        Args:
            path: the file.
            text_of: makes an object one line of JSON.

        Raises:
            UsageError: the file cannot be written, is in use, or is no chain that could be gone on with.
        """
        self._text_of = text_of
        self._adding = threading.Lock()
        """Held while a line is made and written: programs that are executed have lines from another thread."""
        try:
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}") from None
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._refuse(f"{path}: another audit writes there")
        self.lines, self.last_hash = 0, FIRST
        if os.fstat(self._file).st_size:
            try:
                found = verify(path)
            except OSError as error:
                self._refuse(f"{path}: {error.strerror}")
            if found.faults or found.is_torn:
                self._refuse(f"{path} is no file of an audit that could be gone on with: anyprobe audit verify {path}")
            self.lines, self.last_hash = found.lines, found.last_hash

    def _refuse(self, message: str) -> None:
        os.close(self._file)
        raise UsageError(message)

    def add(self, event: str, members: Mapping[str, Any]) -> int:
        """Append a line, and return its number."""
        with self._adding:
            return self._add(event, members)

    def _add(self, event: str, members: Mapping[str, Any]) -> int:
        self.lines += 1
        body = self._text_of({"seq": self.lines, "prev": self.last_hash, "event": event, **members}).encode()
        body = body.removesuffix(b"}")
        self.last_hash = hashlib.sha256(body).hexdigest()
        line = body + _MARK + self.last_hash.encode() + b'"}\n'
        try:
            written = os.write(self._file, line)
        except OSError as error:
            raise TargetError(f"the audit ends, as its file takes no more: {error.strerror}") from error
        if written != len(line):
            raise TargetError("the audit ends, as its file takes no more; its last line is torn")
        return self.lines

    def close(self) -> None:
        """Have what was written reach the disk, and close the file."""
        os.fsync(self._file)
        os.close(self._file)


def verify(path: str, head: str | None = None) -> Verified:
    """Read a file and return what is wrong with it, by line; ``head`` is the hash of a line that there must be."""
    faults: list[Fault] = []
    before, expected, number = FIRST, 1, 0
    whole, last, events, lost, opened = 0, FIRST, 0, 0, None
    has_head, is_torn = head is None, False
    with open(path, "rb") as file:
        for number, line in _lines(file):
            if not line.endswith(b"\n"):
                is_torn = True
                break
            found = _read(line[:-1])
            if isinstance(found, str):
                faults.append(Fault(number, found))
                # what follows a line that was changed is compared with the hash that this line says it has
                before, expected = _hash_in(line[:-1]) or before, expected + 1
                continue
            wrong = _follows(found, before, expected)
            if wrong is not None:
                faults.append(Fault(number, wrong))
            before, expected = found["hash"], found["seq"] + 1
            has_head = has_head or before == head
            if not faults:
                whole, last = number, before
            match found["event"]:
                case "begin":
                    opened = number
                case "end":
                    opened = None
                case "lost":
                    lost += found.get("count", 0)
                case "process" | "kernel" | "not audited":
                    pass
                case _:
                    events += 1
    return Verified(whole, last, events, lost, tuple(faults[:_MOST_FAULTS]), opened, is_torn, has_head)


def _lines(file: Any) -> Iterator[tuple[int, bytes]]:  # noqa: ANN401 - a binary file
    return enumerate(file, 1)


def _read(line: bytes) -> dict[str, Any] | str:
    """Return the object of a line, or what is wrong with it."""
    body, end = line[:-_HASH_BYTES], line[-_HASH_BYTES:]
    try:
        found = json.loads(line)
    except ValueError:
        return "this is no line of JSON: it was changed"
    if not (isinstance(found, dict) and isinstance(found.get("seq"), int) and isinstance(found.get("event"), str)):
        return "this is no line of an audit"
    if not end.startswith(_MARK) or hashlib.sha256(body).hexdigest() != found.get("hash"):
        return "this line was changed: its hash is that of another text"
    return found


def _hash_in(line: bytes) -> str | None:
    end = line[-_HASH_BYTES:]
    return end[len(_MARK) : -2].decode(errors="replace") if end.startswith(_MARK) else None


def _follows(found: dict[str, Any], before: str, expected: int) -> str | None:
    """Return what is wrong with the place of a line, if anything is."""
    number = found["seq"]
    if number > expected:
        return f"this is line {number} of the audit, {number - expected} before it are missing, or stand elsewhere"
    if number < expected:
        return f"this is line {number} of the audit, after line {expected - 1}: it was moved, or stands here again"
    return None if found.get("prev") == before else "this line does not follow the one before it, which is another now"
