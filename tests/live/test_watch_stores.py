"""``anyprobe watch --stores`` and ``--heap``: each store to watched memory, against what the program says."""

import json
import re
import shutil
import subprocess
import time

import pytest

from anyprobe.cli import main
from anyprobe.core.errors import SpecError, UnsupportedTarget
from anyprobe.probes.watching.store_watcher import StoreWatcher
from live.test_command_line import start
from support.driver import build, started

pytestmark = pytest.mark.live
needs_valgrind = pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")

OVERRUN = """
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define KEPT __attribute__((noinline, noclone))
KEPT void fill(char *p, int n) { for (int i = 0; i < n; i++) p[i] = (char)i; }
KEPT void overruns(char *p) { fill(p, 25); }
KEPT void fits(char *p) { fill(p, 24); }
KEPT void underruns(char *p) { p[-1] = 0; }
int main(int argc, char **words) {
    char line[32], *other = malloc(24), *p = malloc(24), *last = malloc(24);
    printf("%p\\n", (void *)p);
    fflush(stdout);
    while (argc > 1 || fgets(line, 32, stdin)) {
        fits(p);
        overruns(p);
        underruns(p);
        memset(other, 1, 24);
        memset(last, 1, 24);
        puts("done");
        fflush(stdout);
        if (argc > 1) break;
    }
    return 0;
}
"""


def test_every_store_is_met_with_what_was_there_and_what_is():
    with started(build("stores.c")) as target:
        with StoreWatcher(target.pid, ["a.out:buffer"], ["a.out"]) as watcher:
            for _ in range(40):
                target.start(1)
                told = []
                for _ in range(19):
                    offset, size, old, new, known = map(int, target.wait_for("store").split()[1:])
                    told.append((offset, size, *((old, new) if known else (None, None))))
                target.wait_done()
                met = list(watcher.look())
                place = watcher.watched[0].address
                assert [(each.address - place, each.size, each.old, each.new) for each in met] == told
                assert all(each.function.startswith("round_of_stores+") for each in met)
                assert all(any("one_round" in frame for frame in each.stack) for each in met)
            assert watcher.count() == 40 * 19
        target.go(1)
        target.finish()


def test_of_variables_and_parts_what_is_asked_for_is_met_and_nothing_else():
    with (
        started(build("stores.c")) as target,
        StoreWatcher(target.pid, ["a.out:counter", "a.out:buffer:4"], ()) as watcher,
    ):
        target.go(9)
        assert [(each.watched.text, each.old, each.new) for each in watcher.look()] == [
            ("a.out:counter", max(n - 1, 0), n) for n in range(9)
        ]


def test_no_store_is_missed_where_signals_come_in_the_middle_of_tests():
    with (
        started(build("stores.c"), "signals") as target,
        StoreWatcher(target.pid, ["a.out:buffer"], ["a.out"]) as watcher,
    ):
        target.start(1)
        assert int(target.wait_for("ticks").split()[1]) > 2
        target.wait_done()
        assert [each.new for each in watcher.look()] == [number & 255 for number in range(3000)]


@pytest.fixture
def overrun():
    program = build("overrun.c", "-g", "-O1", "-fno-builtin", text=OVERRUN)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        process.place = process.stdout.readline().strip()
        process.program = program
        yield process
        process.stdin.close()


def mappings_of(pid):
    with open(f"/proc/{pid}/maps") as maps:
        return [line for line in maps if "overrun" in line]


def run(process):
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


@needs_valgrind
def test_an_overrun_by_one_byte_is_found_where_valgrind_finds_it(overrun):
    with StoreWatcher(overrun.pid, [overrun.place], (), around=True) as watcher:
        assert [each.end - each.start for each in watcher.allocations] == [24]
        run(overrun)
        # a masked store of 64 bytes is shown wherever it reaches, as which of them it writes is not known
        over, under = (each for each in watcher.look() if each.kind == "write")
    # without chasing, it takes a store at the beginning of a function for its own
    command = ["valgrind", "--vex-guest-chase=no", overrun.program, "once"]
    report = subprocess.run(command, capture_output=True, text=True, check=False).stderr
    invalid = [part.split("Address")[0] for part in report.split("Invalid write of size 1")[1:3]]
    # valgrind: "at 0x…: fill (overrun.c:6)", then "by 0x…: overruns (overrun.c:7)" and so on
    truth = [re.findall(r"0x[0-9A-F]+: (\w+) \((\w+\.c:\d+)\)", part) for part in invalid]
    for access, frames in zip((over, under), truth, strict=True):
        names = [re.sub(r"\+0x.*", "", each.rpartition(":")[2]) for each in access.stack]
        assert names[: len(frames)] == [name for name, _ in frames]
        assert access.line.endswith(frames[0][1])
    assert over.watched.text == f"after {overrun.place}+24"
    assert (over.size, over.new) == (1, 24)
    assert under.watched.text == f"before {overrun.place}"


def test_the_command_shows_it_and_is_gone_without_a_trace(overrun):
    before = mappings_of(overrun.pid)
    watching = start("watch", "--heap", f"{overrun.place}:20", "--json", "-c", "5", "-p", str(overrun.pid))
    said = ""
    while "tested" not in said:
        said = watching.stderr.readline()
    moment = time.monotonic_ns()
    run(overrun)
    output, _ = watching.communicate(timeout=60)
    lines = [json.loads(line) for line in output.splitlines()]
    # four bytes that were not asked for, of each of two fills, then the one after
    assert [line["new"] for line in lines] == [20, 21, 22, 23, 20]
    assert {line["kind"] for line in lines} == {"write"}
    assert {line["watched"] for line in lines} == {f"after {overrun.place}+20"}
    assert lines[0]["function"].startswith("fill")
    assert abs(lines[0]["ts_ns"] - moment) < 5e9
    assert watching.returncode == 0
    assert mappings_of(overrun.pid) == before
    run(overrun)


def test_what_cannot_be_watched_is_one_line(overrun, capsys):
    pid = overrun.pid
    with pytest.raises(UnsupportedTarget, match="8 is the most"):
        StoreWatcher(pid, ["0x1000"] * 9, ())
    with pytest.raises(SpecError, match="24 bytes"):
        StoreWatcher(pid, [f"{overrun.place}:40"], (), around=True)
    with pytest.raises(SpecError, match="no memory"):
        StoreWatcher(pid, ["0x10"], (), around=True)
    for options in (["--module", "libc"], ["--stores", "--read"]):
        assert main(["watch", overrun.place, *options, "-p", str(pid)]) == 2
    assert main(["watch", "counter", "--stores", "--", "/bin/true"]) == 2
    assert "give -p PID" in capsys.readouterr().err
