"""Probes hit close to where a stack ends: they take no more of it than the documents say, first hits included."""

import json
import subprocess

import pytest

from anyprobe.probes.providers.function.handlers.handling import STACK_LIMIT
from anyprobe.splice.codegen import stack_needs
from live.test_command_line import anyprobe
from support.driver import build, wait_until, waits_for_input

pytestmark = [pytest.mark.live, pytest.mark.root]
TOTAL = str(20 * sum(range(1, 51))) + "\n"
HANDLER = stack_needs.HANDLER_CALLED + STACK_LIMIT
MEASURED = {
    "count": (stack_needs.COUNTED, ["count", "a.out:probed", "a.out:probed%return"]),
    "time": (stack_needs.TIMED, ["time", "a.out:probed"]),
    "self": (stack_needs.TIMED, ["time", "--self", "a.out:probed"]),
    "tree": (stack_needs.TIMED, ["time", "--tree", "a.out:probed"]),
    "trampoline": (stack_needs.REPLACED, ["time", "--returns", "trampoline", "a.out:probed"]),
    "hist": (HANDLER, ["hist", "a.out:probed", "--of", "arg0", "--by", "tid"]),
    "trace": (HANDLER, ["trace", "a.out:probed", "--print", "cstr(arg1, 16)", "--print", "stack"]),
}


@pytest.mark.parametrize(("room", "command"), MEASURED.values(), ids=MEASURED)
def test_no_more_is_taken_than_is_said(tmp_path, room, command):
    program, results = build("near_end_of_stack.c", "-pthread"), tmp_path / "results.json"
    found = anyprobe(*command, "--json", "-o", str(results), "--exit-status", "--", str(program), str(room))
    assert (found.returncode, found.stdout) == (0, TOTAL), found.stderr
    text = results.read_text()
    if command[0] == "count":
        assert [site["hits"] for site in json.loads(text)["sites"]] == [1000, 1000]
    elif command[0] == "time":
        assert sum(each["count"] for each in json.loads(text)["functions"]) == 1000


@pytest.mark.parametrize("command", ["count", "time"])
def test_first_hits_of_fork_children(tmp_path, command):
    program = build("near_end_of_stack.c", "-pthread")
    room = stack_needs.FORKED if command == "time" else stack_needs.COUNTED
    found = anyprobe(command, "a.out:probed", "--exit-status", "--", str(program), str(room), "fork")
    assert found.returncode == 0, found.stderr
    assert TOTAL in found.stdout


def test_what_a_site_needs_is_said():
    argv = [build("near_end_of_stack.c", "-pthread"), "4096", "wait"]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        pid = process.pid
        wait_until(lambda: waits_for_input(pid), "the program waits")
        for purpose, bytes_needed in (("count", stack_needs.COUNTED), ("time", stack_needs.TIMED)):
            found = anyprobe("explain", "a.out:probed", "--for", purpose, "-p", str(pid))
            assert f"a hit takes up to {bytes_needed} bytes below rsp" in found.stdout
            found = anyprobe("explain", "a.out:probed", "--for", purpose, "-p", str(pid), "--json")
            assert json.loads(found.stdout)["stack"] == bytes_needed
        assert process.communicate("\n")[0] == TOTAL
