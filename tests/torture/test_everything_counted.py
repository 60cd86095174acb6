"""The programs that break other tools, all functions of theirs and of libc counted and their own timed: all is well."""

import sys

import pytest

import anyprobe
from support.driver import MissingTool, Target, started
from support.situations import SITUATIONS, Situation

EVERYTHING = ("a.out:*", "a.out:*%return", "libc:*", "libc:*%return")
ROUNDS = 20


@pytest.fixture(params=SITUATIONS, ids=lambda situation: situation.name)
def situation(request) -> Situation:
    try:
        request.param.build()
    except MissingTool as tool:
        pytest.skip(f"no {tool}")
    return request.param


def everything(situation):
    """Return the specs that mean something in a program; one that is static has no libc."""
    static = {"-static", "-static-pie"} & {*situation.options} or situation.compiler is not None
    return EVERYTHING[:2] if static else EVERYTHING


def test_attached(situation):
    with started(situation.build(), *situation.arguments) as target:
        target.go(1)
        for _ in range(2):
            with anyprobe.attach(target.pid) as session:
                session.count(*everything(situation))
                if not situation.slotless:
                    session.time("a.out:*")
                target.go(ROUNDS)
                assert session.snapshot().hits > 0
                target.run_freely()
                session.snapshot()
            target.halt()
        target.finish()


def test_started(situation, tmp_path):
    command = [sys.executable, "-m", "anyprobe", "count", *everything(situation), "--json", "-o", tmp_path / "results"]
    target = Target([*command, "--", situation.build(), *situation.arguments])
    try:
        target.go(ROUNDS)
        target.run_freely()
        target.halt()
        target.finish()
        assert (tmp_path / "results").stat().st_size > 0
    finally:
        target.close()
