"""One archive of each rank under mpirun, and their sum: calls are those that the program has printed."""

import json
import os
import re
import shutil
import subprocess
import sys

import jsonschema
import pytest

from anyprobe.cli import main
from anyprobe.cli.commands.schema import text_of
from support.driver import build

pytestmark = pytest.mark.live

PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
__attribute__((noinline)) long step(long n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
int main(void) {
    const char *rank = getenv("OMPI_COMM_WORLD_RANK");
    long sum = 0;
    while (sum < 100 * (atol(rank ? rank : getenv("PMI_RANK")) + 1)) sum = step(sum);
    printf("%ld calls\\n", sum);
}
"""


@pytest.fixture(scope="module")
def program():
    return str(build("ranks.c", "-O1", text=PROGRAM))


@pytest.fixture
def shown(capsys):
    def shown(*arguments, status=0):
        assert main(list(arguments)) == status
        return capsys.readouterr()

    return shown


def calls(document):
    return {each["function"]: each["hits"] for each in document["sites"]}["step"]


def checked(text, expected):
    """Hold a sum against the calls of each rank, and return its document."""
    document = json.loads(text)
    jsonschema.validate(document, json.loads(text_of("merge")))
    assert {each["rank"]: calls(each["results"]) for each in document["ranks"]} == expected
    assert calls(document) == sum(expected.values())
    return document


def archives(folder):
    return [str(each) for each in sorted(folder.glob("*.aprobe"))]


@pytest.mark.skipif(not shutil.which("mpirun"), reason="needs mpirun")
def test_each_rank_keeps_its_own(program, shown, tmp_path):
    own = ["-m", "anyprobe", "count", "a.out:step", "-o", "run.%r.aprobe", "--", program]
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "3", sys.executable, *own]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert sorted(map(int, re.findall(r"(\d+) calls", done.stdout))) == [100, 200, 300]
    found = archives(tmp_path)
    assert [os.path.basename(each) for each in found] == ["run.0.aprobe", "run.1.aprobe", "run.2.aprobe"]
    checked(shown("merge", "--by", "rank", *found, "--json").out, {0: 100, 1: 200, 2: 300})


def test_ranks_that_are_missing_are_named(program, shown, tmp_path, monkeypatch):
    monkeypatch.setenv("PMI_SIZE", "4")
    for rank in ("0", "2"):
        monkeypatch.setenv("PMI_RANK", rank)
        shown("count", "a.out:step", "-o", str(tmp_path / "run.%r.aprobe"), "--", program)
    printed, told = shown("merge", "--by", "rank", *archives(tmp_path))
    assert re.findall(r"^=== (.*)$", printed, re.MULTILINE) == [
        f"rank 0, {os.uname().nodename}", f"rank 2, {os.uname().nodename}", "sum of 2 ranks, without ranks 1, 3",
    ]  # fmt: skip
    assert "anyprobe: missing in this sum: ranks 1, 3" in told
    document = checked(shown("merge", "--by", "rank", *archives(tmp_path), "--json").out, {0: 100, 2: 300})
    assert document["warnings"] == ["missing in this sum: ranks 1, 3"]
    (host,) = json.loads(shown("merge", "--by", "host", *archives(tmp_path), "--json").out)["hosts"]
    assert host["host"] == os.uname().nodename
    assert calls(host["results"]) == 400
    monkeypatch.delenv("PMI_RANK")
    told = shown("count", "a.out:step", "-o", "run.%r.aprobe", "--", program, status=2).err
    assert told.startswith("anyprobe: %r is the rank under mpirun or srun, and neither OMPI_COMM_WORLD_RANK, PMI_RANK")
    shown("count", "libc:exit", "-o", str(tmp_path / "alone.aprobe"), "--", "/bin/true")
    told = shown("merge", "--by", "rank", *archives(tmp_path), status=2).err
    assert told.startswith("anyprobe: --by rank is for archives that were written under mpirun or srun")
