"""Numbers that mean places are shown by name, or in hexadecimal digits, once; stacks are whole from the start."""

import json
import pickle
import re
import subprocess
from re import MULTILINE

import pytest

from anyprobe.cli import main
from anyprobe.data.layouts.keys import Place
from support.driver import build

pytestmark = pytest.mark.live

PROGRAM = """
#include <stdlib.h>
#define KEPT static __attribute__((noinline))
KEPT void *quiet(int n) { void *p = malloc(n); __asm__ volatile("" : : "r"(p)); return p; }
KEPT void *loud(int n) { void *p = malloc(n); __asm__ volatile("" : : "r"(p)); return p; }
int main(void) { for (int i = 1; i < 6; i++) { free(quiet(i * 8)); free(loud(i * 8)); } return 0; }
"""


@pytest.fixture(scope="module")
def named():
    return build("places.c", "-O1", text=PROGRAM)


@pytest.fixture(scope="module")
def stripped(named, tmp_path_factory):
    path = tmp_path_factory.mktemp("places") / "stripped"
    subprocess.run(["strip", "-o", path, named], check=True)
    return path


@pytest.fixture
def run(capfd):
    def run(*arguments):
        capfd.readouterr()
        assert main(arguments) == 0
        return capfd.readouterr().err

    return run


def test_addresses_in_keys_have_names_or_hexadecimal_digits(run, named):
    text = run("hist", "libc:malloc", "--by", "func, func(caller), caller, ptr(arg0)", "--", str(named))
    assert (
        len(re.findall(r"^ *libc.so.6:malloc +places:loud\+0x\w+ +places:loud\+0x\w+ +0x\w+ +1 *$", text, MULTILINE))
        == 5
    )
    document = json.loads(run("hist", "libc:malloc", "--by", "caller", "--json", "--", str(named)))
    (cells,) = document["aggregations"].values()
    assert {type(cell["key"][0]) for cell in cells} == {int}  # a document has numbers to compute with


def test_what_has_no_name_is_called_by_module_and_offset_once(run, stripped):
    text = run("hist", "libc:malloc", "--by", "func(caller)", "--", str(stripped))
    assert len(re.findall(r"^ *stripped\+0x\w+ +5\b", text, MULTILINE)) == 2
    text = run("hist", "libc:malloc", "--by", "ctx.ustack(6)", "--", str(stripped))
    assert len(re.findall(r"malloc < stripped\+0x\w+ < stripped\+0x\w+ < libc", text)) == 2
    listed = json.loads(run("count", "a.out:*", "--json", "--", str(stripped)))["sites"]
    name = min(each["function"] for each in listed if each["hits"] == 5 and each["offset"] == 0)
    text = run("trace", f"a.out:{name}", "--print", "func", "--", str(stripped))
    assert re.search(rf"\d {re.escape(name)}  func=\"{re.escape(name)}\"$", text, MULTILINE), text


VARIABLES = """
#include <stdlib.h>
namespace pool { struct Lock { long words[8]; } locks[4]; }
static pool::Lock first = {{1}};
extern "C" __attribute__((noinline)) void take(void *lock) { __asm__ volatile("" : : "r"(lock) : "memory"); }
int main() {
    for (int i = 0; i < 3; i++) { take(&first); take(&pool::locks[2]); take((char *)&pool::locks[3] + 8); }
    void *heap = malloc(64);
    take(heap);
    free(heap);
    return 0;
}
"""


def test_what_points_at_variables_is_called_by_them(run, tmp_path):
    """With a value of the start, in ``.data``, and without, in ``.bss``; of the heap nothing is known."""
    program = build("variables.cpp", "-O1", text=VARIABLES)
    text = run("hist", "a.out:take", "--by", "func(arg0)", "--", str(program))
    rows = dict(re.findall(r"^ *(\S+) +(\d+)\b", text, MULTILINE))
    heap = [key for key in rows if re.fullmatch(r"0x\w+", key)]
    assert {key: rows[key] for key in rows if key.startswith("variables")} == {
        "variables:first": "3", "variables:pool::locks+0x80": "3", "variables:pool::locks+0xc8": "3",
    }  # fmt: skip
    assert [rows[key] for key in heap] == ["1"]


def test_func_is_the_same_in_scripts(run, named, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from anyprobe import Count, func, session\n"
        'calls = Count("calls", by=("function", "caller", "place"))\n'
        '@session.entry("libc:malloc")\n'
        "def hit(ctx):\n"
        "    if func == ctx.func:\n"
        "        calls.add(key=(func, func(ctx.caller), ctx.caller))\n"
    )
    text = run("script", str(script), "--", str(named))
    assert len(re.findall(r"^ *libc.so.6:malloc +places:(?:loud|quiet)\+0x\w+ +places:\S+ +5\b", text, MULTILINE)) == 2


def test_stacks_of_a_started_program_are_whole(run, named):
    """The libraries were not there yet when the handler was placed."""
    text = run("hist", "libc:malloc", "--by", "ctx.ustack(4)", "--", str(named))
    assert (
        len(re.findall(r"malloc < places:(?:quiet|loud)\+0x\w+ < places:main\+0x\w+ < libc.*  +5\b", text, MULTILINE))
        == 2
    )


def test_a_place_is_a_number_that_is_shown_by_name():
    place = Place(4096, "libc:malloc")
    assert (str(place), f"{place}", place + 1, f"{place:x}") == ("libc:malloc", "libc:malloc", 4097, "1000")
    assert json.dumps([place]) == "[4096]"
    assert str(pickle.loads(pickle.dumps(place))) == "libc:malloc"  # noqa: S301 - our own
    assert str(Place(16)) == "0x10"


def test_stack_is_a_key_of_its_own(run, named):
    text = run("hist", "libc:malloc", "--by", "stack", "--", str(named))
    assert len(re.findall(r"malloc < places:(?:quiet|loud)\+0x\w+ < places:main\+0x\w+ < libc.* +5\b", text)) == 2
    text = run("trace", "libc:malloc", "--print", "stack", "-c", "1", "--", str(named))
    assert 'stack="libc.so.6:malloc < places:' in text
