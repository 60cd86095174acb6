"""Standard streams that are closed or full, or cannot show all characters."""

import contextlib
import io
import os
import select
import subprocess
import sys
import threading
import time

import click
import pytest

from anyprobe.cli.terminal import output, streams
from anyprobe.core.errors import OutputFailed

ANYPROBE = f"'{sys.executable}' -m anyprobe"
STREAMS = "from anyprobe.cli.terminal import streams"


def shell(text, **environment):
    command = ["bash", "-c", text]
    return subprocess.run(command, capture_output=True, timeout=180, env={**os.environ, **environment}, check=False)


@pytest.mark.parametrize(
    ("command", "where", "why"),
    [
        ("--help", ">/dev/full", "No space left on device"),
        ("count --help", "<&- >&-", "it is closed"),
        ("--version", "0>&- 1>&-", "it is closed"),
        ("doctor", ">&-", "it is closed"),
        ("doctor --json", ">/dev/full", "No space left on device"),
        ("probes -p $$", ">/dev/full", "No space left on device"),
    ],
)
def test_output_that_cannot_be_written_is_an_ordinary_error(command, where, why):
    shown = shell(f"{ANYPROBE} {command} {where}")
    assert shown.stderr.decode() == f"anyprobe: cannot write to standard output: {why}\n"
    assert (shown.returncode, shown.stdout) == (1, b"")


@pytest.mark.parametrize("where", ["2>/dev/full", "2>&-", "2>&- >&-"])
def test_errors_that_cannot_be_said_keep_their_status(where):
    assert shell(f"{ANYPROBE} count {where}").returncode == 2
    assert shell(f"{ANYPROBE} count libc:malloc -p 999999999 {where}").returncode == 1


def test_a_reader_that_has_seen_enough_is_no_error():
    shown = shell(f"{ANYPROBE} doctor --json | true; echo ${{PIPESTATUS[0]}}")
    assert shown.stdout.decode().strip() in {"0", "1"}  # what it found
    assert shown.stderr == b""


def test_a_closed_descriptor_is_given_to_nothing_else():
    program = f"import os; {STREAMS}; streams.prepare(); streams.tell(str(os.open('/', 0)))"
    assert int(shell(f"'{sys.executable}' -c \"{program}\" <&- >&-").stderr) > 2


def test_a_closed_descriptor_stays_closed_in_a_command():
    program = f"import os; {STREAMS}; streams.prepare(); os.execvp('ls', ['ls', '/proc/self/fd/'])"
    listed = shell(f"'{sys.executable}' -c \"{program}\" <&- 2>&-").stdout.split()
    assert b"2" not in listed


@pytest.mark.parametrize(
    ("text", "encoding", "shown"),
    [
        ("größe", "ascii", b"gr\\xf6\\xdfe"),
        ("größe", "latin-1", "größe".encode("latin-1")),
        ("größe", "utf-8", "größe".encode()),
        ("a\udcff", "utf-8", b"a\\xff"),
        ("█▌ 5 µs … ≤ →", "ascii", b"## 5 us ... <= ->"),
        ("─│┼", "ascii", b"-|+"),
        ("\U0001f600数", "ascii", b"\\U0001f600\\u6570"),
    ],
)
def test_what_cannot_be_encoded_is_replaced(text, encoding, shown):
    raw = io.BytesIO()
    stream = streams.Output(raw, "standard output", encoding=encoding)
    stream.write(text)
    stream.flush()
    assert raw.getvalue() == shown


def test_a_file_that_is_full_is_told_by_its_name():
    with (
        pytest.raises(OutputFailed, match="cannot write to /dev/full: No space left"),
        streams.open_output("/dev/full") as stream,
    ):
        stream.write("x")


def test_what_was_in_a_file_stays_until_something_is_written(tmp_path):
    path = tmp_path / "results"
    path.write_text("of an earlier run")
    with pytest.raises(click.UsageError), output.results(str(path), program_owns_output=False):
        raise click.UsageError("no such function")
    assert path.read_text() == "of an earlier run"
    with output.results(str(path), program_owns_output=False) as stream:
        stream.write("shorter")
    assert path.read_text() == "shorter"
    with output.results(str(path), program_owns_output=False):
        pass
    assert path.read_text() == ""


@pytest.mark.parametrize("command", ["count", "time", "trace", "hist", "script", "list", "explain", "doctor", "probes"])
def test_help_is_ascii(command):
    """Click writes it to a stream of its own making."""
    assert shell(f"{ANYPROBE} {command} --help").stdout.isascii()


def test_specs_are_text_in_a_locale_of_ascii():
    assert streams.as_text(os.fsdecode("größe".encode())) == "größe"
    program = f"import sys; {STREAMS}; print(ascii(streams.as_text(sys.argv[1])))"
    ascii_only = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    assert shell(f"'{sys.executable}' -c '{program}' größe", **ascii_only).stdout == b"'gr\\xf6\\xdfe'\n"


@pytest.fixture
def full_pipe():
    """A pipe with no room left: its ends, and how many bytes are in it."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    size = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            size += os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    yield reader, writer, size
    os.close(reader)
    os.close(writer)


def ask_once_it_waits(monkeypatch):
    """Have the end asked for at the first look at whether there is room."""
    real = streams.select.poll

    class Poll:
        def __init__(self):
            self.poll_ = real()
            self.register = self.poll_.register

        def poll(self, timeout):
            streams.Asked.count = 1
            return self.poll_.poll(timeout)

    monkeypatch.setattr(streams.select, "poll", Poll)


@pytest.mark.parametrize("is_line", [False, True])
def test_a_stopped_reader_is_given_up_once_the_end_is_asked_for(monkeypatch, full_pipe, is_line):
    monkeypatch.setattr(streams.Asked, "count", int(is_line))  # lines: asked for before
    monkeypatch.setattr(streams.Asked, "ends_lines", is_line)
    if not is_line:
        ask_once_it_waits(monkeypatch)
    output = streams.Output(io.BufferedWriter(streams.Sink(full_pipe[1], closefd=False)), "it", encoding="utf-8")
    output.write("lost")
    with pytest.raises(OutputFailed, match="cannot write to it: its reader has stopped reading"):
        output.flush()
    os.read(full_pipe[0], 1 << 20)
    output.close()


def test_results_wait_for_a_slow_reader_though_the_end_was_asked_for_before(monkeypatch, full_pipe):
    monkeypatch.setattr(streams.Asked, "count", 1)
    reader, writer, size = full_pipe
    looks = []
    real = streams.select.poll

    class Poll:
        """Has the reader go on when the writer has looked for longer than its patience."""

        def __init__(self):
            self.poll_ = real()
            self.register = self.poll_.register

        def poll(self, timeout):
            looks.append(timeout)
            if len(looks) * timeout > 3000 * streams._PATIENCE:
                assert len(os.read(reader, size)) == size
            return self.poll_.poll(0)

    monkeypatch.setattr(streams.select, "poll", Poll)
    sink = streams.Sink(writer, closefd=False)
    assert sink.write(b"results") == len(b"results")
    assert os.read(reader, 100) == b"results"


@pytest.fixture
def nearly_full_terminal():
    """Make a terminal that is full but for a few bytes; return its descriptor."""
    reader, writer = os.openpty()
    again = os.open(f"/proc/self/fd/{writer}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY)
    poll = select.poll()
    poll.register(writer, select.POLLOUT)
    since = time.monotonic()
    while time.monotonic() - since < 0.3:  # it makes room as it goes on
        with contextlib.suppress(BlockingIOError):
            os.write(again, b"x" * 64)
            since = time.monotonic()
    while not poll.poll(100):
        os.read(reader, 16)
    yield writer
    for each in (reader, writer, again):
        os.close(each)


def test_a_terminal_with_little_room_takes_what_it_has_room_for(nearly_full_terminal):
    """It can be written to, but not without waiting for its reader: what is asked to end would not look up."""
    written = []
    sink = streams.Sink(nearly_full_terminal, closefd=False)
    thread = threading.Thread(target=lambda: written.append(sink.write(b"y" * 4096)), daemon=True)
    thread.start()
    thread.join(30)
    assert 0 < written[0] < 4096


def test_a_terminal_that_was_given_up_is_written_to_no_more(monkeypatch, nearly_full_terminal):
    monkeypatch.setattr(streams.Asked, "count", 1)
    monkeypatch.setattr(streams.Asked, "ends_lines", True)
    descriptor = os.dup(nearly_full_terminal)
    output = streams.Output(io.BufferedWriter(streams.Sink(descriptor)), "it", encoding="utf-8")
    with pytest.raises(OutputFailed, match="its reader has stopped reading"):
        output.write("y" * 100_000)
    streams.abandon(output)
    output.close()
