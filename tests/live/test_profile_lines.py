"""``profile --lines``: shares of source lines and of inlined functions are those that the program has measured."""

import json

import pytest

import anyprobe
from live.test_command_line import anyprobe as command
from support.driver import build, started

pytestmark = pytest.mark.live
PROGRAM = r"""
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
volatile long sink;
static long on_processor(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return t.tv_sec * 1000000000L + t.tv_nsec;
}
static inline __attribute__((always_inline)) void burn(long n) {
    for (long i = 0; i < n; i++)
        sink++;
}
__attribute__((noinline)) void work(long n, long *most, long *least) {
    long begin = on_processor();
    burn(4 * n);
    long middle = on_processor();
    burn(n);
    *most += middle - begin, *least += on_processor() - middle;
}
int main(int argc, char **argv) {
    long most = 0, least = 0, seconds = argc > 1 ? atol(argv[1]) : 1000;
    printf("ready %d\n", getpid());
    fflush(stdout);
    while (most + least < seconds * 1000000000L) work(1000000, &most, &least);
    printf("{\"most\": %ld, \"least\": %ld}\n", most, least);
    return 0;
}
"""
LINES = {text.strip(): at for at, text in enumerate(PROGRAM.splitlines(), 1)}
INNER, MOST, LEAST = (f"(lines_sampled.c:{LINES[text]})" for text in ("sink++;", "burn(4 * n);", "burn(n);"))


@pytest.fixture(scope="module")
def program():
    return build("lines_sampled.c", "-O1", "-g", text=PROGRAM)


def shares(document):
    return {each["function"]: each["total"] / document["samples"] for each in document["functions"]}


def test_lines_have_the_shares_that_the_program_has_measured(program, tmp_path):
    results = tmp_path / "results.json"
    done = command("profile", "--lines", "--hz", "997", "--json", "-o", str(results), "--", str(program), "2")
    assert done.returncode == 0, done.stderr
    truth = json.loads(done.stdout.splitlines()[-1])
    document = json.loads(results.read_text())
    found, every = shares(document), truth["most"] + truth["least"]
    for line, own in ((MOST, truth["most"]), (LEAST, truth["least"])):
        assert found[f"work {line}"] == pytest.approx(own / every, abs=0.06)
    inner = [each["frames"] for each in document["stacks"] if each["frames"][0].startswith("lines_sampled:burn (")]
    assert {frames[1] for frames in inner} == {f"lines_sampled:work {MOST}", f"lines_sampled:work {LEAST}"}
    assert max(document["functions"], key=lambda each: each["self"])["function"].startswith("burn (lines_sampled.c:1")
    assert document["next"].startswith("anyprobe time --self lines_sampled:work ")  # no line, and nothing inlined


def test_tables_trees_and_files_have_lines_too(program, tmp_path):
    with started(program) as target:
        for options in (["--tree"], ["--format", "folded"]):
            shown = command("profile", "--lines", "--for", "0.5", "-p", str(target.pid), *options)
            assert shown.returncode == 0, shown.stderr
            assert f"work {MOST}" in shown.stdout, shown.stdout
        found = anyprobe.profile(target.pid, 0.5, lines=True)
        hot = max(found.stacks, key=lambda each: each.count).frames
        assert (hot[0].function, hot[0].inlined, hot[1].function, hot[1].inlined) == ("burn", True, "work", False)
        assert INNER[1:-1].partition(":")[0] == hot[0].line.partition(":")[0] == "lines_sampled.c"
        assert not any(each.line for stack in anyprobe.profile(target.pid, 0.2).stacks for each in stack.frames)
        target.check_alive()


def test_what_has_no_debug_information_is_shown_as_ever():
    program = build("lines_unknown.c", "-O1", "-g0", text=PROGRAM)
    done = command("profile", "--lines", "--", str(program), "1")
    assert done.returncode == 0, done.stderr
    assert " work " in done.stderr
    assert "work (" not in done.stderr
    assert "next: anyprobe time --self lines_unknown:work --" in done.stderr
