"""Functions that libc chooses an implementation of: one site each, and every call counted once."""

import anyprobe

ROUNDS = 10
OF_STDIO = 200
"""More than the calls with which the program says its numbers."""


def test_a_call_through_an_ifunc_is_counted_once(run_target):
    target = run_target("string_lengths.c")
    with anyprobe.attach(target.pid) as session:
        session.count("libc:strlen")
        counts = target.go(ROUNDS)
        (site,) = session.snapshot().sites
        assert counts.calls["strlen"] == ROUNDS * 1000
        assert counts.calls["strlen"] <= site.hits < counts.calls["strlen"] + OF_STDIO
    target.finish()


def test_a_callee_is_counted_for_each_of_its_callers(run_target):
    """Where libc's getenv calls strlen, strlen's number holds those calls too."""
    target = run_target("library_calls.c")
    with anyprobe.attach(target.pid) as session:
        session.count("libc:strlen", "libc:getenv")
        counts = target.go(ROUNDS)
        strlen, getenv = (sum(s.hits for s in session.snapshot().sites if n in s.spec) for n in ("strlen", "getenv"))
        assert counts.calls["getenv"] <= getenv < counts.calls["getenv"] + OF_STDIO
        within = [calls for calls in (0, getenv) if 0 <= strlen - counts.calls["strlen"] - calls < OF_STDIO]
        assert within, (strlen, getenv, counts.calls)
    target.finish()


def test_no_spec_lists_a_site_twice(run_target):
    target = run_target("library_calls.c")
    with anyprobe.attach(target.pid) as session:
        for spec in ("libc:*", "libc:str*", "libc:strlen", "strlen", "*:mem*", "libc:*%return", "libc:*time*", "*:*"):
            sites, _ = session.resolve(spec)
            assert len({site.address for site in sites}) == len(sites) > 0, spec
    target.finish()
