"""What names a parameter is its value at the entry, texts and members included, whatever is there at the return."""

import json

import pytest

from live.test_command_line import anyprobe
from support.driver import build

pytestmark = pytest.mark.live

PROGRAM = r"""
#include <stdio.h>
#include <string.h>
struct part { int number; double share; char name[12]; };
struct request { struct part *part; long size; };
static char packet[64];
__attribute__((noinline, noclone)) int serve(int command, char *text, struct request *request) {
    __asm__ volatile("" :: "r"(text) : "memory");
    memset(text, 'x', 8);
    request->part->number = -1;
    request->part->share = -1;
    request->size = -1;
    strcpy(request->part->name, "gone");
    return command + 100;
}
int main(void) {
    for (int i = 0; i < 60; i++) {
        struct part part = {i % 3, i % 3 / 2.0, ""};
        struct request request = {&part, i % 3 * 1000};
        snprintf(part.name, sizeof part.name, "part %d", i % 3);
        snprintf(packet, sizeof packet, i % 2 ? "select %d, and much more of it" : "commit", i % 4);
        serve(i % 3, packet, &request);
    }
    return 0;
}
"""
TEXTS = ["commit" if i % 2 == 0 else f"select {i % 4}, and much more of it" for i in range(60)]


@pytest.fixture(scope="module")
def program():
    return str(build("served.c", text=PROGRAM))


def counted(program, by, *more, function="a.out:serve"):
    shown = anyprobe("hist", function, "--of", "retval", "--by", by, *more, "--json", "--", program)
    assert shown.returncode == 0, shown.stderr
    document = json.loads(shown.stderr)
    assert "missing" not in document
    (rows,) = document["aggregations"].values()
    return {tuple(row["key"]): row["count"] for row in rows}


def by(values):
    return {value: values.count(value) for value in values}


@pytest.mark.parametrize("text", ["arg1", "text"])
def test_texts_are_those_of_the_entry(program, text):
    assert counted(program, f"cstr({text}, 32)") == by([(each[:32],) for each in TEXTS])
    assert counted(program, f"cstr({text}, 6), buf({text}, 3)") == by([(each[:6], each[:3]) for each in TEXTS])
    assert counted(program, f"at_return(cstr({text}, 8))") == {("xxxxxxxx",): 60}


def test_members_are_those_of_the_entry(program):
    keys = "request.part.number, request.size, request.part.name, command"
    wanted = by([(i % 3, i % 3 * 1000, f"part {i % 3}", i % 3) for i in range(60)])
    assert counted(program, keys) == wanted
    assert counted(program, "request.part.number + retval") == by([(2 * (i % 3) + 100,) for i in range(60)])
    assert counted(program, "at_return(request.part.number), at_return(request.part.name)") == {(-1, "gone"): 60}
    assert counted(program, "at_return(request.size + retval)") == by([(99 + i % 3,) for i in range(60)])


def test_conditions_and_lines_have_them_too(program):
    when = 'cstr(text, 6) == "select" and retval == 101 and request.size == 1000'
    wanted = sum(i % 2 == 1 and i % 3 == 1 for i in range(60))
    shown = anyprobe("count", "a.out:serve", "--when", when, "--json", "--", program)
    assert json.loads(shown.stderr)["sites"][0]["hits"] == wanted
    shown = anyprobe("time", "a.out:serve", "--when", when, "--json", "--", program)
    assert json.loads(shown.stderr)["functions"][0]["count"] == wanted
    printed = "cstr(text), request.part.share, later=at_return(cstr(text, 4)), retval"
    shown = anyprobe("trace", "a.out:serve", "--print", printed, "--json", "--", program)
    lines = [json.loads(line) for line in shown.stderr.splitlines()]
    assert [line["cstr(text)"] for line in lines] == TEXTS
    assert [line["request.part.share"] for line in lines] == [i % 3 / 2.0 for i in range(60)]
    assert {line["later"] for line in lines} == {"xxxx"}
    assert [line["retval"] for line in lines] == [i % 3 + 100 for i in range(60)]


def test_a_script_keeps_texts_from_the_entry(program, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from anyprobe import Count, buf, cstr, i32, ptr, session\n"
        "rows, ends = Count('rows', by=('text', 'bytes')), Count('ends', by=('first',))\n"
        "@session.call('a.out:serve')\n"
        "def call(ctx, command: i32, text: ptr):\n"
        "    if command == 1:\n"
        "        return\n"
        "    ctx.data.text = cstr(text, 40)\n"
        "    ctx.data.bytes = buf(text, 3)\n"
        "    ctx.data.bad = cstr(ptr(8), 8)\n"
        "@call.ret\n"
        "def ret(ctx):\n"
        "    if ctx.data.text is None:\n"
        "        return\n"
        "    if ctx.data.bad is None:\n"
        "        rows[ctx.data.text, ctx.data.bytes].add()\n"
        "    if ctx.data.text == 'commit':\n"
        "        ends[len(ctx.data.text)].add()\n"
    )
    shown = anyprobe("script", str(script), "--json", "--", program)
    assert shown.returncode == 0, shown.stderr
    document = json.loads(shown.stderr)["aggregations"]
    mine = [TEXTS[i] for i in range(60) if i % 3 != 1]
    assert {tuple(row["key"]): row["count"] for row in document["rows"]} == by([(each, each[:3]) for each in mine])
    assert [(row["key"], row["count"]) for row in document["ends"]] == [([6], mine.count("commit"))]


def test_what_does_not_fit_is_refused_by_name(program):
    keys = ", ".join(f"cstr(text + {at}, 64)" for at in range(3))
    shown = anyprobe("hist", "a.out:serve", "--of", "retval", "--by", keys, "--json", "--", program)
    assert shown.returncode == 2
    assert "24 words" in shown.stderr
