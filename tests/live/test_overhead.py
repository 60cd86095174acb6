"""A probe that costs too much is taken out, says so, and keeps its count."""

import json
import time

import pytest

import anyprobe
from anyprobe.cli import main
from live.results import hits, timing

PATIENCE = 20


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
        assert any("a.out:nothing was removed" in text for text in session.warnings)
        snapshot = session.snapshot()
        kept = hits(snapshot, "nothing") if mode == "count" else timing(snapshot, "nothing").count
        assert kept > 0
        time.sleep(0.1)
        again = session.snapshot()
        assert kept == (hits(again, "nothing") if mode == "count" else timing(again, "nothing").count)


def test_a_generous_limit_takes_nothing_out(busy):
    with anyprobe.attach(busy.pid) as session:
        (probe,) = session.count("a.out:nothing")
        for _ in range(5):
            assert session.limit_overhead(90) == []
            time.sleep(0.02)
        assert probe.armed


@pytest.mark.parametrize("command", ["count", "time"])
def test_the_option(busy, command, capsys):
    arguments = [command, "a.out:nothing", "-p", str(busy.pid), "--for", "1.5", "--max-overhead", "0.00001", "--json"]
    assert main(arguments) == 0
    document = json.loads(capsys.readouterr().out)
    assert any("was removed" in text for text in document["warnings"])
    if command == "count":
        (site,) = document["sites"]
        assert (site["hits"] > 0, site["armed"]) == (True, False)
    else:
        assert document["functions"][0]["count"] > 0
