"""Arguments of markers that differ from place to place, and from marker to marker of one glob."""

import json
import re

import pytest

from live.test_command_line import anyprobe
from support.driver import build

pytestmark = pytest.mark.live

PROGRAM = r"""
#include <stdlib.h>
#include <string.h>
#define NOTE(name, arguments) \
    "990: nop\n.pushsection .note.stapsdt, \"\", \"note\"\n.balign 4\n.4byte 992f-991f, 994f-993f, 3\n" \
    "991: .asciz \"stapsdt\"\n992: .balign 4\n993: .8byte 990b, 0, 0\n" \
    ".asciz \"places\"\n.asciz \"" name "\"\n.asciz \"" arguments "\"\n994: .balign 4\n.popsection\n"
static long bits(double value) { long found; memcpy(&found, &value, 8); return found; }
static int bits4(float value) { int found; memcpy(&found, &value, 4); return found; }
__attribute__((noinline, noclone)) void fire(long n, double d, float f, const char *text) {
    __asm__ volatile(NOTE("mixed", "-8@%0") :: "r"(n));
    __asm__ volatile(NOTE("mixed", "-8@%0 8f@%1") :: "r"(n), "r"(bits(d)));
    __asm__ volatile(NOTE("mixed", "-4@%k0 8f@%1 8@%2") :: "r"((int)n), "r"(bits(d)), "r"(text));
    __asm__ volatile(NOTE("empty", ""));
    __asm__ volatile(NOTE("floats", "8f@%0 4f@%k1 8f@$4609434218613702656 16f@%2")
                     :: "r"(bits(d)), "r"(bits4(f)), "r"(n));
    __asm__ volatile(NOTE("text", "8@%0") :: "r"(text));
}
int main(int count, char **given) {
    for (long n = 0; n < atoi(given[1]); n++) fire(n, n * 0.5, n * -0.25f, "hello");
    return 0;
}
"""


@pytest.fixture(scope="module")
def program():
    return str(build("marked_places.c", text=PROGRAM))


def test_each_marker_of_a_glob_has_all_of_its_arguments(program):
    """What a place lacks, or cannot be read, is null, and `?` in text; nothing is left out for the others' sake."""
    shown = anyprobe("trace", "usdt:places:*", "--json", "--", program, "3")
    assert shown.returncode == 0, shown.stderr
    lines = [json.loads(line) for line in shown.stderr.splitlines()]
    found = [(line["spec"].rpartition(":")[2], list(line["args"].values())) for line in lines]
    address = found[2][1][2]
    wanted = []
    for n in range(3):
        wanted += [("mixed", [n, None, None]), ("mixed", [n, n * 0.5, None]), ("mixed", [n, n * 0.5, address])]
        wanted += [("empty", []), ("floats", [n * 0.5, n * -0.25, 1.5, None]), ("text", [address])]
    assert found == wanted
    text = anyprobe("trace", "usdt:places:*", "--", program, "2").stderr
    calls = re.findall(r"places:(\w+\(.*\))", text)
    assert calls[0] == "mixed(arg0=0, arg1=?, arg2=?)"
    assert calls[3:5] == ["empty()", "floats(arg0=0.0, arg1=-0.0, arg2=1.5, arg3=?)"]
    assert calls[10] == "floats(arg0=0.5, arg1=-0.25, arg2=1.5, arg3=?)"


def test_arguments_that_some_places_have_are_used(program):
    shown = anyprobe("hist", "usdt:places:mixed", "--by", "cstr(arg2, 8)", "--json", "--", program, "5")
    (rows,) = json.loads(shown.stderr)["aggregations"].values()
    assert [(row["key"], row["count"]) for row in rows] == [(["hello"], 5)]
    assert json.loads(shown.stderr)["missing"] == {"abandoned": 10}
    shown = anyprobe("trace", "usdt:places:*", "--print", "arg0", "--json", "--", program, "1")
    assert [json.loads(line)["arg0"] for line in shown.stderr.splitlines()][:4] == [0, 0, 0, None]  # `empty` has none
