"""What a task of Ray comes to does not depend on what becomes of its probes."""

from types import SimpleNamespace

import pytest

from anyprobe import ray as ours
from anyprobe.core.errors import TargetError, UsageError


class RayError(Exception):
    """As in ``ray.exceptions``."""


class Collector:
    """An actor, of which each method can be called as ``method.remote``."""

    def __init__(self, *, ended=False):
        self.ended, self.told = ended, []

    def __getattr__(self, name):
        return SimpleNamespace(remote=lambda *arguments: (name, *arguments))


@pytest.fixture
def collector(monkeypatch):
    found = Collector()

    def get(call):
        if found.ended:
            raise RayError("the actor has ended")
        found.told.append(call)

    ray = SimpleNamespace(
        exceptions=SimpleNamespace(RayError=RayError),
        get=get,
        get_runtime_context=lambda: SimpleNamespace(get_node_id=lambda: "node"),
    )
    monkeypatch.setattr(ours, "_ray", lambda: ray)
    return found


class Session:
    """A session that can count for some looks."""

    def __init__(self, looks):
        self.looks = looks

    def time(self, *specs, follow):
        assert follow

    def snapshot(self):
        self.looks -= 1
        if self.looks < 0:
            raise TargetError("detached meanwhile")
        return SimpleNamespace(functions=(), aggregations=(), sites=())


@pytest.mark.parametrize("looks", [0, 1])
def test_a_task_runs_where_its_counts_cannot_be_read(monkeypatch, collector, looks):
    monkeypatch.setattr("anyprobe.probes.selfattach.session.attach_self", lambda: Session(looks))
    worker = ours._Worker()
    assert [worker.run(lambda: 7, "task", ("libz:*",), collector) for _ in range(2)] == [7, 7]
    assert [(name, why) for name, _, why in collector.told] == [("fail", "detached meanwhile")]


def test_a_task_runs_where_what_collects_has_ended(monkeypatch, collector):
    monkeypatch.setattr("anyprobe.probes.selfattach.session.attach_self", lambda: Session(100))
    monkeypatch.setattr("anyprobe.data.snapshots.called.called_between", lambda before, after: [])
    worker, collector.ended = ours._Worker(), True
    assert worker.run(lambda: 7, "task", ("libz:*",), collector) == 7
    with pytest.raises(ZeroDivisionError):
        worker.run(lambda: 1 / 0, "task", ("libz:*",), collector)
    collector.ended = False
    assert worker.run(lambda: 8, "task", ("libz:*",), collector) == 8
    assert [call[0] for call in collector.told] == ["add"]


def test_what_runs_by_pieces_is_refused_where_it_is_decorated(collector):
    probes = ours.Probes.__new__(ours.Probes)
    probes.specs, probes._collector = ("libz:*",), collector

    async def waits():
        return 1

    def yields():
        yield 1

    for each in (waits, yields):
        with pytest.raises(UsageError, match="is a coroutine or a generator"):
            probes.task(each)
