"""Numbers and texts as the commands show them: exact, or said to be not; and nothing that a terminal would obey."""

import json
import shutil
import subprocess

import pytest

from live.test_command_line import anyprobe
from support.driver import build

pytestmark = pytest.mark.live

VALUES = r"""
#include <stdint.h>
#include <stdlib.h>
#define EACH __attribute__((noinline, noclone))
EACH long value(long v) { __asm__ volatile("nop; nop; nop; nop; nop" :: "r"(v) : "memory"); return v; }
EACH double real(double a, float b) {
    __asm__ volatile("nop; nop; nop; nop; nop" :: "x"(a), "x"(b) : "memory");
    return a;
}
int main(int count, char **given) {
    for (int at = 1; at < count; at++) value(strtol(given[at], 0, 0));
    real(__builtin_nan(""), __builtin_nanf(""));
    real(__builtin_inf(), -__builtin_inff());
    real(-0.0, 1e-45f);
    return 0;
}
"""
HOSTILE = r"""
#include <sys/prctl.h>
#include <unistd.h>
__attribute__((noinline, noclone)) long text(const char *s) {
    __asm__ volatile("nop; nop; nop; nop; nop" :: "r"(s) : "memory");
    return 1;
}
int main(int count, char **given) {
    if (count > 1) pause();
    prctl(PR_SET_NAME, "\x1b]0;x\a");
    for (int i = 0; i < 100; i++) text("\x1b[2J\xe2\x80\xae\x1b]52;c;A\a");
    return 0;
}
"""
EDGE = 1 << 44
SCRIPT = """
from anyprobe import Count, Map, cstr, emit, printf, ptr, session

texts = Count("texts", by=("text",))
last = Map("last")

@session.entry("a.out:text")
def on_text(ctx, s: ptr):
    texts[cstr(s, 32)].add()
    last[cstr(s, 32)] = 1
    emit("seen", thread=ctx.comm, text=cstr(s, 32))
    printf(f"{cstr(s, 32)} by {ctx.comm}\\n")
"""


@pytest.fixture(scope="module")
def values():
    return build("shown_values.c", text=VALUES)


def hist(values, *numbers, kind="hist", of="i64(arg0)"):
    command = ("hist", "a.out:value", "--of", of, "--as", kind)
    program = ("--", str(values), *map(str, numbers))
    document, table = anyprobe(*command, "--json", *program), anyprobe(*command, *program)
    assert document.returncode == table.returncode == 0, document.stderr + table.stderr
    (found,) = json.loads(document.stderr)["aggregations"].values()
    return found, table.stderr


def test_a_histogram_ends_where_it_says(values):
    """2**44 - 1 has a bucket with an end; of what is larger, a percentile is only known to be at least 2**44."""
    numbers = [0, 1, 64, EDGE - 1, EDGE, (1 << 63) - 1, (1 << 63) - 1]
    found, table = hist(values, *numbers)
    assert found["buckets"][-1] == [EDGE, 1 << 64, 3]
    assert found["buckets"][-2][1:] == [EDGE, 1]
    assert found["p50"] <= EDGE - 1
    assert found["p90"] == found["p99"] == EDGE
    assert found["percentile_bounds"] == {"p90": "at least", "p99": "at least"}
    assert f"p99 ≥ {EDGE:,}" in table
    assert f"≥ {EDGE:,}" in table.splitlines()[-1]


def test_percentiles_of_whole_numbers_are_those_of_the_values(values):
    numbers = [5] * 50 + [7] * 40 + [100] * 10
    found, table = hist(values, *numbers)
    assert (found["p50"], found["p90"], found["p99"]) == (5, 7, 100)
    assert "p50 5, p90 7, p99 100" in table


def test_what_json_lacks_is_text(values):
    shown = anyprobe("trace", "a.out:real", "--json", "--", str(values))
    assert shown.returncode == 0, shown.stderr

    def odd(text):
        raise AssertionError(f"{text} is no JSON")

    lines = [json.loads(line, parse_constant=odd)["args"] for line in shown.stderr.splitlines()]
    assert lines[:2] == [{"a": "NaN", "b": "NaN"}, {"a": "Infinity", "b": "-Infinity"}]
    assert lines[2]["a"] == 0
    assert lines[2]["b"] == pytest.approx(1e-45, rel=0.5)


@pytest.mark.parametrize(
    "command",
    [
        ("hist", "a.out:text", "--by", "comm, cstr(arg0, 32)"),
        ("hist", "a.out:text", "--of", "arg0 & 1", "--by", "cstr(arg0, 32)"),
        ("hist", "a.out:text", "--of", "arg0 & 1", "--as", "quantize", "--by", "comm"),
        ("hist", "a.out:text", "--of", "arg0 & 1", "--as", "max", "--by", "comm"),
        ("trace", "a.out:text", "--print", "comm, cstr(arg0, 32)"),
        ("trace", "a.out:text"),
        ("count", "a.out:text", "--by", "pid"),
        ("count", "a.out:*"),
        ("time", "a.out:text"),
        ("time", "a.out:text", "--by", "tid"),
        ("time", "a.out:text", "--by", "pid"),
        ("time", "a.out:text", "--tree"),
        ("script", "SCRIPT"),
        ("explain", "a.out:text"),
        ("list", "a.out:text"),
    ],
    ids=" ".join,
)
def test_nothing_of_a_program_reaches_a_terminal_raw(tmp_path, command):
    """Names of threads and files, texts: whichever command shows them."""
    program = tmp_path / "we\x1b[2J\u202e"
    shutil.copy(build("hostile_texts.c", text=HOSTILE), program)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    words = [str(script) if word == "SCRIPT" else word for word in command]
    if command[0] in {"explain", "list"}:
        with subprocess.Popen([program, "sleeps"]) as started:
            shown = anyprobe(*words, "-p", str(started.pid))
            started.kill()
    else:
        shown = anyprobe(*words, "--", str(program))
    assert shown.returncode == 0, shown.stderr
    text = shown.stdout + shown.stderr
    assert "\\x1b[2J" in text
    assert not {each for each in text if not each.isprintable()} - {"\n"}


TOP, LOW = (1 << 63) - 1, -(1 << 63)
LARGE = [TOP] * 5 + [(1 << 53) + 1, 1 << 53, -1, LOW]


@pytest.mark.parametrize("numbers", [[TOP] * 5, LARGE, [LOW] * 3, [1, -1] * 20], ids=["up", "mixed", "down", "around"])
@pytest.mark.parametrize("by", ["", "tid, "], ids=["alone", "by key"])
@pytest.mark.sliced(2)
def test_whole_numbers_are_exact_beyond_64_bits(values, numbers, by):
    total, count = sum(numbers), len(numbers)
    mean = total // count if total % count == 0 else None
    keys = ["--by", "tid"] if by else []
    for kind in ("hist", "quantize", "sum", "avg", "stddev", "min", "max"):
        command = ["hist", "a.out:value", "--of", "i64(arg0)", "--as", kind, *keys]
        shown = anyprobe(*command, "--json", "--", str(values), *map(str, numbers))
        assert shown.returncode == 0, shown.stderr
        (found,) = json.loads(shown.stderr)["aggregations"].values()
        (found,) = found if by else (found,)
        if kind in {"hist", "quantize"}:
            assert (found["sum"], found["min"], found["max"]) == (total, min(numbers), max(numbers))
        elif kind in {"sum", "avg", "stddev"}:
            assert found["sum"] == total
            if kind == "avg" and mean is not None:
                assert found["avg"] == mean
            if kind == "stddev":
                spread = sum((count * each - total) ** 2 for each in numbers)
                assert found["stddev"] == pytest.approx((spread / count) ** 0.5 / count, rel=1e-12)
        else:
            assert found[kind] == {"min": min, "max": max}[kind](numbers)


def test_tables_have_the_same_digits(values):
    _, table = hist(values, *LARGE)
    assert f"sum {sum(LARGE):,}" in table
    assert f"max {TOP:,}" in table
    assert f"min {LOW:,}" in table
    _, table = hist(values, *[TOP] * 5, kind="avg")
    assert f"{TOP:,}" in table


def test_sums_without_a_sign_are_exact_where_the_patch_adds_them(values, tmp_path):
    """What a patch does itself, and what a handler without a sign does."""
    script = tmp_path / "sums.py"
    script.write_text(
        "from anyprobe import Avg, Sum, session, u64, i64\n"
        "plain, signed, mean = Sum('plain'), Sum('signed'), Avg('mean')\n"
        "@session.entry('a.out:value')\ndef one(x: u64):\n    plain.add(x)\n"
        "@session.entry('a.out:value')\ndef two(x: i64):\n    signed.add(x)\n"
        "@session.entry('a.out:value')\ndef three(x: u64):\n    mean.add(x)\n"
    )
    numbers = [-1] * 7 + LARGE
    shown = anyprobe("script", str(script), "--json", "--", str(values), *map(str, numbers))
    assert shown.returncode == 0, shown.stderr
    found = json.loads(shown.stderr)["aggregations"]
    assert found["signed"]["sum"] == sum(numbers)
    assert found["plain"]["sum"] == found["mean"]["sum"] == sum(each % (1 << 64) for each in numbers)


FIVE = r"""
#define EACH(name) __attribute__((noinline, noclone)) void name(int n) { \
    for (int i = 0; i < n % 1000; i++) __asm__ volatile("nop"); }
EACH(one) EACH(two) EACH(three) EACH(four) EACH(five)
int main(void) {
    for (int i = 0; i < 2000000; i++) { one(i); two(2 * i); three(3 * i); four(5 * i); five(7 * i); }
    return 0;
}
"""


@pytest.mark.parametrize("more", [[], ["--buckets"]], ids=["without buckets", "with buckets"])
def test_lines_of_intervals_are_short(more):
    """Five functions whose durations lie in hundreds of buckets: 10 kB a line; buckets are there on request."""
    program = str(build("five_functions.c", text=FIVE))
    names = [f"a.out:{name}" for name in ("one", "two", "three", "four", "five")]
    shown = anyprobe("time", *names, "--every", "0.3", "--for", "1.2", "--json", *more, "--", program)
    assert shown.returncode == 0, shown.stderr
    lines = [line for line in shown.stderr.splitlines() if line.startswith("{")]
    assert len(lines) >= 2
    for line in lines:
        functions = json.loads(line)["functions"]
        assert all(("buckets" in each) == bool(more) for each in functions)
        assert more or len(line) <= 10_000
    assert len(functions) == 5
