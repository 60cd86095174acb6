"""Waits by switches of threads: how long each took, and what is not known where some were lost."""

import os

import pytest

from anyprobe.probes.profiling.stacks import SampledStacks
from anyprobe.target.kernel.samples import Sample, Switched, SwitchSampler

MS = 1_000_000


@pytest.fixture
def stacks():
    made = SampledStacks([os.getpid()], "tid", SwitchSampler())
    yield made
    made.close()


def away(tid, time):
    return Sample(time * MS, os.getpid(), tid, (), None, b"")


def waited(stacks):
    return {each.key: each.count / MS for each in stacks.named()}


def test_each_wait_is_from_where_a_thread_gave_its_processor_up_until_it_has_one(stacks):
    for record in (
        away(1, 10),
        away(2, 11),
        Switched(14 * MS, 1),
        away(1, 20),
        Switched(21 * MS, 2),
        Switched(22 * MS, 1),
    ):
        stacks.handle(record)
    assert waited(stacks) == {1: 6, 2: 10}
    assert stacks.waits == 3


def test_what_is_off_at_the_end_has_its_time_until_then(stacks):
    stacks.handle(away(1, 10))
    stacks.end(15 * MS)
    assert waited(stacks) == {1: 5}


def test_a_thread_that_is_back_without_having_gone_has_no_time(stacks):
    stacks.handle(Switched(14 * MS, 1))
    assert waited(stacks) == {}
    assert stacks.switched == {1}


def test_no_wait_is_told_of_in_which_records_were_lost(stacks):
    stacks.handle(away(1, 10))
    stacks.lost()
    for record in (Switched(90 * MS, 1), away(1, 91), Switched(92 * MS, 1)):
        stacks.handle(record)
    assert waited(stacks) == {1: 1}
