"""Texts, bytes and errno as trace shows them, and as keys."""

import json
import re

import pytest

from anyprobe.cli import main
from support.driver import build

pytestmark = pytest.mark.live

PROGRAM = """
#include <errno.h>
#include <stdio.h>
#define KEPT __attribute__((noinline))
struct record { int id; char name[16]; unsigned char raw[4]; char grid[2][8]; };
struct small { char tag[8]; };
struct both { long n; char text[8]; };
KEPT int use(struct record *r, int n) { __asm__ volatile("" ::: "memory"); return r->id + n; }
KEPT int by_value(struct small s, int n) { __asm__ volatile("" ::: "memory"); return s.tag[0] + n; }
KEPT int of_two(struct both b, int n) { __asm__ volatile("" ::: "memory"); return b.text[0] + n; }
KEPT int on_stack(struct record r) { __asm__ volatile("" ::: "memory"); return r.id; }
KEPT int fails(int n) { errno = 40 + n; return n & 1 ? -1 : n; }
KEPT void *no_address(int n) { static char x; errno = 50 + n; return n & 1 ? 0 : &x; }
KEPT long sum(const char *p, int n) { long s = 0; for (int i = 0; i < n; i++) s += p[i]; return s; }
int main(void)
{
    static char many[300];
    struct record r = {1, "hello world", {1}, {"ab", "cdefghi"}}, full = {2, "0123456789abcdef", {0xff}, {"x"}};
    struct small s = {"tag"};
    struct both b = {1, "eight by"};
    long q = use(&r, 1) + use(&full, 2) + by_value(s, 3) + of_two(b, 4) + on_stack(full);
    for (int i = 0; i < 4; i++) q += fails(i) + (no_address(i) != 0);
    for (int i = 0; i < sizeof many; i++) many[i] = 'a' + i % 26;
    q += sum(many, 0) + sum(many, 5) + sum(many, 300) + sum(many, -1);
    return q == 1;
}
"""


@pytest.fixture(scope="module")
def program():
    return build("texts.c", "-O1", "-g", text=PROGRAM)


@pytest.fixture
def lines(capfd, program):
    def run(spec, expressions):
        capfd.readouterr()
        assert main(["trace", spec, "--json", "--print", expressions, "--", str(program)]) == 0
        return [json.loads(line) for line in capfd.readouterr().err.splitlines()]

    return run


def test_an_array_of_characters_is_text_and_ends_where_it_ends(lines):
    wanted = "r.name, c=cstr(r.name), more=cstr(r.name, 64), less=cstr(r.name, 4), r.grid[1], byte=r.name[1], raw=r.raw"
    first, second = lines("a.out:use", wanted)
    assert [first[name] for name in ("r.name", "c", "more", "less", "r.grid[1]", "byte")] == [
        "hello world", "hello world", "hello world", "hell", "cdefghi", ord("e"),
    ]  # fmt: skip
    full = "0123456789abcdef"
    assert [second[name] for name in ("r.name", "c", "more", "r.grid[1]")] == [full, full, full, ""]
    assert isinstance(first["raw"], int)  # bytes are no characters: buf(r.raw) shows them


def test_arrays_of_structs_that_are_passed_by_value_are_text(lines):
    (line,) = lines("a.out:by_value", "s.tag, c=cstr(s.tag), less=cstr(s.tag, 2), n")
    assert [line[name] for name in ("s.tag", "c", "less", "n")] == ["tag", "tag", "ta", 3]
    (line,) = lines("a.out:of_two", "b.text, cstr(b.text, 8), b.n")
    assert [line[name] for name in ("b.text", "cstr(b.text, 8)", "b.n")] == ["eight by", "eight by", 1]
    (line,) = lines("a.out:on_stack", "r.name, r.id, low=cstr(r.grid[0])")
    assert [line[name] for name in ("r.name", "r.id", "low")] == ["0123456789abcdef", 2, "x"]


def test_arrays_of_characters_are_keys(capfd, program):
    assert main(["hist", "a.out:use", "--by", "r.name, n", "--json", "--", str(program)]) == 0
    (cells,) = json.loads(capfd.readouterr().err)["aggregations"].values()
    assert {tuple(cell["key"]) for cell in cells} == {("hello world", 1), ("0123456789abcdef", 2)}


def test_as_many_bytes_as_a_variable_says_up_to_a_bound(lines):
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    many = alphabet * 5
    found = lines("a.out:sum", "buf(p, n), five=buf(p, n, 5), low=buf(p, min(n, 3)), eight=buf(p, 8)")
    assert [line["buf(p, n)"] for line in found] == ["", "abcde", many[:128], ""]
    assert [line["five"] for line in found] == ["", "abcde", "abcde", ""]
    assert [line["low"] for line in found] == ["", "abc", "abc", ""]
    assert {line["eight"] for line in found} == {"abcdefgh"}


@pytest.mark.parametrize("expression", ["buf(p, n, 999)", "buf(p, n, n)", "buf(p, 999)"])
def test_bounds_that_are_none_are_refused(capfd, program, expression):
    assert main(["trace", "a.out:sum", "--print", expression, "--", str(program)]) == 2
    assert re.search("at most 128 bytes|the bound has to be constant", capfd.readouterr().err)


@pytest.mark.parametrize("spec", ["", "%return"])
def test_errno_is_shown_with_failures_only(capfd, lines, program, spec):
    found = [(line["retval"], line["errno"]) for line in lines(f"a.out:fails{spec}", "errno")]
    assert found == [(0, None), (-1, 41), (2, None), (-1, 43)]
    found = [(bool(line["retval"]), line["errno"]) for line in lines(f"a.out:no_address{spec}", "errno")]
    assert found == [(True, None), (False, 51), (True, None), (False, 53)]
    capfd.readouterr()
    assert main(["trace", f"a.out:fails{spec}", "--print", "errno", "--", str(program)]) == 0
    text = capfd.readouterr().err
    assert re.findall(r"fails = (\S+)(.*)", text) == [("0", ""), ("-1", "  errno=41"), ("2", ""), ("-1", "  errno=43")]


def test_errno_of_a_function_whose_end_is_found_when_its_library_is_loaded(capfd, tmp_path):
    text = '#include <stdio.h>\nint main(void) { return fopen("/nowhere", "r") != 0 || fopen("/", "r") == 0; }\n'
    opener = build("opener.c", "-O1", text=text)
    assert main(["trace", "libc:fopen", "libc:fopen%return", "--print", "errno", "--", str(opener)]) == 0
    assert "fopen" in capfd.readouterr().err
