"""Programs whose threads have no slots of their own: everything placed in them does without, or is refused by name."""

import json

import pytest

from anyprobe import run
from anyprobe.core.refusal import Reason
from live.driver import build
from live.test_command_line import anyprobe

WAYS = ("clone", "shared", "syscall", "raw", "clone3")
COMPILERS = {
    "O0": ("gcc", "-O0"),
    "O2": ("gcc",),
    "no-pie": ("gcc", "-O1", "-no-pie"),
    "static": ("gcc", "-static"),
    "musl": ("musl-gcc",),
    "musl-static": ("musl-gcc", "-static"),
}


CASES = [(name, way) for name in COMPILERS for way in WAYS if way in {"clone", "shared", "raw"} or "musl" not in name]
"""musl's own ``syscall`` does not work without a thread pointer."""


@pytest.mark.parametrize(("name", "way"), CASES)
def test_children_end_as_they_would(tmp_path, name, way):
    """Counted from the first instruction on, hooks for signal handlers and filters included."""
    compiler, *options = COMPILERS[name]
    program = build("makes_tasks.c", *options, compiler=compiler)
    results = tmp_path / "results.json"
    found = anyprobe(
        "count",
        "a.out:work",
        "a.out:main",
        "--json",
        "-o",
        str(results),
        "--exit-status",
        "--",
        str(program),
        way,
    )
    assert (found.returncode, found.stdout, found.stderr) == (0, "1275\n", "")
    hits = {site["function"]: site["hits"] for site in json.loads(results.read_text())["sites"]}
    assert hits == {"main": 1, "work": 50}


@pytest.mark.parametrize("attempt", ["planned anew", "planned before"])
def test_handlers_are_refused_by_name(tmp_path, monkeypatch, attempt):
    """Also where a plan for a counter at the same place has been kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    argv = [str(build("makes_tasks.c", "-O0")), "clone"]
    if attempt == "planned before":
        anyprobe("count", "a.out:work", "--", *argv)
    output = tmp_path / "output"
    with output.open("w") as stdout, run(argv, stdout=stdout) as session:
        session.count("a.out:main")
        session.time("a.out:work")
        session.resume()
        assert session.wait(60) == 0
        (refused,) = session.snapshot().refused
    assert refused.reason == Reason.NO_THREAD_SLOT
    assert output.read_text() == "1275\n"
