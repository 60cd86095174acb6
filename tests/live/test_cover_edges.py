"""Which way conditional jumps go, beside gcov's records of branches of the very same run."""

import gzip
import json
import re
import subprocess

import pytest

import anyprobe
from live.test_command_line import anyprobe as command
from live.test_coverage import PROGRAMS, built
from support.driver import build

pytestmark = pytest.mark.live
SINGLE_THREADED = sorted(PROGRAMS.keys() - {"threads.c"})
"""gcov's counters are no atomic ones."""


def gcovs(folder, name):
    """Return how often gcov says that each branch of a line was gone, but for exceptions."""
    (data,) = folder.glob("*.gcda")
    subprocess.run(["gcov", "-j", "-b", data.name], check=True, cwd=folder, stdout=subprocess.DEVNULL)
    (found,) = folder.glob("*.gcov.json.gz")
    lines = {}
    for file in json.loads(gzip.decompress(found.read_bytes()))["files"]:
        for line in file["lines"] if file["file"].endswith(name) else ():
            if line["branches"] and not any(each["throw"] for each in line["branches"]):
                lines.setdefault(line["line_number"], []).extend(each["count"] for each in line["branches"])
    return lines


@pytest.mark.parametrize("name", SINGLE_THREADED)
def test_branches_are_gcovs(tmp_path, name):
    program = built(tmp_path, name, "-O0", "--coverage")
    with anyprobe.run([str(program)], cwd=str(tmp_path)) as session:
        session.cover("a.out", edges=True)
        session.resume()
        session.wait(60)
        coverage = session.snapshot().coverage
    found = coverage.branches[str(tmp_path / name)]
    ours = {line: sorted(hits for one in each for hits in (one.taken, one.not_taken)) for line, each in found.items()}
    theirs = {line: sorted(counts) for line, counts in gcovs(tmp_path, name).items()}
    # a switch is one branch of many ways there, and several comparisons here
    common = {line for line in ours.keys() & theirs.keys() if len(ours[line]) == len(theirs[line])}
    assert len(common) >= {"branches.c": 4, "exceptions.cc": 1, "forks.c": 1, "jumps.c": 2, "tails.c": 3}[name]
    assert {line: ours[line] for line in common} == {line: theirs[line] for line in common}


WAYS = """
#include <stdio.h>
static __attribute__((noinline)) int chosen(int n) {
    if (n > 3)
        return n * 2;
    if (n > 100)
        return 5;
    return n;
}
static __attribute__((noinline)) int never(int n) {
    return n == 3 ? 9 : n;
}
int main(int argc, char **argv) {
    int sum = 0;
    for (int i = 0; i < 10; i++)
        sum += chosen(i);
    if (argc > 5)
        sum += never(sum);
    printf("%d\\n", sum);
    return 0;
}
"""


def test_the_tracefile_has_both_ways_of_each_branch(tmp_path):
    program = build("ways.c", "-O0", "-g", text=WAYS)
    results = tmp_path / "ways.info"
    done = command("cover", "--edges", "--format", "lcov", "-o", results, "--", program)
    assert done.returncode == 0, done.stderr
    ways = {}
    for line, number, hits in re.findall(r"^BRDA:(\d+),(\d+),[01],(\d+|-)$", results.read_text(), re.MULTILINE):
        ways.setdefault((int(line), int(number)), []).append(hits)
    assert {line: sorted(hits) for (line, _), hits in ways.items()} == {
        4: ["4", "6"],
        6: ["0", "4"],
        11: ["-", "-"],
        15: ["1", "10"],
        17: ["0", "1"],
    }
    assert "BRF:10\nBRH:6\n" in results.read_text()


def test_documents_have_branches_and_their_sums(tmp_path):
    program = build("ways.c", "-O0", "-g", text=WAYS)
    for number in (1, 2):
        assert command("cover", "--edges", "--json", "-o", tmp_path / f"{number}", "--", program).returncode == 0
    done = command("cover", "merge", tmp_path / "1", tmp_path / "2", "--json")
    (module,) = json.loads(done.stdout)["modules"]
    (chosen,) = (each for each in module["symbols"] if each["function"] == "chosen")
    assert [sorted((each["taken"], each["not_taken"])) for each in chosen["branches"].values()] == [[8, 12], [0, 8]]
    assert module["branches"]["total"] == 2 * sum(len(each["branches"]) for each in module["symbols"])
    assert re.search(r"\d+ of \d+ branch ways covered", command("cover", "merge", tmp_path / "1").stdout)
