"""A session that is killed, or refused something, at every call that it makes to the kernel: nothing is left behind."""

import pytest

import anyprobe
from support.in_kernel import calls_of, held, in_child, in_children, left_behind, was_killed

FUNCTION = "__x64_sys_getppid"
SPECS = (
    *(f"{name}:{FUNCTION}" for name in ("kprobe", "kretprobe", "fentry", "fexit")),
    f"kernel::{FUNCTION}:4",
    "syscall::getppid:return",
    "tracepoint:sched:sched_switch",
    "rawtracepoint:sys_enter",
)
CALLS = ("bpf", "perf_event_open", "close")


def whole_session():
    """Attach by extent mechanism, read, remove, attach again and detach."""
    with anyprobe.kernel() as session:
        probes = session.count(*SPECS)
        session.count("kernel:vmlinux:vfs_w*:entry")
        session.count("syscall::getppid:entry", mechanism="tracepoint")
        session.snapshot()
        session.remove(*probes[:2])
        session.enable(*probes[:1])


@pytest.fixture(scope="module")
def calls():
    """Return the calls that a whole session makes, by position; the parent knows the kernel's names before it forks."""
    whole_session()
    told = in_child(whole_session)
    assert set(told) == {"log", "status"}, told
    found = calls_of(told["log"], *CALLS)
    assert {"bpf 5", "bpf 17", "bpf 28", "perf_event_open", "close"} <= set(found.values())
    return found


def positions(calls, extent):
    """Return at which calls it goes wrong: the first of each kind, the first behind each other kind, or all."""
    previous = ["", *calls.values()] if extent != "kinds" else [""] * len(calls)
    first = {}
    for (position, what), before in zip(calls.items(), previous, strict=False):
        first.setdefault((what, before), position)
    return list(calls) if extent == "all" else list(first.values())


EXTENTS = [
    "kinds",
    pytest.param("classes", marks=pytest.mark.thorough),
    pytest.param("all", marks=[pytest.mark.thorough, pytest.mark.torture, pytest.mark.timeout(1800)]),
]


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("kind", ["kill-before", "kill-after"])
def test_killed_at_a_call(calls, kind, extent):
    before = held()
    tried = positions(calls, extent)
    answers = in_children(whole_session, [f"{kind}:{position}" for position in tried])
    for position, told in zip(tried, answers, strict=True):
        assert was_killed(told), (position, calls[position])
    assert not left_behind(before)
    print(f"{kind}: {len(tried)} of {len(calls)} calls")


@pytest.mark.parametrize("extent", EXTENTS)
@pytest.mark.parametrize("error", ["ENOMEM", pytest.param("EPERM", marks=pytest.mark.thorough)])
def test_refused_a_call(calls, error, extent):
    before = held()
    tried = [position for position in positions(calls, extent) if calls[position] != "close"]
    answers = in_children(whole_session, [f"fail:{position}:{error}" for position in tried])
    for position, told in zip(tried, answers, strict=True):
        assert "untyped" not in told, (position, calls[position], told["untyped"])
        assert told["status"] == 0
    assert not left_behind(before)
    print(f"{error}: {len(tried)} of {len(calls)} calls")
