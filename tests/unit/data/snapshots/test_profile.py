"""What a profile says of stacks that are known."""

import pytest

from anyprobe.data.snapshots.processes import TargetInfo
from anyprobe.data.snapshots.profile import TRUNCATED, Profile, ProfiledStack, ProfileFrame


def frames(*names):
    return tuple(ProfileFrame("server", name, probed=True) for name in names)


def profile(*stacks, **settings):
    found = {"lost": 0, "kernel": True, "processor_s": 1.0, **settings}
    return Profile((TargetInfo(7, "/bin/server"),), (), 1.0, 100, tuple(stacks), **found)


def nodes(tree):
    return {node.function: (node.count, nodes(node.calls)) for node in tree}


def test_a_function_counts_once_in_a_sample_however_often_it_has_called_itself():
    found = profile(ProfiledStack(frames("fib", "fib", "fib", "main"), 30), ProfiledStack(frames("main"), 70))
    counts = {each.function: (each.self_samples, each.total_samples) for each in found.functions}
    assert counts == {"fib": (30, 30), "main": (70, 100)}
    assert found.samples == 100


def test_the_tree_has_each_sample_once_and_the_time_that_they_stand_for():
    found = profile(
        ProfiledStack(frames("leaf", "work", "main"), 3),
        ProfiledStack(frames("work", "main"), 2),
        ProfiledStack(frames("leaf"), 1, truncated=True),
    )
    assert nodes(found.tree) == {
        "main": (0, {"work": (2, {"leaf": (3, {})})}),
        TRUNCATED: (0, {"leaf": (1, {})}),
    }
    assert sum(node.sum_ns for node in found.tree) == pytest.approx(6e7)
    assert found.truncated == 1


def test_stacks_of_several_processes_are_one_unless_they_are_told_apart():
    stacks = [ProfiledStack(frames("main"), count, pid=pid) for pid, count in ((7, 3), (8, 4))]
    assert profile(*stacks).as_json()["stacks"] == [{"frames": ["server:main"], "count": 7, "truncated": False}]
    apart = [ProfiledStack(frames("main"), count, key=pid, pid=pid) for pid, count in ((7, 3), (8, 4))]
    document = profile(*apart, by="pid").as_json()
    assert [(each["pid"], each["count"]) for each in document["stacks"]] == [(8, 4), (7, 3)]
    assert [(each["pid"], each["self"]) for each in document["functions"]] == [(8, 4), (7, 3)]
    assert profile(*stacks).busiest == [8, 7]


@pytest.mark.parametrize(("seconds", "samples", "share"), [(1.0, 100, 0), (1.0, 75, 0), (1.0, 40, 0.6), (0.01, 0, 0)])
def test_what_no_sample_tells_of_is_said_where_it_is_more_than_chance(seconds, samples, share):
    found = profile(ProfiledStack(frames("main"), samples), processor_s=seconds)
    assert found.unsampled_share == pytest.approx(share)
