"""A probe that costs too much is taken out, says so, and keeps its count."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

import anyprobe
from anyprobe.probes import budget
from support.driver import build
from support.results import hits, timing

PATIENCE = 180


@pytest.fixture
def busy(run_target):
    target = run_target("naps.c")
    target.go(1)
    target.run_freely()
    yield target
    target.halt()
    target.go(1)
    target.finish()


@pytest.mark.parametrize("mode", ["count", "time"])
def test_a_tiny_limit_takes_the_probe_out(busy, mode):
    with anyprobe.attach(busy.pid) as session:
        (dear,) = getattr(session, mode)("a.out:nothing")
        (cheap,) = session.count("libc:sigaltstack")
        deadline = time.monotonic() + PATIENCE
        removed = []
        while not removed and time.monotonic() < deadline:
            removed = session.limit_overhead(1e-5)
            time.sleep(0.05)
        assert removed == [dear]
        assert not dear.armed
        assert cheap.armed
        assert any("a.out:nothing (about" in text for text in session.warnings)
        snapshot = session.snapshot()
        kept = hits(snapshot, "nothing") if mode == "count" else timing(snapshot, "nothing").count
        assert kept > 0
        time.sleep(0.1)
        again = session.snapshot()
        assert kept == (hits(again, "nothing") if mode == "count" else timing(again, "nothing").count)


BY_TURNS = """
#include <signal.h>
#include <unistd.h>
static volatile sig_atomic_t quiet;
static void change(int signal) { quiet = !quiet; write(1, "q", 1); }
__attribute__((noinline)) void called(volatile long *n) { *n += 1; }
int main(void) {
    volatile long n = 0;
    signal(SIGUSR1, change);
    write(1, "r", 1);
    for (;;) {
        for (int i = 0; i < (quiet ? 1 : 100000); i++) called(&n);
        if (quiet) usleep(1000);
    }
}
"""


def test_what_was_too_dear_for_a_while_is_tried_again_and_counts_on(monkeypatch):
    monkeypatch.setattr(budget, "FIRST", 0.3)
    program = build("called_by_turns.c", "-O1", text=BY_TURNS)
    with subprocess.Popen([program], stdout=subprocess.PIPE) as target:
        target.stdout.read(1)
        try:
            with anyprobe.attach(target.pid) as session:
                (probe,) = session.count("a.out:called")

                def looked_until(is_so):
                    deadline = time.monotonic() + PATIENCE
                    while not is_so() and time.monotonic() < deadline:
                        session.limit_overhead(1, again=True)
                        time.sleep(0.05)  # in which the program makes the calls whose cost is looked at
                    assert is_so()

                found = session.host.arming.budget
                looked_until(lambda: found.removals >= 3)  # it comes back, and has to go again each time
                looked_until(lambda: not probe.armed)
                assert found.seconds(time.monotonic()) > 0.3 + 0.6
                session.remove(probe)  # by the user, whose word counts
                assert found.due(0.0, 1.0, time.monotonic() + budget.LONGEST) is None
                os.kill(target.pid, signal.SIGUSR1)
                assert target.stdout.read(1) == b"q"
                session.limit_overhead(1, again=True)  # of the time before
                session.enable(probe)
                removals, before = found.removals, hits(session.snapshot(), "called")
                looked_until(lambda: probe.armed and hits(session.snapshot(), "called") > before)
                for _ in range(10):
                    session.limit_overhead(1, again=True)
                    time.sleep(0.05)  # between looks, as above
                assert (probe.armed, found.removals, dict(found.out)) == (True, removals, {})
                assert any("a.out:called is tried again" in each for each in session.warnings)
        finally:
            target.kill()


def test_a_generous_limit_takes_nothing_out(busy):
    with anyprobe.attach(busy.pid) as session:
        (probe,) = session.count("a.out:nothing")
        for _ in range(5):
            assert session.limit_overhead(90) == []
            time.sleep(0.02)
        assert probe.armed


def measured(*arguments, then=lambda: None):
    """Run a command until it has said that it has removed something, and something else is done.

    Return its document, and what it has said.
    """
    words = [sys.executable, "-m", "anyprobe", *arguments, "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as command:
        try:
            said = b""
            while b"removed" not in said:
                part = os.read(command.stderr.fileno(), 1 << 12)
                assert part, said
                said += part
            then()
            command.send_signal(signal.SIGINT)
            shown, more = command.communicate(timeout=180)
        finally:
            command.kill()
    assert command.returncode == 130
    return json.loads(shown), (said + more).decode()


@pytest.mark.parametrize("command", ["count", "time"])
def test_the_option(busy, command):
    document, _ = measured(command, "a.out:nothing", "-p", str(busy.pid), "--max-overhead", "0.00001")
    assert any("was removed" in text for text in document["warnings"])
    if command == "count":
        (site,) = document["sites"]
        assert (site["hits"] > 0, site["armed"]) == (True, False)
        assert site["notes"] == ["removed by --max-overhead 1e-05: it has counted until then"]
    else:
        assert document["functions"][0]["count"] > 0


HOT = """
#include <unistd.h>
__attribute__((noinline)) void hot(volatile long *n) { *n += 1; }
__attribute__((noinline)) void warm(volatile long *n) { *n += 2; }
__attribute__((noinline)) void cold(volatile long *n) { *n += 3; }
int main(void) {
    volatile long n = 0;
    for (int rounds = 0;; rounds++) {
        if (rounds % 100 == 0 && write(1, "r", 1) != 1) return 1;
        for (int i = 0; i < 100000; i++) hot(&n);
        for (int i = 0; i < 20; i++) warm(&n);
        cold(&n);
    }
}
"""


def test_of_a_glob_only_the_dearest_functions_go_and_the_rest_counts_on(tmp_path):
    (tmp_path / "h.c").write_text(HOT)
    subprocess.run(["gcc", "-O1", "-o", tmp_path / "h", tmp_path / "h.c"], check=True)
    with subprocess.Popen([tmp_path / "h"], stdout=subprocess.PIPE, bufsize=0) as target:

        def as_much_again():
            """Let the program do what it has done so far once more."""
            for _ in range(len(target.stdout.read(1 << 20)) + 10):
                target.stdout.read(1)

        try:
            limited = ("--max-overhead", "1")
            document, said = measured("count", "h:*o*", "h:warm", "-p", str(target.pid), *limited, then=as_much_again)
        finally:
            target.kill()
    sites = {site["function"]: site for site in document["sites"]}
    assert {name: sites[name]["armed"] for name in ("hot", "warm", "cold")} == {
        "hot": False,
        "warm": True,
        "cold": True,
    }
    assert sites["cold"]["hits"] * 100_000 > 1.2 * sites["hot"]["hits"]  # went on without it
    (warning,) = [text for text in document["warnings"] if "removed" in text]
    assert warning.startswith("h:hot (about")
    assert "together" in warning
    assert "h:hot" in said.replace("\n", "")
