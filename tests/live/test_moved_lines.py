"""Acceptance: functions whose lines move together count every instruction as they do one by one, and work as before."""

import pytest

import anyprobe
from anyprobe.splice.apply import emission
from anyprobe.splice.codegen.moved.fragments import is_described
from support.driver import wait_until
from support.image import Image

WORK = ("mix", "decide", "sort", "length", "work")


def counted(target, kind, rounds):
    """Return the hits of the program's functions by instruction, over some rounds."""
    with anyprobe.attach(target.pid) as session:
        session.count(*(f"a.out:{name}%{kind}" for name in WORK))
        moved = [splice.patch for edit in session.engine.modules for state in edit.functions.values()
                 for splice in state.splices if splice.patch is not None]  # fmt: skip
        target.go(rounds)
        sites = session.snapshot().sites
    return {(site.function, site.offset): site.hits for site in sites if site.armed}, moved


@pytest.mark.parametrize("kind", ["block", "insn"])
@pytest.mark.parametrize("arguments", [("1",), ("4",), ("2", "fork")])
def test_counts_are_those_of_lines_that_do_not_move(run_target, monkeypatch, kind, arguments):
    target = run_target("blocks.c", *arguments)
    before = Image.of(target.pid)
    monkeypatch.setattr(emission, "MANY_FUNCTIONS", 1)
    together, patches = counted(target, kind, 20)
    assert sum(not is_described(patch) for patch in patches) > 5
    before.assert_restored(target.pid)
    monkeypatch.setattr(emission, "MANY_FUNCTIONS", 1 << 30)
    one_by_one, _ = counted(target, kind, 20)
    assert together == one_by_one
    shares = 20 * (int(arguments[0]) + (len(arguments) > 1))
    assert together["work", 0] == shares
    target.finish()


def test_lines_move_while_threads_run_in_them(run_target, monkeypatch):
    target = run_target("blocks.c", "4")
    monkeypatch.setattr(emission, "MANY_FUNCTIONS", 1)
    target.run_freely()
    for _ in range(8):
        with anyprobe.attach(target.pid) as session:
            session.count(*(f"a.out:{name}%block" for name in WORK))
            wait_until(lambda session=session: session.snapshot().hits > 1000, "blocks are counted")
    target.halt()
    target.finish()
