"""Parameters are read from where the compiler has put them, and what cannot be shown is shown as such."""

import json
import re

import pytest

from anyprobe.cli import main
from support.driver import build

pytestmark = pytest.mark.live

WINDOWS = """
#include <stdio.h>
#define FAR __attribute__((ms_abi, noinline))
struct two { long a, b; };
struct one { int a; };
FAR long mixed(int a, const char *text, double d, long e, long f, long g)
{ return a + text[0] + (long)d + e + f + g; }
FAR long unused(long a, long b) { return b * 3; }
FAR double floating(double a, int b) { return a * b; }
FAR long structs(struct two v, struct one w, int x) { return v.b + w.a + x; }
FAR struct two hidden(int x, int y) { struct two two = {x, y}; return two; }
__attribute__((noinline)) long ordinary(long a, long b) { return a - b; }
int main(void)
{
    struct two v = {1, 2}; struct one w = {3};
    long r = mixed(1, "x", 2.5, 7, 8, 9) + unused(3, 4) + (long)floating(2, 3) + structs(v, w, 4) + hidden(5, 6).b;
    return r + ordinary(8, 9) == 0;
}
"""


@pytest.fixture
def trace(capfd):
    def run(program, *arguments, status=0):
        capfd.readouterr()
        assert main(["trace", *arguments, "--", str(program)]) == status
        return capfd.readouterr().err

    return run


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
@pytest.mark.parametrize("level", ["-O0", "-O2"])
def test_functions_that_are_called_as_windows_does(trace, compiler, level):
    program = build("windows.c", level, "-g", compiler=compiler, text=WINDOWS)
    names = ("mixed", "unused", "floating", "structs", "hidden", "ordinary")
    text = trace(program, *(f"a.out:{name}" for name in names))
    assert re.search(r"mixed\(a=1, text=0x\w+, d=2\.5, e=7, f=8, g=9\)", text), text
    assert re.search(r"unused\(a=.*, b=4\)", text), text  # nobody need pass what is not used
    assert "floating(a=2.0, b=3)" in text
    assert re.search(r"structs\(v=0x\w+, w=\?, x=4\)", text), text
    assert "hidden(x=5, y=6)" in text
    assert "ordinary(a=8, b=9)" in text
    (line,) = trace(program, "a.out:structs", "--json", "--print", "v.b, w.a, arg2").splitlines()
    printed = json.loads(line)
    assert [printed[name] for name in ("v.b", "w.a", "arg2")] == [2, 3, 4]


def test_parameters_that_are_elsewhere_are_not_read_from_registers_that_hold_something_else(trace):
    """A vector convention of LLVM's, which no position has anything to do with."""
    text = """
    __attribute__((regcall, noinline)) long other(long a, long b) { return a * 3 + b; }
    int main(void) { return other(5, 6) == 0; }
    """
    program = build("regcall.c", "-O1", "-g", compiler="clang", text=text)
    assert re.search(r"other\(\?\)", trace(program, "a.out:__regcall3__other"))
    said = trace(program, "a.out:__regcall3__other", "--print", "arg0", status=2)
    assert re.search(r"__regcall3__other has the calling convention regcall", said)


SHOWN = """
struct pair { long a, b; };
struct large { long v[8]; };
__attribute__((noinline)) int all(int a, struct pair p, long double d, struct large l, int b)
{ return a + p.a + l.v[7] + b + (int)d; }
__attribute__((noinline)) int many(int a, int b, int c, int d, int e, int f, int g, int h) { return a+b+c+d+e+f+g+h; }
__attribute__((noinline)) struct large large(int x) { struct large l = {{x}}; return l; }
__attribute__((noinline)) void nothing(int x) { __asm__ volatile("" : : "r"(x)); }
int main(void)
{
    struct pair p = {1, 2}; struct large l = {{3}};
    nothing(1);
    return all(1, p, 1.5L, l, 2) + many(1, 2, 3, 4, 5, 6, 7, 8) + large(3).v[0] == 0;
}
"""


def test_what_cannot_be_shown_is_a_question_mark_and_never_left_out(trace):
    program = build("shown.c", "-O1", "-g", text=SHOWN)
    text = trace(program, "a.out:all", "a.out:many", "a.out:large%return", "a.out:nothing%return")
    assert "all(a=1, p=?, d=?, l=?, b=2)" in text
    assert "many(a=1, b=2, c=3, d=4, e=5, f=6, g=7, h=8)" in text
    assert re.search(r"large = \?$", text, re.MULTILINE)
    assert re.search(r"nothing$", text, re.MULTILINE)
    document = json.loads(trace(program, "a.out:all", "--json").splitlines()[0])
    assert document["args"] == {"a": 1, "p": None, "d": None, "l": None, "b": 2}
    assert "all(a=1, …)" in trace(program, "a.out:all", "--args", "1")
    (line,) = trace(program, "a.out:all", "--json", "--print", "retval").splitlines()
    assert json.loads(line)["args"] == {"a": 1, "p": None, "d": None, "l": None, "b": 2}
