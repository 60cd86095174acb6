"""How often each edge was gone along, beside what callgrind says of jumps and calls; and as a profile for BOLT."""

import json
import re
import shutil
import subprocess
from collections import Counter

import pytest

from live.test_command_line import anyprobe as command
from support.driver import build

pytestmark = pytest.mark.live
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static __attribute__((noipa)) int kind(int n) {
    switch (n) {
    case 0: return 7;
    case 1: return 9;
    case 2:
    case 3: n += 5; break;
    case 4: return -1;
    case 5: n *= 3; break;
    case 6: if (getenv("NOT_SET")) abort(); break;
    case 7: n--;
    }
    return n;
}
static __attribute__((noipa)) int tail(int n) { return n & 1 ? kind(n) : kind(n + 2); }
static __attribute__((noipa)) int scan(const char *text, int *spaces) {
    int found = 0;
    for (const char *at = text; at && *at; at++) {
        if (*at == ' ') {
            ++*spaces;
            continue;
        }
        while (at[1] == *at)
            at++, found++;
        if (*at == 'q' && strlen(at) > 3)
            return -1;
    }
    return found;
}
static __attribute__((noipa)) int fails(int n) {
    if (n > 3)
        exit(0);
    return n;
}
int (*volatile chosen)(int) = kind;
int main(void) {
    int sum = 0, spaces = 0;
    for (int i = 0; i < 20; i++)
        sum += tail(i);
    for (int i = 0; i < 6; i++)
        sum += chosen(i) > 3 ? abs(i) : 3;
    sum += scan("aa bbb c  dddd", &spaces) + scan("hello quick", &spaces) + scan(0, &spaces);
    printf("%d %d\\n", sum, spaces);
    fflush(stdout);
    for (int i = 0;; i++)
        sum += fails(i);
}
"""
FUNCTIONS = ("kind", "tail", "scan", "fails", "main")


@pytest.fixture(scope="module")
def relocatable():
    """A program that BOLT can lay out anew."""
    return build("edges.c", "-O2", "-g", "-no-pie", "-Wl,-q", text=PROGRAM)


@pytest.fixture(scope="module")
def found(relocatable, tmp_path_factory):
    """What the command says of one run: the functions by their names."""
    results = tmp_path_factory.mktemp("found") / "edges.json"
    done = command("cover", "--edges", "--json", "-o", results, "--", relocatable)
    assert done.returncode == 0, done.stderr
    (module,) = json.loads(results.read_text())["modules"]
    return {each["function"]: each for each in module["symbols"]}


def callgrinds(program, folder):
    """Return how often callgrind saw jumps within functions, and direct calls of functions, by (from, to)."""
    out = folder / "callgrind.out"
    options = ["--dump-instr=yes", "--dump-line=no", "--collect-jumps=yes", "--compress-pos=no"]
    words = ["valgrind", "-q", "--tool=callgrind", *options, f"--callgrind-out-file={out}", program]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL, timeout=120)
    jumps, calls, pending = Counter(), Counter(), None
    for line in out.read_text().splitlines():
        if match := re.match(r"(jump|jcnd|calls)=(\d+)\S* (0x[0-9a-f]+)", line):
            pending = match[1], int(match[2]), int(match[3], 16)
        elif line.startswith("0x") and pending is not None:
            kind, count, to = pending
            (calls if kind == "calls" else jumps)[int(line.split()[0], 16), to] += count
            pending = None
    return jumps, calls


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind is not installed")
def test_edges_are_callgrinds(relocatable, found, tmp_path):
    jumps, calls = callgrinds(relocatable, tmp_path)
    falls = 0
    for function in map(found.get, FUNCTIONS):
        starts = {int(offset) for offset in function["blocks"]}
        ends = {int(offset) + size for offset, size in function["sizes"].items()}
        inside = range(function["start"], function["start"] + max(ends))
        ours = Counter()
        for edge in function["edges"]:
            at, to = function["start"] + edge["at"], edge["to"]
            assert edge["hits"] is not None, (function["function"], hex(at), hex(to))
            if edge["calls"]:
                assert calls[at, to] == edge["hits"] or to not in {each["start"] for each in found.values()}
            elif to in inside:
                assert to - function["start"] in starts
                ours[at, to] = edge["hits"]
        theirs = Counter({(at, to): count for (at, to), count in jumps.items() if at in inside and to in inside})
        assert {each: ours[each] for each in theirs} == dict(theirs), function["function"]
        falls += sum(hits for each, hits in ours.items() if each not in theirs)
    assert falls > 20  # which are no jumps


def profile(program, folder):
    """Return the lines of a profile, and where they are."""
    results = folder / "edges.fdata"
    done = command("cover", "--format", "fdata", "-o", results, "--", program)
    assert done.returncode == 0, done.stderr
    lines = [line.split(" ") for line in results.read_text().splitlines()]
    assert {len(line) for line in lines} == {8}
    return {tuple(line[:6]): line[6:] for line in lines}, results


def test_a_profile_has_the_edges_by_the_names_of_the_symbol_table(relocatable, found, tmp_path):
    lines, _ = profile(relocatable, tmp_path)
    assert all(mispredicted == "0" and int(count) > 0 for mispredicted, count in lines.values())
    names = {each["start"]: each["symbol"] for each in found.values()}
    assert names[found["kind"]["start"]] == "kind/1"
    for function in map(found.get, FUNCTIONS):
        for edge in function["edges"]:
            start = max((each for each in names if each <= edge["to"]), default=0)
            key = ("1", function["symbol"], f"{edge['at']:x}", "1", names.get(start), f"{edge['to'] - start:x}")
            if edge["hits"] and not edge["calls"]:
                assert lines[key] == ["0", str(edge["hits"])]
    # chosen six times through a pointer; once by what starts a program
    assert lines["0", "[unknown]", "0", "1", "kind/1", "0"] == ["0", "6"]
    assert lines["0", "[unknown]", "0", "1", "main", "0"] == ["0", "1"]


@pytest.mark.skipif(shutil.which("llvm-bolt-16") is None, reason="bolt-16 is not installed")
def test_bolt_takes_the_whole_profile(relocatable, tmp_path):
    _, results = profile(relocatable, tmp_path)
    better = tmp_path / "better"
    layout = ["-reorder-blocks=ext-tsp", "-reorder-functions=hfsort", "-split-functions"]
    words = ["llvm-bolt-16", relocatable, "-data", results, "-o", better, "-v=2", *layout]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=120)
    said = done.stdout + done.stderr
    assert int(re.search(r"(\d+) out of \d+ functions in the binary .* have non-empty execution profile", said)[1]) >= 5
    assert "profile branches match only" not in said
    runs = [subprocess.run([each], capture_output=True, check=True).stdout for each in (relocatable, better)]
    assert runs[0] == runs[1] != b""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["merge", "{plain}", "--format", "fdata"], "there are no edges for a profile; anyprobe cover --edges"),
        (["a.out", "libc:qsort", "--format", "fdata", "--", "{program}"], "a profile for BOLT is of one file"),
        (["--format", "fdata", "--", "{stripped}"], "stripped has no symbol table, by whose names BOLT knows"),
    ],
)
def test_what_makes_no_profile_is_said(relocatable, tmp_path, words, said):
    stripped = build("stripped.c", "-O2", "-s", text=PROGRAM)
    plain = tmp_path / "plain.json"
    if "{plain}" in words:
        assert command("cover", "--counts", "--json", "-o", plain, "--", relocatable).returncode == 0
    done = command("cover", *(each.format(plain=plain, program=relocatable, stripped=stripped) for each in words))
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr
