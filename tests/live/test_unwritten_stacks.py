"""Signal handlers on alternate stacks that are read-only and that they never write to: no probe in them does either."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import anyprobe
from support.driver import build, wait_until, waits_for_input

pytestmark = [pytest.mark.live, pytest.mark.root]
ANYPROBE = str(Path(sys.executable).with_name("anyprobe"))
THREADS, ROUNDS = 3, 200
SIGNALS = THREADS * ROUNDS
KINDS = ("leaf", "onward", "branches", "context", "later")
COUNTED = {"entries": ["count", "a.out:*"], "instructions": ["count", "a.out:*:*"]}
REFUSED = {
    "timed": ["time", "a.out:*"],
    "timed by replaced return addresses": ["time", "--returns", "trampoline", "a.out:*"],
    "in a tree": ["time", "--tree", "a.out:*"],
    "conditional": ["count", "a.out:*", "--when", "arg0 == 10"],
    "traced": ["trace", "a.out:*"],
}


def run(tmp_path, command, kind, *more):
    """Run a command on the program; return its document, and check that the program came to no harm."""
    program, out = build("unwritten_stacks.c", "-pthread"), tmp_path / "out.json"
    argv = [ANYPROBE, *command, "--json", "-o", str(out), "--", str(program), kind, str(THREADS), str(ROUNDS), *more]
    done = subprocess.run(argv, input="\n", capture_output=True, text=True, timeout=180, check=False)
    assert done.stdout.splitlines()[-1:] == [f"{kind} {SIGNALS}"], done.stderr
    return json.loads(out.read_text().splitlines()[-1] if command[0] == "trace" else out.read_text())


def ran(kind):
    return {"leaf" if kind == "later" else kind} | ({"target"} if kind == "onward" else set())


@pytest.mark.parametrize("more", [(), ("mapped",)], ids=["of memory", "of a file"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", COUNTED.values(), ids=COUNTED)
def test_what_is_counted_there_is_right(tmp_path, command, kind, more):
    found = run(tmp_path, command, kind, *more)
    handler = "leaf" if kind == "later" else kind
    sites = [site for site in found["sites"] if site["function"] in ran(kind) and site["armed"]]
    assert [site["hits"] for site in sites if site["spec"].endswith(f":{handler}:entry")] == [SIGNALS]
    loop = {3 * SIGNALS} if kind == "branches" else set()
    assert {site["hits"] for site in sites} - {0} in ({SIGNALS}, {SIGNALS} | loop)  # 0: what is never run
    refused = [each for each in found["refused"] if any(f":{name}:" in each["spec"] for name in ran(kind))]
    assert {each["reason"] for each in refused} <= {"alternate-stack"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("command", REFUSED.values(), ids=REFUSED)
def test_what_would_write_there_is_refused_by_name(tmp_path, command, kind):
    found = run(tmp_path, command, kind)
    if command[0] == "trace":
        return
    why = {
        refused["reason"] for refused in found["refused"] if any(f":{name}:" in refused["spec"] for name in ran(kind))
    }
    assert why <= {"alternate-stack", "exit-refused", "return-address-must-stay"}
    assert "alternate-stack" in why


@pytest.mark.parametrize("kind", sorted(set(KINDS) - {"later"}))
def test_those_that_are_set_when_the_session_begins_are_known(monkeypatch, kind):
    monkeypatch.setenv("WAIT", "1")
    argv = [build("unwritten_stacks.c", "-pthread"), kind, str(THREADS), str(ROUNDS)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        wait_until(lambda: waits_for_input(process.pid), "its handler is set")
        with anyprobe.attach(process.pid) as session:
            session.time("a.out:*")
            session.count("a.out:*")
            assert (process.communicate("\n", timeout=180)[0], process.wait()) == (f"ready\n{kind} {SIGNALS}\n", 0)
            snapshot = session.snapshot()
    hits = {site.function: site.hits for site in snapshot.sites if site.armed}
    assert hits[kind] == SIGNALS
    assert hits.get("target", 0) in (0, SIGNALS * (kind == "onward"))
    assert any(refused.reason == "alternate-stack" for refused in snapshot.refused)
