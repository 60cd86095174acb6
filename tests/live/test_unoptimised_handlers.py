"""Every instruction of a program whose unoptimised handlers see to faults: their own entries' probes are in no way."""

import pytest

import anyprobe

pytestmark = pytest.mark.live
CASES = (
    (("a.out:*:insn",), ()),
    (("a.out:*:insn",), ("-fcf-protection",)),
    (("a.out:large", "a.out:small", "a.out:*:insn"), ()),
    (("a.out:touch:insn", "a.out:*:insn"), ("-fstack-protector-all",)),
)


@pytest.mark.parametrize(("order", "options"), CASES)
def test_sites_that_may_fault_are_not_given_up(run_target, order, options):
    target = run_target("unoptimised_handlers.c", options=("-O0", *options))
    with anyprobe.attach(target.pid) as session:
        for spec in order:
            session.count(spec)
        calls = target.go(20).calls
        snapshot = session.snapshot()
        entries = {site.function: site.hits for site in snapshot.sites if site.offset == 0}
        assert entries.keys() >= {"touch", "large"}, [r for r in snapshot.refused if "large" in r.spec]
        assert (entries["touch"], entries["large"]) == (calls["touch"], calls["large"]) == (200, 200)
        assert not [each for each in snapshot.refused if "another pc" in each.detail]
        assert len(snapshot.refused) < len(snapshot.sites) // 5
    target.finish()
