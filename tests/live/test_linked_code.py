"""Code that is no compiler's function: the vdso, IFUNCs, shared and overlapping code, data in the text."""

import pytest

import anyprobe
from anyprobe.core.refusal import Reason
from live.image import Image

OWN = (
    "two_doors",
    "second_door",
    "shared_tail_a",
    "shared_tail_b",
    "holds_data",
    "overlapping",
    "falls_in",
    "call_between",
)
VDSO = {"clock_gettime": "clock_gettime", "gettimeofday": "gettimeofday", "getcpu": "getcpu"}


@pytest.fixture
def target(run_target):
    target = run_target("linked_code.c", options=("-lm",))
    target.go(3)
    return target


def grown(target, rounds):
    """Run some rounds; return how often each function was called in them."""
    before = dict(target.counts.calls)
    return {name: calls - before[name] for name, calls in target.go(rounds).calls.items()}


def entries(session, module="linked_code"):
    return {
        site.function: site.hits for site in session.snapshot().sites if site.module == module and site.kind == "entry"
    }


def test_functions_that_share_their_code(target):
    """An entry counts who comes through it, from wherever: by a call, a jump, or from above."""
    with anyprobe.attach(target.pid) as session:
        session.count(*(f"a.out:{name}" for name in OWN))
        assert not session.refused
        calls = grown(target, 100)
        hits = entries(session)
        assert {name: hits[name] for name in OWN if name in calls and name != "second_door"} == {
            name: calls[name] for name in OWN if name in calls and name != "second_door"
        }
        assert hits["second_door"] == calls["second_door"] + calls["two_doors"] + calls["falls_in"]
        assert hits["call_between"] == calls["between"]
    target.go(3)
    target.finish()


def test_every_instruction_of_them(target):
    """The table between the instructions is read as before; nobody who enters in the middle meets half a jump."""
    before = Image.of(target.pid)
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:*:insn")
        assert {refusal.reason for _, refusal in session.refused} <= {Reason.NOT_A_BOUNDARY}
        calls = grown(target, 100)
        hits = {(site.function, site.offset): site.hits for site in session.snapshot().sites}
        assert hits["holds_data", 0] == calls["holds_data"]
        assert ("holds_data", 0x10) not in hits
        assert hits["holds_data", 0x14] == calls["holds_data"]
        assert hits["shared_tail_a", 7] == calls["shared_tail_a"] + calls["shared_tail_b"]
        assert ("overlapping", 0xD) not in hits
    before.assert_restored(target.pid)
    target.go(3)
    target.finish()


@pytest.mark.parametrize("kind", ["entry", "return"])
def test_functions_of_the_vdso(target, kind):
    with anyprobe.attach(target.pid) as session:
        session.count(*(f"vdso:{name}%{kind}" for name in VDSO))
        assert not session.refused
        calls = grown(target, 100)
        hits = dict.fromkeys(VDSO, 0)
        for site in session.snapshot().sites:
            hits[site.function] += site.hits
        assert hits == {name: calls[name] for name in VDSO}
    target.go(3)
    target.finish()


def test_every_instruction_of_the_vdso(target):
    """Its system call for what it cannot tell itself among them."""
    before = Image.of(target.pid)
    with anyprobe.attach(target.pid) as session:
        session.count("vdso:*:insn")
        target.go(100)
        sites = session.snapshot().sites
        assert sum(site.hits > 0 for site in sites) > 50
        assert sum(site.armed for site in sites) > 0.98 * len(sites)
    before.assert_restored(target.pid)
    target.go(3)
    target.finish()


@pytest.mark.parametrize("spec", ["vsyscall:*", "[vsyscall]:gettimeofday", "pid:vsyscall:*:insn"])
def test_the_vsyscall_page_is_refused_by_name(target, spec):
    with anyprobe.attach(target.pid) as session, pytest.raises(anyprobe.TargetError, match="vsyscall"):
        session.count(spec)
    target.finish()


def test_what_an_ifunc_was_resolved_to(target):
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:chosen")
        calls = grown(target, 100)
        assert entries(session) == {"plain_choice": calls["chosen"]}
    target.finish()
