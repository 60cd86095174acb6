"""What is counted is read once at the end, however large it is, and what was armed until then is shown as armed."""

import anyprobe
from anyprobe.data.snapshots.last_results import results_at_end
from anyprobe.probes.parts.results import Results


def test_results_are_read_once(run_target, monkeypatch):
    target = run_target("counts.c")
    read, taken = Results._read, []
    monkeypatch.setattr(Results, "_read", lambda results: taken.append(1) or read(results))
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:work")
        session.time("a.out:work")
        calls = target.go(5).calls["work"]
        found = results_at_end(session)
        assert [(site.armed, site.hits) for site in found.sites] == [(True, calls)]
        assert [(each.count, all(place.armed for place in each.places)) for each in found.functions] == [(calls, True)]
        after = session.snapshot()
        assert [(site.armed, site.hits) for site in after.sites] == [(False, calls)]
        assert not any(place.armed for each in after.functions for place in each.places)
        assert after.target.alive
        target.finish()
        session.wait(180)
        ended = session.snapshot()
        assert (ended.target.alive, ended.processes[0].process.alive) == (False, False)
        assert ended.sites == after.sites
    assert session.snapshot() == ended
    assert len(taken) == 1
