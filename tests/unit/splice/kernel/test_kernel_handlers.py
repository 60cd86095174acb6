"""The routine that calls a handler in a kernel, run on memory of a process that ``gs`` leads to."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SUPPORT = Path(__file__).parents[3] / "support"
SIZES = [{"registers": {"rdi": first, "rdx": size}} for first, size in ((1, 100), (3, 70), (1, 10), (1, 65))]
POINTERS = [{"registers": {"rdi": "text"}}, {"registers": {"rdi": 5}}]
HELLO = int.from_bytes(b"hello\0\0\0", "little")
SOFT, HARD = 0x101, 0x10000


def run(handler, hits, **more):
    """Return what a handler has left after some hits; everything of the site is as it was."""
    case = {"handler": handler, "hits": hits, **more}
    script = [sys.executable, SUPPORT / "kernel_machine.py"]
    done = subprocess.run(script, input=json.dumps([case]), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (found,) = json.loads(done.stdout)
    assert found["lost"] == []
    assert found["hits"] == len(hits) * len(found["guarded"])
    return found


@pytest.mark.parametrize(
    ("handler", "cells"),
    [
        ("counted", {"()": [3, None]}),
        ("summed", {"()": [2, 165]}),
        ("measured", {"()": [4, 245]}),
        ("keyed", {"('a name', 4321)": [4, None]}),
        ("keyed_values", {"(1, 1000)": [4, 245]}),
    ],
)
@pytest.mark.parametrize("llvm", [False, True])
def test_what_handlers_collect_is_in_the_row_of_the_processor(handler, cells, llvm):
    found = run(handler, SIZES, llvm=llvm)
    assert found["found"] == [cells]
    assert not any(found["guarded"])


def test_memory_is_read_by_the_kernels_own_functions_and_what_cannot_be_is_missing():
    found = run("read", POINTERS)
    assert found["found"] == [{"()": [1, HELLO]}]
    assert found["misses"][0] == 1
    assert run("named", POINTERS)["found"] == [{"hello": [1, None]}]


@pytest.mark.parametrize(
    ("context", "taken", "runs"),
    [(0, [0], 0), (0, [1, 2], 1), (SOFT, [0, 2], 1), (SOFT, [1], 0), (HARD, [0, 1], 1), (HARD | SOFT, [2], 0)],
)
def test_a_hit_inside_a_handler_of_its_kind_of_context_is_counted_as_missed(context, taken, runs):
    found = run("read", [{"registers": {"rdi": "text"}, "context": context, "taken": taken}])
    assert found["guarded"] == [True]
    assert found["missed"] == 1 - runs
    assert found["found"] == [{"()": [1, HELLO]} if runs else {}]


WAITED_FOR, NOT_WAITED_FOR = 0, 1 << 31
"""Counts of ``preempt_disable`` of a thread that may be preempted: the highest bit says that no task waits."""


@pytest.mark.parametrize("handler", ["counted", "read"])
@pytest.mark.parametrize(("context", "times"), [(WAITED_FOR, 1), (NOT_WAITED_FOR, 0), (1, 0), (HARD, 0), (SOFT, 0)])
def test_a_task_that_has_waited_gets_the_processor_afterwards(handler, context, times):
    registers = {"rdi": "text", "rdx": 70}
    assert run(handler, [{"registers": registers, "context": context}])["rescheduled"] == times


def test_records_are_written_where_the_reader_finds_them():
    (rows,) = run("recorded", SIZES)["found"]
    assert [(pid, size, name) for pid, size, _, name in rows] == [(1234, size, "a name") for size in (100, 70, 65)]


def test_records_have_the_time_of_the_kernels_clock_where_it_has_no_other():
    found = run("recorded", SIZES, by_clock=True)
    assert [row[0] for row in found["found"][0]] == [123456789] * 3
    assert found["guarded"] == [True]


def test_both_ends_of_a_call_share_its_data_and_leave_none():
    hits = [{"registers": {"rdi": began, "rax": ended}} for began, ended in ((100, 130), (10, 10))]
    found = run("call", hits)
    assert (found["found"], found["free"]) == ([{"()": [2, 30]}], True)


@pytest.mark.parametrize(("under_way", "ended", "calls"), [(0, 2, [0, 0]), (2, 2, [2, 0]), (3, 0, [3, 2])])
def test_as_many_calls_as_are_asked_for_have_data_at_a_time(under_way, ended, calls):
    hits = [{"registers": {"rdi": began, "rax": began + 1}} for began in (100, 10)]
    found = run("call", hits, at_once=3, under_way=under_way)
    assert found["calls"] == calls
    assert found["free"]
    assert [cell[0] for cell in found["found"][0].values()] == [ended] * bool(ended)


def test_no_end_of_a_call_runs_before_both_are_in_place():
    found = run("call", SIZES, open=False)
    assert (found["found"], found["free"]) == ([{}], True)
