"""Functions replaced and brought back ten thousand times under load, and controllers killed while they load objects."""

import shutil
from itertools import islice

import pytest

import anyprobe
from anyprobe import SharedObject
from anyprobe.target.system.gateway import FaultPlan
from live.test_replace import SOURCE, load_and_die, running

pytestmark = pytest.mark.live

ROUNDS, QUIET_ROUNDS = 10_000, 1_000


@pytest.mark.timeout(3600)
def test_ten_thousand_rounds_under_load():
    """Three threads call the functions all the time; each result is right by the old or by the new one."""
    with running() as program:
        before = program.text()
        fix = SharedObject.compiled(SOURCE, "new_fee")
        with anyprobe.attach(program.pid, unsafe=True) as session:
            assert program.ask("b") == "busy"
            for _ in range(ROUNDS):
                session.replace({"a.out:price": "a.out:price_new", "a.out:fee": fix}).revert()
            assert program.ask("B") == "1 0"
            assert len(session.probes) == 2
        assert (program.text(), program.ask("p5")) == (before, "10 6")


@pytest.mark.timeout(3600)
def test_a_thousand_rounds_without_a_thread_inside():
    with running() as program:
        before = program.text()
        pairs = {"a.out:packed": "a.out:packed_new", "a.out:unpacked": "a.out:unpacked_new"}
        within = ["a.out:there_and_back"]
        with anyprobe.attach(program.pid, unsafe=True) as session:
            assert program.ask("b") == "busy"
            for _ in range(QUIET_ROUNDS):
                session.replace(pairs, outside=within, timeout=300).revert(outside=within, timeout=300)
            assert program.ask("B") == "1 0"
        assert program.text() == before


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("kind", ["kill-before", "kill-after"])
def test_controllers_are_killed_at_every_call_while_they_load(tmp_path, kind):
    """The thread comes back by itself each time, and the program computes what it did."""
    fix = SharedObject.compiled(SOURCE, "new_price").path
    numbers = iter(range(1, 1000))
    killed = True
    while killed:
        with running() as program:  # a kill may cost a part of the main stack, of which there is not for ever
            for call in islice(numbers, 25):
                copy = shutil.copy(fix, tmp_path / f"fix{call}.so")
                killed = load_and_die(program, copy, FaultPlan(kind, call))
                if not killed:
                    assert call > 100
                    break
