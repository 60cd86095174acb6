"""Every instruction of functions in which threads are asleep: nobody is woken, the call is not counted again."""

import anyprobe
from support.driver import wait_until
from support.results import refusals

CALLS = (
    "epoll_wait",
    "semtimedop",
    "__libc_sigaction",
    "recv",
    "accept",
    "clock_nanosleep",
    "poll",
    "select",
    "syscall",
)
FOR_EVER = ("msgrcv", "pause")


def ours(pid):
    with open(f"/proc/{pid}/maps") as maps:
        return [line for line in maps if "memfd:anyprobe" in line]


def test_all_instructions_around_the_call(run_target):
    """Armed again and again while each thread sleeps in a call whose ``syscall`` is displaced; gone without a trace."""
    target = run_target("blocked_calls.c")
    target.go(1)
    for number in range(4):
        with anyprobe.attach(target.pid) as session:
            session.count(*(f"libc:{name}:insn" for name in (*CALLS, *FOR_EVER)))
            target.go(2)
            sites = session.snapshot().sites
            assert all(sum(s.hits for s in sites if s.function == name) for name in ("poll", "recv", "clock_nanosleep"))
            assert not any(s.hits for s in sites if s.function in FOR_EVER)
            assert "thread-in-syscall" not in refusals(session.refused).values()
            if number % 2:
                session.remove(*session.probes)
                target.go(1)
        assert not session.warnings
        assert not ours(target.pid)
    target.go(1)
    target.finish()


def test_a_thread_asleep_before_the_site(run_target):
    """The pc is a site of its own, and the ``syscall`` before it the end of another splice: both are armed."""
    target = run_target("parked.c")
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:sleep_inside:insn")
        assert len(session.snapshot().sites) == 4
        before = target.go(0).calls["sleep_inside"]
        calls = target.go(20).calls["sleep_inside"] - before
        hits = {site.offset: site.hits for site in session.snapshot().sites}
        # asleep at first, as at the end: as many calls came in as went out
        assert hits == {0: calls, 2: calls, 4: calls, 7: calls}
    target.go(3)
    target.finish()


def test_unwound_with_the_patch(run_target):
    """Removed while the thread sleeps in the copy: it sleeps on in the text, and the memory can go."""
    target = run_target("parked.c")
    with anyprobe.attach(target.pid) as session:
        probes = session.count("a.out:sleep_inside")
        target.go(3)
        session.remove(*probes)
        assert session.snapshot().hits == 3
    assert not session.warnings
    wait_until(lambda: not ours(target.pid), "nothing of ours is mapped")
    target.go(3)
    target.finish()
