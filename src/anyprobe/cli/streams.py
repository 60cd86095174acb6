"""Standard output and error that may be closed, full, or unable to show all characters: an ordinary error then.

What cannot be encoded is replaced: lines and bars by what resembles them, names by their escapes.
"""

import codecs
import errno
import io
import os
import sys
from contextlib import suppress
from typing import Any, TextIO

from anyprobe.core.errors import OutputFailed
from anyprobe.core.printable import printable

REPLACING = "anyprobe-replace"
"""The name of the way in which what cannot be encoded is replaced."""
_RESEMBLING = {
    "…": "...", "·": ".", "→": "->", "←": "<-", "≤": "<=", "≥": ">=", "≈": "~", "\u00d7": "x",
    "\u2212": "-", "\u2013": "-", "\u2014": "-",
    "µ": "u", "\u03bc": "u", "Σ": "sum", "∅": "-", "∞": "inf", "\u2018": "'", "\u2019": "'",
    "“": '"', "”": '"', "✓": "+", "✗": "x",
    "▏": "|", "▎": "|", "▍": "#", "▌": "#", "▋": "#", "▊": "#", "▉": "#", "█": "#", "▐": "#", "■": "#",
    "▁": "_", "▂": "_", "▃": "-", "▄": "-", "▅": "=", "▆": "=", "▇": "#", "░": "-", "▒": "+", "▓": "%", "⋮": ":",
}  # fmt: skip
_BOX_DRAWING = range(0x2500, 0x2580)


class Output(io.TextIOWrapper):
    """A text stream whose failures say which stream it was; its reader's leaving is told from other failures."""

    def __init__(self, raw: Any, called: str, *, encoding: str, line_buffering: bool = False) -> None:  # noqa: ANN401
        """Write to a buffered binary stream."""
        super().__init__(raw, encoding=encoding, errors=REPLACING, line_buffering=line_buffering)
        self.called = called

    def write(self, text: str, /) -> int:
        """Write as any stream does."""
        try:
            return super().write(text)
        except OSError as error:
            raise self._failure(error) from error

    def flush(self) -> None:
        """Write what is buffered."""
        try:
            super().flush()
        except OSError as error:
            raise self._failure(error) from error

    def close(self) -> None:
        """Write what is buffered, and close."""
        try:
            super().close()
        except OSError as error:
            raise self._failure(error) from error

    def _failure(self, error: OSError) -> OutputFailed:
        reason = "it is closed" if error.errno == errno.EBADF else error.strerror
        return OutputFailed(f"cannot write to {self.called}: {reason}", error.errno)


def open_output(path: str) -> Output:
    """Open a file for results; ``OSError`` is the user's mistake."""
    return Output(open(path, "wb"), path, encoding="utf-8")


def prepare() -> None:
    """Make standard output and error streams that fail by ``OutputFailed``, and keep closed ones closed.

    A descriptor that is closed would be given to the next file that is opened, and what is printed would end up there:
    in a pipe to the program, say. So the null device stands in for it, opened so that writing fails as it would.
    """
    for descriptor, access in enumerate((os.O_WRONLY, os.O_RDONLY, os.O_RDONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, access | os.O_CLOEXEC)  # the lowest free number: this one; a command has it closed
    sys.stdout = _prepared(sys.stdout, 1, "standard output")
    sys.stderr = _prepared(sys.stderr, 2, "standard error")


def _prepared(stream: TextIO | None, descriptor: int, called: str) -> TextIO:
    if stream is None:
        return Output(open(descriptor, "wb", closefd=False), called, encoding="utf-8")
    # whatever else it is, prepared already or put there by a caller, is left as it is
    if not isinstance(stream, io.TextIOWrapper) or stream not in (sys.__stdout__, sys.__stderr__):
        return stream
    encoding, by_line = stream.encoding, stream.line_buffering
    return Output(stream.detach(), called, encoding=encoding, line_buffering=by_line)


def as_text(argument: str) -> str:
    """Return an argument as the text that it is in UTF-8, whatever the locale has made of it."""
    try:
        return os.fsencode(argument).decode()
    except UnicodeError:
        return argument


def check_open(stream: TextIO) -> None:
    """Fail at once where nothing can be written, before minutes are spent on results that cannot be shown."""
    if isinstance(stream, Output):
        try:
            os.write(stream.fileno(), b"")
        except OSError as error:
            raise stream._failure(error) from error  # noqa: SLF001 - of this module


def abandon_what_fails() -> None:
    """Forget what standard streams could not write; what they can is written."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OutputFailed, OSError):
            abandon(stream)


def abandon(stream: TextIO) -> None:
    """Forget what could not be written: Python would complain once more when it writes it at exit."""
    with suppress(OSError, ValueError):
        sink = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(sink, stream.fileno())
        os.close(sink)
    with suppress(OutputFailed, OSError, ValueError):
        stream.flush()


def tell(message: str) -> None:
    """Write a line to standard error; where that is impossible, say nothing: results matter more."""
    try:
        sys.stderr.write(printable(message, "\n\t") + "\n")
        sys.stderr.flush()
    except (OutputFailed, OSError):
        abandon(sys.stderr)


def _replaced(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end]
    return "".join(map(_resembling, text)), error.end


def _resembling(character: str) -> str:
    code = ord(character)
    if code in _BOX_DRAWING:
        return "-" if character in "─━┄┅┈┉╌╍═╴╶╸╺" else "|" if character in "│┃┆┇┊┋╎╏║╵╷╹╻" else "+"
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a name that is no text
        return f"\\x{code - 0xDC00:02x}"
    return _RESEMBLING.get(character) or character.encode("ascii", "backslashreplace").decode()


codecs.register_error(REPLACING, _replaced)
