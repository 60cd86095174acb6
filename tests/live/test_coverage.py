"""Coverage beside gcov's own of the very same run: a program with gcov's counters is probed at all of its blocks."""

import gzip
import json
import shutil
import subprocess
import xml.etree.ElementTree as ET

import pytest

import anyprobe
from anyprobe.data.coverage import Tally
from live.test_command_line import anyprobe as command

pytestmark = pytest.mark.live
BRANCHES = """
#include <stdio.h>
static __attribute__((noinline)) int kind_of(int n) {
    if (n > 6)
        return n * 2;
    switch (n) {
    case 0: return 7;
    case 1: return 9;
    case 2:
    case 3: n += 5; break;
    case 4: return -1;
    case 5: n *= 3;
    }
    return n;
}
static __attribute__((noinline)) int never(int n) {
    return n + 1;
}
int main(int argc, char **argv) {
    volatile int sum = 0;
    for (int i = 0; i < 4; i++)
        sum += kind_of(i);
    if (argc > 5)
        sum += never(sum);
    else
        sum += kind_of(100);
    do { sum--; } while (sum > 0);
    printf("%d\\n", sum);
    return 0;
}
"""
JUMPS = """
#include <setjmp.h>
static jmp_buf back;
static volatile int depth;
static __attribute__((noinline)) void falls(int n) {
    depth++;
    if (!n)
        longjmp(back, 1);
    falls(n - 1);
    depth--;
}
int main(void) {
    if (setjmp(back) == 0) {
        falls(3);
        depth = 100;
    } else
        depth += 2;
    return depth != 6;
}
"""
EXCEPTIONS = """
#include <stdexcept>
#include <vector>
static volatile int last;
struct Noted { int n; ~Noted() { last = n; } };
static __attribute__((noinline)) int thrower(int n) {
    Noted noted{n};
    if (n == 3)
        throw std::runtime_error("three");
    return n;
}
int main() {
    std::vector<int> values;
    for (int i = 0; i < 6; i++) {
        try {
            values.push_back(thrower(i));
        } catch (const std::runtime_error &error) {
            values.push_back(-1);
        } catch (...) {
            values.push_back(-2);
        }
    }
    return values[3] + 1;
}
"""
FORKS = """
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static __attribute__((noinline)) int in_child(int n) {
    return n + 3;
}
static __attribute__((noinline)) int in_parent(int n) {
    return n - 3;
}
int main(void) {
    pid_t child = fork();
    if (!child)
        exit(in_child(4));
    int status;
    waitpid(child, &status, 0);
    return in_parent(3) + WEXITSTATUS(status) - 7;
}
"""
THREADS = """
#include <pthread.h>
static volatile int sums[4];
static void *work(void *argument) {
    long number = (long)argument;
    if (number == 2)
        sums[2] = -1;
    else
        for (int i = 0; i < 1000; i++)
            sums[number]++;
    return 0;
}
int main(void) {
    pthread_t threads[4];
    for (long i = 0; i < 4; i++)
        pthread_create(&threads[i], 0, work, (void *)i);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], 0);
    return sums[0] != 1000;
}
"""
TAILS = """
static volatile int seen;
static __attribute__((noinline)) int last(int n) {
    seen += n;
    return seen;
}
static __attribute__((noinline)) int second(int n) {
    if (n & 1)
        return last(n);
    return last(n * 2);
}
static __attribute__((noinline)) int unused(int n) { return second(n); }
int (*volatile chosen)(int) = second;
int main(int argc, char **argv) {
    if (argc > 3)
        chosen = unused;
    for (int i = 0; i < 5; i++)
        chosen(i * 2);
    return 0;
}
"""
PROGRAMS = {"branches.c": BRANCHES, "jumps.c": JUMPS, "exceptions.cc": EXCEPTIONS, "forks.c": FORKS, "threads.c": THREADS,
            "tails.c": TAILS}  # fmt: skip


def built(folder, name, *options):
    """Build one of the programs; return its path."""
    (folder / name).write_text(PROGRAMS[name])
    compiler = "g++" if name.endswith("cc") else "gcc"
    subprocess.run([compiler, "-g", *options, "-o", "program", name, "-lpthread"], check=True, cwd=folder)
    return folder / "program"


def gcovs(folder, name):
    """Return how often gcov says that each line has run: of templates and copies, the most."""
    (data,) = folder.glob("*.gcda")
    subprocess.run(["gcov", "-j", data.name], check=True, cwd=folder, stdout=subprocess.DEVNULL)
    (found,) = folder.glob("*.gcov.json.gz")
    lines = {}
    for file in json.loads(gzip.decompress(found.read_bytes()))["files"]:
        if file["file"].endswith(name):
            for line in file["lines"]:
                lines[line["line_number"]] = max(lines.get(line["line_number"], 0), line["count"])
    return lines


@pytest.mark.parametrize("level", ["-O0", "-O2"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_lines_that_have_run_are_gcovs(tmp_path, name, level):
    program = built(tmp_path, name, level, "--coverage")
    with anyprobe.run([str(program)], cwd=str(tmp_path)) as session:
        session.cover(f"a.out:*")
        session.resume()
        session.wait(60)
        coverage = session.snapshot().coverage
    ours = coverage.files[str(tmp_path / name)]
    theirs = gcovs(tmp_path, name)
    common = ours.keys() & theirs.keys()
    print(
        name,
        level,
        len(ours),
        len(theirs),
        len(common),
        {n: (ours[n], theirs[n]) for n in common if ours[n] != theirs[n]},
    )
    print("only ours", sorted(ours.keys() - theirs.keys()), "only gcov", sorted(theirs.keys() - ours.keys()))
    assert len(common) > 5
    assert {n: bool(ours[n]) for n in common} == {n: bool(theirs[n]) for n in common}
