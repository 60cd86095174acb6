"""Coverage of programs in other languages, with other libraries, and of daemons: flags need nothing of them."""

import gzip
import json
import shutil
import subprocess
import time

import pytest

from live.test_command_line import anyprobe as command
from support.driver import build

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]
C = """
#include <stdio.h>
static __attribute__((noinline)) int used(int n) {
    if (n > 2)
        return n * 3;
    return n + 1;
}
static __attribute__((noinline)) int never(int n) {
    return n - 4;
}
int main(int argc, char **argv) {
    int sum = 0;
    for (int i = 0; i < 2; i++)
        sum += used(i);
    if (argc > 4)
        sum += never(argc);
    printf("%d\\n", sum);
    return 0;
}
"""
GO = """
package main

import "os"

//go:noinline
func used(n int) int {
	if n > 2 {
		return n * 3
	}
	return n + 1
}

//go:noinline
func never(n int) int {
	return n - 4
}

func main() {
	done := make(chan int)
	for i := 0; i < 2; i++ {
		go func(n int) { done <- used(n) }(i)
	}
	sum := <-done + <-done
	if len(os.Args) > 4 {
		sum += never(sum)
	}
	println(sum)
}
"""
RUST = """
#[inline(never)]
fn used(n: i64) -> i64 {
    if n > 2 {
        return n * 3;
    }
    n + 1
}

#[inline(never)]
fn never(n: i64) -> i64 {
    n - 4
}

fn main() {
    let mut sum = 0;
    for i in 0..2 {
        sum += std::thread::spawn(move || used(i)).join().unwrap();
    }
    if std::env::args().count() > 4 {
        sum += never(sum);
    }
    println!("{}", sum);
}
"""


def lines_of(program, name, *options):
    """Return what the command finds of the lines of a source file of a program that it starts."""
    results = program.parent / f"{program.name}.json"
    done = command("cover", *options, "--json", "-o", results, "--", program)
    assert done.returncode == 0, done.stderr
    document = json.loads(results.read_text())
    results.unlink()
    lines = {each["file"]: each["lines"] for each in document["files"] if each["file"].endswith(name)}
    return {int(line): hits for found in lines.values() for line, hits in found.items()}


@pytest.mark.parametrize(
    ("source", "text", "spec", "options", "compiler", "run", "not_run"),
    [
        ("static.c", C, "a.out", ("-O0", "-g", "-static"), "gcc", (4, 6, 13, 14), (5, 9, 16)),
        ("musl.c", C, "a.out", ("-O0", "-g"), "musl-gcc", (4, 6, 13, 14), (5, 9, 16)),
        ("still.c", C, "a.out", ("-O0", "-g", "-static"), "musl-gcc", (4, 6, 13, 14), (5, 9, 16)),
        ("goes.go", GO, "a.out:main.*", (), "go", (8, 11, 21, 25), (9, 16)),
        ("rusts.rs", RUST, "a.out:*rusts*", ("-g", "-Copt-level=0"), "rustc", (4, 7, 18), (5, 12)),
    ],
    ids=["static", "musl", "static musl", "go", "rust"],
)  # fmt: skip
def test_lines_of_programs_without_glibc_s_threads(source, text, spec, options, compiler, run, not_run):
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    program = build(source, *options, text=text, compiler=compiler)
    found = lines_of(program, source, spec)
    assert {line: found.get(line) for line in (*run, *not_run)} == dict.fromkeys(run, 1) | dict.fromkeys(not_run, 0)


DAEMON = """
#include <stdlib.h>
#include <unistd.h>
static __attribute__((noinline)) int serves(int n) {
    if (n == 7)
        return 1;
    return n / 2;
}
static __attribute__((noinline)) int fails(void) {
    return 3;
}
int main(int argc, char **argv) {
    volatile int sum = 0;
    if (fork()) {
        usleep(900000);
        return 0;
    }
    setsid();
    if (fork()) {
        usleep(500000);
        exit(0);
    }
    for (int i = 0; i < 3; i++) {
        sum += serves(i);
        usleep(500000);
    }
    if (sum > 100)
        fails();
    return 0;
}
"""


def test_a_daemon_is_covered_after_it_has_forked_twice(tmp_path):
    (tmp_path / "daemon.c").write_text(DAEMON)
    subprocess.run(["gcc", "-g", "-O0", "--coverage", "-o", "daemon", "daemon.c"], check=True, cwd=tmp_path)
    ours = lines_of(tmp_path / "daemon", "daemon.c", "a.out", "--for", "5")
    (data,) = tmp_path.glob("*.gcda")
    before = b""
    while data.read_bytes() != before:  # each of three processes adds to it as it ends
        before = data.read_bytes()
        time.sleep(0.5)
    subprocess.run(["gcov", "-j", data.name], check=True, cwd=tmp_path, stdout=subprocess.DEVNULL)
    (found,) = tmp_path.glob("*.gcov.json.gz")
    (file,) = json.loads(gzip.decompress(found.read_bytes()))["files"]
    theirs = {line["line_number"]: bool(line["count"]) for line in file["lines"]}
    common = ours.keys() & theirs.keys()
    assert len(common) > 12
    assert {line: bool(ours[line]) for line in common} == {line: theirs[line] for line in common}
    assert theirs[5]
    assert not theirs[6]
