"""What a terminal of 80 columns shows: each row in one line, without colour where NO_COLOR is set."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from support.driver import build

pytestmark = pytest.mark.live

PROGRAM = """
#include <unistd.h>
static volatile long sink;
__attribute__((noinline)) long varied(long n) { for (long i = 0; i < n; i++) sink++; return sink; }
int main(void)
{
    for (int i = 0; i < 20000; i++) varied(i % 1000 ? i % 3 : 3000);
    varied(400000000); /* longer than any other call may be kept from running */
    return 0;
}
"""


@pytest.fixture
def shown():
    program = build("varied.c", "-O1", text=PROGRAM)

    def run(*arguments):
        controller, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
        environment |= {"NO_COLOR": "1", "TERM": "xterm"}
        command = [sys.executable, "-m", "anyprobe", *arguments, "--quiet", "--", program]
        with subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment) as process:
            os.close(terminal)
            text = b""
            while chunk := _read(controller):
                text += chunk
            assert process.wait(180) == 0
        os.close(controller)
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text.decode()).replace("\r", "").splitlines()

    return run


def _read(descriptor):
    try:
        return os.read(descriptor, 1 << 16)
    except OSError:  # the terminal has been closed at its other end
        return b""


@pytest.mark.parametrize(
    "arguments",
    [
        ("time", "a.out:varied"),
        ("hist", "a.out:varied", "--of", "latency_ns"),
        ("hist", "a.out:varied", "--of", "arg0"),
    ],
)
def test_rows_fit_and_the_one_long_call_keeps_its_own(shown, arguments):
    lines = shown(*arguments)
    head = next(at for at, line in enumerate(lines) if line.endswith(" cum %"))
    rows = [line for line in lines[head:] if line.startswith("  ")]
    assert max(map(len, rows)) <= 80
    assert max(map(len, rows)) > 60
    assert re.search(r" 1 +<0\.1 +100 ▏$", rows[-1])
    assert any(line.strip() == "⋮" for line in rows)
    assert any(line.endswith("p50") or " p50 " in line for line in rows)
    assert re.search(r"sum .*, p50 .*, p90 ", " ".join(map(str.strip, lines)))  # it may need two lines


def test_a_grid_of_keys_fits(shown):
    lines = shown("hist", "a.out:varied", "--of", "latency_ns", "--by", "arg0 % 4")
    grid = [line for line in lines if line.startswith("arg0 % 4=")]
    assert len(grid) == 3
    assert max(map(len, lines[3:])) <= 80
