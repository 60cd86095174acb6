"""A session counts by several providers at once, and each can be used by itself."""

import pytest

import anyprobe
from anyprobe.probes.specs.spec import parse
from support.driver import build, started
from support.timer_provider import TimerProvider

pytestmark = pytest.mark.live


class Clock:
    """A time that goes on as a test says."""

    now = 0.0

    def __call__(self):
        return self.now


def by_function(snapshot):
    return {site.function: (site.hits, site.armed) for site in snapshot.sites}


def test_probes_of_two_providers_are_counted_side_by_side():
    clock = Clock()
    with started(build("aggregated.c")) as target, anyprobe.attach(target.pid) as session:
        session.add_provider(TimerProvider(clock))
        work, timer = session.count("a.out:work", "timer:10ms,0ms")
        assert work.armed
        assert timer.armed
        own = target.go(1).calls["work"]
        clock.now = 0.1
        assert by_function(session.snapshot()) == {"work": (own, True), "timer:10ms": (10, True)}
        assert [spec for spec, _ in session.refused] == ["timer:0ms"]
        session.remove(timer)
        clock.now = 0.2
        assert by_function(session.snapshot())["timer:10ms"] == (10, False)
        session.enable(timer)
        clock.now = 0.3
        assert by_function(session.snapshot())["timer:10ms"] == (20, True)
        with pytest.raises(anyprobe.UsageError, match="handlers are for functions"):
            session.entry("timer:10ms", handler=lambda ctx: None)
        with pytest.raises(anyprobe.UsageError):
            session.time("a.out:work", "timer:10ms")
        with pytest.raises(anyprobe.SpecError):
            session.count("timer:10ms", "timer:often")
        target.finish()
    clock.now = 9.0
    assert by_function(session.snapshot())["timer:10ms"] == (20, False)
    assert len(session.probes) == 2


def test_the_provider_of_functions_can_be_used_by_itself():
    with started(build("aggregated.c")) as target, anyprobe.attach(target.pid) as session:
        functions = session.host.functions
        places = functions.resolve(parse("a.out:work")).attachments
        assert [each.armed for each in places] == [False]
        assert functions.read(places) == []
        functions.attach(places)
        own = target.go(1).calls["work"]
        assert [(each.hits, each.armed) for each in functions.read(places)] == [(own, True)]
        assert functions.detach(places) == []
        target.go(1)
        assert [(each.hits, each.armed) for each in functions.read(places)] == [(own, False)]
        target.finish()
