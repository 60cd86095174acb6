"""Several sessions as one: what is merged, and what becomes of the others when one fails."""

import dataclasses

import pytest

from anyprobe.core.errors import SpecError, UsageError
from anyprobe.data.snapshots.processes import TargetInfo
from anyprobe.data.snapshots.snapshot import SiteResult, Snapshot
from anyprobe.probes.group import SessionGroup, merged


class Session:
    """Counts 10 hits of its process's number."""

    def __init__(self, pid, *, knows=("a.out:work",)):
        self.pid, self.exited, self.knows = pid, False, knows
        self.calls = []

    def count(self, *specs):
        for spec in (each.text for each in specs):
            if spec not in self.knows:
                raise SpecError(spec, 0, "no such function")
        return [f"{self.pid} {spec.text}" for spec in specs]

    def remove(self, *probes):
        self.calls.append(("remove", *probes))

    def snapshot(self):
        site = SiteResult("a.out:work", "a.out", "work", 0, 0x1000 * self.pid, "jump", True, 10 * self.pid)
        return Snapshot(TargetInfo(self.pid, "/bin/x"), 1.0, sites=(site,))

    def detach(self):
        self.calls.append("detach")

    def close(self):
        self.calls.append("close")
        if self.pid == 2:
            raise OSError("cannot be closed")


def test_results_are_added_up_and_each_stays_to_be_had():
    group = SessionGroup([Session(1), Session(2), Session(3)])
    together = group.snapshot()
    assert (len(group), together.hits, len(together.sites)) == (3, 60, 1)
    assert [each.pid for each in (together.target, *together.others)] == [1, 2, 3]
    assert [each.hits for each in group.snapshots()] == [10, 20, 30]
    assert group[2].pid == 2
    with pytest.raises(KeyError):
        group[4]
    assert repr(group) == "<SessionGroup of 1, 2, 3>"


def test_probes_are_in_all_or_in_none():
    sessions = [Session(1), Session(2, knows=())]
    with pytest.raises(SpecError):
        SessionGroup(sessions).count("a.out:work")
    assert sessions[0].calls == [("remove", "1 a.out:work")]
    assert SessionGroup([Session(1), Session(2)]).count("a.out:work") == ["1 a.out:work", "2 a.out:work"]


def test_all_are_closed_whatever_one_raises():
    sessions = [Session(1), Session(2), Session(3)]
    with pytest.raises(OSError, match="cannot be closed"), SessionGroup(sessions):
        pass
    assert [each.calls for each in sessions] == [["close"]] * 3


def test_all_are_gone_when_the_last_one_is():
    sessions = [Session(1), Session(2)]
    sessions[0].exited = True
    assert not SessionGroup(sessions).exited
    sessions[1].exited = True
    assert SessionGroup(sessions).exited


def test_nothing_is_no_result():
    with pytest.raises(UsageError, match="without a process"):
        merged([])
    one = Session(1).snapshot()
    assert merged([one]) == one
    assert merged([one, dataclasses.replace(one)]).hits == 20
