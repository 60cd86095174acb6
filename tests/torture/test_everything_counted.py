"""The programs that break other tools, all functions of theirs and of libc counted or timed: all is well."""

import sys

import pytest

import anyprobe
from support.driver import MissingTool, Target, started
from support.filters import TIMED, place
from support.situations import SITUATIONS, Situation

EVERYTHING = ("a.out:*", "libc:*")
COMMANDS = {"exits": ["count"], "timed": ["time"], "self times": ["time", "--self"]}
ROUNDS = 20


@pytest.fixture(params=SITUATIONS, ids=lambda situation: situation.name)
def situation(request) -> Situation:
    try:
        request.param.build()
    except MissingTool as tool:
        pytest.skip(f"no {tool}")
    return request.param


@pytest.fixture(params=COMMANDS)
def level(request, situation) -> str:
    if situation.slotless and request.param in TIMED:
        pytest.skip("calls cannot be timed there")
    return request.param


def everything(situation, level):
    """Return the specs that mean something in a program; one that is static has no libc."""
    static = {"-static", "-static-pie"} & {*situation.options} or situation.compiler is not None
    specs = EVERYTHING[:1] if static else EVERYTHING
    return specs if level in TIMED else (*specs, *(f"{spec}%return" for spec in specs))


def test_attached(situation, level):
    with started(situation.build(), *situation.arguments) as target:
        target.go(1)
        for _ in range(2):
            with anyprobe.attach(target.pid, **TIMED.get(level, {})) as session:
                place(session, level, *everything(situation, level))
                target.go(ROUNDS)
                assert session.snapshot().hits > 0
                target.run_freely()
                session.snapshot()
            target.halt()
        target.finish()


def test_started(situation, level, tmp_path):
    words = [*COMMANDS[level], *everything(situation, level), "--json", "-o", tmp_path / "results"]
    command = [sys.executable, "-m", "anyprobe", *words]
    target = Target([*command, "--", situation.build(), *situation.arguments])
    try:
        target.go(ROUNDS)
        target.run_freely()
        target.halt()
        target.finish()
        assert (tmp_path / "results").stat().st_size > 0
    finally:
        target.close()
