"""Standard output and error that may be closed, full, or unable to show all characters: an ordinary error then.

What cannot be encoded is replaced: lines and bars by what resembles them, names by their escapes.
"""

import codecs
import errno
import io
import os
import select
import stat
import sys
import time
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
_ROOM = 4096
"""Bytes that a pipe has room for where it can be written at all: PIPE_BUF."""
_LOOKS = 0.1
"""Seconds between two looks at whether the end was asked for, while nothing can be written."""
_PATIENCE = 0.5
"""Seconds that a reader has for going on, once the end was asked for."""


class Asked:
    """How often the user, or a signal, has asked for the end. What writes lines as they come sets ``ends_lines``."""

    count = 0
    ends_lines = False


class Sink(io.FileIO):
    """A descriptor that is written to; what is asked to end does not wait for ever for a reader that has stopped.

    A request counts that comes while nothing can be written. One that came before counts where lines are written as
    they come: results at the end, which a pager shows page by page, are wanted in spite of it.
    """

    def __init__(self, file: str | int, *, closefd: bool = True) -> None:
        """Open a file for writing, or take a descriptor. What is in the file stays until something is written."""
        if isinstance(file, str):
            super().__init__(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666), "wb")
        else:
            super().__init__(file, "wb", closefd=closefd)
        self._may_wait = not stat.S_ISREG(os.fstat(self.fileno()).st_mode)
        self._has_old = isinstance(file, str) and not self._may_wait

    def empty(self) -> None:
        """Take out what was in the file before, if nothing has been written to it."""
        if self._has_old:
            self._has_old = False
            self.truncate(0)

    def write(self, data: Any, /) -> int:  # noqa: ANN401 - any buffer
        """Write some bytes, as any raw file does; raise ``OSError`` with ``ETIMEDOUT`` where the reader has stopped."""
        data = memoryview(data).cast("B")
        self.empty()
        if not (self._may_wait and data.nbytes):
            return super().write(data) or 0
        data = data[:_ROOM]  # more might block
        poll = select.poll()
        poll.register(self.fileno(), select.POLLOUT)
        asked, since = 0 if Asked.ends_lines else Asked.count, None
        while not (poll.poll(_LOOKS * 1000) and (written := self._write_now(data))):
            if since is None and Asked.count > asked:
                since = time.monotonic()
            if since is not None and time.monotonic() - since > _PATIENCE:
                raise OSError(errno.ETIMEDOUT, "its reader has stopped reading")
        return written

    def _write_now(self, data: memoryview) -> int:
        """Write what there is room for, and return how much; 0 where a terminal has not even room for a line's end.

        A terminal can be written to as soon as it has room for a byte, and blocks for the rest; a second description
        of it does not, and leaves that of others as it is.
        """
        if not os.isatty(self.fileno()):
            return super().write(data) or 0
        try:
            again = os.open(f"/proc/self/fd/{self.fileno()}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:  # another user's terminal
            return super().write(data) or 0
        try:
            return os.write(again, data)
        except BlockingIOError:
            time.sleep(_LOOKS / 10)
            return 0
        finally:
            os.close(again)


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

    def end(self) -> None:
        """Write what is buffered; where nothing was written at all, leave an empty file."""
        if self.closed:
            return
        self.flush()
        raw = getattr(self.buffer, "raw", None)
        if isinstance(raw, Sink):
            raw.empty()

    def _failure(self, error: OSError) -> OutputFailed:
        reason = "it is closed" if error.errno == errno.EBADF else error.strerror
        return OutputFailed(f"cannot write to {self.called}: {reason}", error.errno)


def open_output(path: str) -> Output:
    """Open a file for results; ``OSError`` is the user's mistake."""
    return Output(io.BufferedWriter(Sink(path)), path, encoding="utf-8")


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
        return Output(io.BufferedWriter(Sink(descriptor, closefd=False)), called, encoding="utf-8")
    # whatever else it is, prepared already or put there by a caller, is left as it is
    if not isinstance(stream, io.TextIOWrapper) or stream not in (sys.__stdout__, sys.__stderr__):
        return stream
    encoding, by_line = stream.encoding, stream.line_buffering
    stream.detach()
    sink = io.BufferedWriter(Sink(descriptor, closefd=False))
    return Output(sink, called, encoding=encoding, line_buffering=by_line)


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
