"""Make docs/session.svg, the README's picture: anyprobe's own output about a busy redis-server, as an animation.

Run ``.venv/bin/python tools/picture.py`` after ``make setup``, with redis-server and redis-benchmark. The commands are
run in a terminal, one after the other, and what they print is drawn as it is, up to the last line. Each is run
twice and drawn the second time: plans are kept, as for everyone who asks again.
"""

import itertools
import os
import pty
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import termios
import time
from fcntl import ioctl
from html import escape
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))

from demo import answers, free_port, running, wait_until  # noqa: E402 - found by the path above

PICTURE = ROOT / "docs" / "session.svg"
COMMANDS = (
    "anyprobe count 'a.out:*' -n redis-server --for 3 --top 8",
    "anyprobe time processCommand -n redis-server --for 3",
    "anyprobe time --tree processCommand call setCommand getCommand dictFind -n redis-server --for 3",
)
COLUMNS, ROWS = 96, 20
WIDE, HIGH, MARGIN = 8, 18, 16
"""Of a character's cell, and around all of them, in the picture's units."""
TYPING, ANSWER, READING = 1.2, 0.4, 5.0
"""Seconds for a command to be typed, for the answer to appear, and for it to be read."""
COLOURS = {
    "1": "b", "2": "d", "31": "r", "32": "g", "33": "y", "34": "u", "35": "m", "36": "c", "91": "r", "92": "g",
    "93": "y", "94": "u", "95": "m", "96": "c",
}  # fmt: skip
"""Classes of the style sheet, by what a terminal is told."""
STYLE = """\
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#d7dde5;white-space:pre}
.b{font-weight:700;fill:#fff}.d{fill:#8b949e}.r{fill:#ff7b72}.g{fill:#7ee787}.y{fill:#f2cc60}.u{fill:#79c0ff}
.m{fill:#d2a8ff}.c{fill:#76e3ea}.p{fill:#7ee787}
"""


class Run(NamedTuple):
    """Characters that look alike, from one column on."""

    column: int
    text: str
    style: str


def main() -> int:
    """Record all commands and write the picture."""
    scenes = [(command, lines_of(shown)) for command, shown in recorded()]
    PICTURE.write_text(drawn(scenes))
    print(f"{PICTURE.relative_to(ROOT)}: {len(scenes)} commands, {PICTURE.stat().st_size:,} bytes")
    return 0


def recorded() -> list[tuple[str, str]]:
    """Return each command with what it prints in a terminal, while redis-server serves redis-benchmark."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        server = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", folder]
        load = ["redis-benchmark", "-p", str(port), "-t", "get,set,incr", "-n", "100000000", "-c", "20", "-P", "4"]
        with running(server, stdout=subprocess.DEVNULL):
            wait_until(lambda: answers(port), "redis-server to answer")
            with running([*load, "-q"], stdout=subprocess.DEVNULL):
                time.sleep(0.5)
                return [(command, [in_terminal(command) for _ in range(2)][-1]) for command in COMMANDS]


def in_terminal(command: str) -> str:
    """Return what a command prints in a terminal of the picture's width, without its progress."""
    environment = {
        **os.environ, "PATH": f"{ROOT / '.venv/bin'}:{os.environ['PATH']}", "TERM": "xterm-256color",
        "COLUMNS": str(COLUMNS),
    }  # fmt: skip
    control, terminal = pty.openpty()
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 50, COLUMNS, 0, 0))
    shell = shutil.which("sh") or "/bin/sh"
    with subprocess.Popen(
        [shell, "-c", command], stdin=terminal, stdout=terminal, stderr=subprocess.DEVNULL, env=environment
    ) as process:
        os.close(terminal)
        shown = b""
        while True:
            try:
                part = os.read(control, 65536)
            except OSError:  # the last one that had the terminal has closed it
                break
            if not part:
                break
            shown += part
    os.close(control)
    if process.returncode:
        raise SystemExit(f"{command}: exit status {process.returncode}\n{shown.decode()}")
    return shown.decode()


def lines_of(shown: str) -> list[list[Run]]:
    """Return the lines of a terminal's output, long ones in several, as many as the picture has room for."""
    lines = []
    for line in shown.replace("\r\n", "\n").rstrip().split("\n"):
        cells, style = [], ""
        for code, text in re.findall(r"\x1b\[([\d;]*)m|([^\x1b]+)", line):
            cells += [(character, style) for character in text]
            if not text:
                style = " ".join(COLOURS[each] for each in code.split(";") if each in COLOURS)
        rows = [cells[at : at + COLUMNS] for at in range(0, len(cells), COLUMNS)]
        lines += [runs_of(row) for row in rows or [[]]]
    return lines if len(lines) < ROWS else [*lines[: ROWS - 2], [Run(0, "⋮", "d")]]


def runs_of(cells: list[tuple[str, str]]) -> list[Run]:
    """Return what stands in one line; spaces are left out, since each run has its column."""
    text, runs = "".join(character for character, _ in cells), []
    for style, group in itertools.groupby(range(len(cells)), lambda at: cells[at][1]):
        columns = list(group)
        first, last = columns[0], columns[-1] + 1
        runs += [Run(first + part.start(), part[0], style) for part in re.finditer(r"\S+(?: \S+)*", text[first:last])]
    return runs


def drawn(scenes: list[tuple[str, list[list[Run]]]]) -> str:
    """Return the picture: the commands one after the other, for ever; the last one where animations are not wanted."""
    width, height = COLUMNS * WIDE + 2 * MARGIN, ROWS * HIGH + 2 * MARGIN
    each = TYPING + ANSWER + READING
    total = each * len(scenes)
    style, body = STYLE, []
    for number, (command, lines) in enumerate(scenes):
        begin, end = 100 * number / len(scenes), 100 * (number + 1) / len(scenes)
        typed, answered = (begin + 100 * part / total for part in (TYPING, TYPING + ANSWER))
        style += (
            f"@keyframes s{number}{{0%,{begin:.2f}%{{visibility:hidden}}{begin + 0.01:.2f}%,{end - 0.01:.2f}%"
            f"{{visibility:visible}}{end:.2f}%,100%{{visibility:hidden}}}}\n"
            f"@keyframes t{number}{{0%,{begin:.2f}%{{transform:scaleX(0)}}{typed:.2f}%,100%{{transform:scaleX(1)}}}}\n"
            f"@keyframes o{number}{{0%,{typed:.2f}%{{opacity:0}}{answered:.2f}%,100%{{opacity:1}}}}\n"
            f".s{number}{{animation:s{number} {total:.1f}s step-end infinite}}"
            f".t{number}{{animation:t{number} {total:.1f}s steps({len(command)}) infinite}}"
            f".o{number}{{animation:o{number} {total:.1f}s linear infinite}}\n"
        )
        first = [Run(0, "$", "p"), Run(2, command, "b")]
        clip = f"c{number}"
        body.append(
            f'<g class="s{number}"><clipPath id="{clip}"><rect class="t{number}" width="{width}" height="{HIGH}"/>'
            f'</clipPath><g clip-path="url(#{clip})">{text_of(first, 0)}</g><g class="o{number}">'
            + "".join(text_of(runs, row) for row, runs in enumerate(lines, 1) if runs)
            + "</g></g>"
        )
    hidden = ",".join(f".s{number}" for number in range(len(scenes) - 1))
    style += f"@media(prefers-reduced-motion){{*{{animation:none!important}}{hidden}{{visibility:hidden}}}}\n"
    title = "anyprobe counts and times functions of a running redis-server"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f' role="img" aria-label="{title}">\n<!-- made by tools/picture.py from what the commands print -->\n'
        f"<title>{title}</title><style>\n{style}</style>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>\n'
        f'<g transform="translate({MARGIN} {MARGIN})">\n' + "\n".join(body) + "\n</g></svg>\n"
    )


def text_of(runs: list[Run], row: int) -> str:
    """Return one line: each run has its place and its length, so columns hold in any font, and bars have no gaps."""
    parts = []
    for run in runs:
        style = f' class="{run.style}"' if run.style else ""
        stretched = ' lengthAdjust="spacingAndGlyphs"' if set(run.text) & set("█▏─") else ""
        place = f'x="{run.column * WIDE}" y="{row * HIGH + 13}" textLength="{len(run.text) * WIDE}"'
        parts.append(f"<text {place}{style}{stretched}>{escape(run.text, quote=False)}</text>")
    return "".join(parts)


if __name__ == "__main__":
    sys.exit(main())
