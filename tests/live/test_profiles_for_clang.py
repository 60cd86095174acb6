"""Counts of lines as profiles for clang: what they say, and what clang makes of them."""

import re
import shutil
import subprocess

import pytest

from live.test_command_line import anyprobe as command
from support.driver import build

pytestmark = pytest.mark.live
PROGRAM = """
#include <stdio.h>
#include <stdlib.h>
static inline __attribute__((always_inline)) int
added(int *sum, int n)
{
    if (n % 3 == 0)
        *sum += n;
    return n;
}
static __attribute__((noinline)) int first(int *sum, int n) {
    for (int i = 0; i < n; i++)
        added(sum, i);
    return n;
}
static __attribute__((noinline)) int second(int *sum, int n) {
    added(sum, n);
    return *sum;
}
static __attribute__((noinline)) int never(int *sum) {
    return second(sum, 4) + 1;
}
int main(int argc, char **argv) {
    int sum = 0;
    first(&sum, 10);
    for (int i = 0; i < 7; i++)
        second(&sum, argc * 30);
    if (argc > 4)
        never(&sum);
    printf("%d\\n", sum);
    return 0;
}
"""


def profile(folder, *options, compiler="gcc"):
    """Return what a profile says, by function: how often it was entered, and how often its lines have run."""
    program = build("lines.c", "-g", *options, text=PROGRAM, compiler=compiler)
    results = folder / "lines.prof"
    done = command("cover", "--format", "llvm-sample", "-o", results, "--", program)
    assert done.returncode == 0, done.stderr
    found = {}
    for line in results.read_text().splitlines():
        if match := re.fullmatch(r"(\w+):(\d+):(\d+)", line):
            lines = {}
            found[match[1]] = int(match[3]), lines, int(match[2])
        else:
            offset, hits = re.fullmatch(r" (\d+): (\d+)", line).groups()
            lines[int(offset)] = int(hits)
    assert all(total == sum(lines.values()) for _, lines, total in found.values())
    return {name: (head, lines) for name, (head, lines, _) in found.items()}


@pytest.mark.parametrize(("compiler", "level"), [("gcc", "-O0"), ("gcc", "-O2"), ("clang", "-O1")])
def test_lines_count_from_where_functions_are_declared_in_all_copies(tmp_path, compiler, level):
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}")
    found = profile(tmp_path, level, compiler=compiler)
    head, lines = found["added"]
    declared = 5  # the line of the name, not that of its type or brace
    assert (head, lines[7 - declared], lines[8 - declared]) == (17, 17, 11)
    assert [found[name][0] for name in ("first", "second", "main")] == [1, 7, 1]
    assert found["second"][1][2] == 7
    assert level != "-O0" or found["first"][1][1] == 11  # the condition of its loop
    assert "never" not in found


@pytest.mark.skipif(shutil.which("clang") is None, reason="clang is not installed")
def test_clang_takes_the_counts(tmp_path):
    profile(tmp_path, "-O0")
    (tmp_path / "lines.c").write_text(PROGRAM)
    words = ["clang", "-O2", "-S", "-emit-llvm", f"-fprofile-sample-use={tmp_path}/lines.prof"]
    words += ["-fprofile-sample-accurate", "-o", "-", "lines.c"]
    code = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path, timeout=60).stdout
    entered = dict(re.findall(r'^(!\d+) = !{!"function_entry_count", i64 (\d+)}', code, re.MULTILINE))
    of_functions = dict(re.findall(r"^define .*@(\w+)\(.* !prof (!\d+)", code, re.MULTILINE))
    assert entered[of_functions["second"]] == "8"  # LLVM adds one
    assert entered[of_functions["never"]] == "0"


def test_flags_and_changed_files_make_no_profile(tmp_path):
    (tmp_path / "lines.c").write_text(PROGRAM)
    program, document = tmp_path / "lines", tmp_path / "lines.json"
    subprocess.run(["gcc", "-g", "-o", program, "lines.c"], check=True, cwd=tmp_path)
    merge = ["cover", "merge", document, "--format", "llvm-sample"]
    assert command("cover", "--json", "-o", document, "--", program).returncode == 0
    done = command(*merge)
    assert (done.returncode, "anyprobe cover --counts counts that" in done.stderr) == (1, True), done.stderr
    assert command("cover", "--counts", "--json", "-o", document, "--", program).returncode == 0
    assert "added:38:17\n" in command(*merge).stdout
    subprocess.run(["gcc", "-g", "-O2", "-o", program, "lines.c"], check=True, cwd=tmp_path)
    done = command(*merge)
    assert (done.returncode, "is not the file any more" in done.stderr) == (1, True), done.stderr
    program.unlink()
    done = command(*merge)
    assert (done.returncode, "No such file" in done.stderr) == (1, True), done.stderr
