"""Functions that run on into one another, share their ends, or jump to one of several copies of a piece of code."""

from collections import Counter

import anyprobe

NAMES = ("checked", "copying", "too_long", "owner", "borrower", "dispatch", "elsewhere")
ROUNDS = 50


def hits_by_function(session, kind):
    found = Counter()
    for site in session.snapshot().sites:
        if site.kind == kind:
            found[site.function] += site.hits
    return found


def test_entries_and_exits_are_as_many_as_calls(run_target):
    target = run_target("shared_ends.c")
    with anyprobe.attach(target.pid) as session:
        for name in NAMES:
            session.count(f"a.out:{name}")
            session.count(f"a.out:{name}%return")
        assert not session.refused
        calls = target.go(ROUNDS).calls
        assert hits_by_function(session, "entry") == calls
        # who jumps into another function has left his own; the return there is the other one's
        assert hits_by_function(session, "return") == calls | {"owner": calls["owner"] + calls["borrower"]}
    target.finish()


def test_every_instruction_of_a_computed_jump_and_its_copies(run_target):
    target = run_target("shared_ends.c")
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:dispatch:insn")
        assert not session.refused
        calls = target.go(ROUNDS).calls["dispatch"]
        hits = {site.offset: site.hits for site in session.snapshot().sites}
        assert [hits[at] for at in (0, 3, 10, 13, 16)] == [calls] * 5
        assert [hits[at] for at in (32, 37, 48, 53, 64, 66, 80, 85)] == [calls // 4] * 8
    target.finish()
