"""The README's commands do what it shows: the same headings and rows, whatever their numbers."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.live
ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
SHOWN = dict(re.findall(r"^```\n\$ (anyprobe [^\n]+)\n(.*?)^```$", README, re.MULTILINE | re.DOTALL))
VARYING = re.compile(r"[^a-zA-Z_]*\d[\d.,]*( (ns|µs|ms|s)\b)?|█+.?|[▏▎▍▌▋▊▉█⋮]|\bp\d+\b|[ns]s?\b|[^\w ]+")
"""Numbers with their units, bars and signs."""


def words(line: str) -> list[str]:
    return VARYING.sub(" ", line).split()


def run(command: str) -> str:
    _, *arguments = shlex.split(command)
    made = subprocess.run(
        [sys.executable, "-m", "anyprobe", *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=180, cwd=ROOT,
    )  # fmt: skip
    assert made.returncode == 0, made.stdout[-2000:]
    return made.stdout.decode(errors="replace")


def test_there_are_three_with_their_output():
    assert len(SHOWN) == 3


@pytest.mark.parametrize("command", SHOWN)
def test_it_prints_what_the_page_shows(command):
    text = run(command)
    printed = [words(line) for line in text.splitlines()]
    for line in SHOWN[command].splitlines():
        wanted = words(line)
        # a machine's own numbers, and what follows from them: the header, how long it took, and rows of a histogram
        if wanted and not line.startswith((" " * 2 + "3", "paused", "gzip", "ls ", "time ", "…", "sites")):
            assert any(set(wanted) <= set(found) for found in printed), (line, text[-3000:])
