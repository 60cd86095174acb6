"""System calls' parameters and tracepoints' fields by name, in the guest's kernel."""

import os
import resource
import subprocess
import time
from contextlib import suppress

import pytest

import anyprobe
from anyprobe import Count, cstr, emit

TIMES = 40


@pytest.fixture
def session():
    with anyprobe.kernel() as opened:
        yield opened


def times_switched():
    """Return how often the kernel has taken the processor from this thread."""
    used = resource.getrusage(resource.RUSAGE_THREAD)
    return used.ru_nvcsw + used.ru_nivcsw


@pytest.mark.parametrize(
    "mechanism", ["fentry", *(pytest.param(each, marks=pytest.mark.thorough) for each in ("kprobe", "tracepoint"))]
)
def test_parameters_of_a_system_call(session, mechanism, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    opened, results = Count("opened", by=("name", "write", "mode")), Count("results", by=("failed",))
    mine = os.getpid()

    @session.entry("syscall::openat", when=lambda ctx: ctx.pid == mine, mechanism=mechanism)
    def entered(ctx, filename, flags, mode):
        opened.add(key=(cstr(filename, 32), flags & 3, mode))

    @session.ret("syscall::openat", when=lambda ctx: ctx.pid == mine, mechanism=mechanism)
    def left(ctx):
        results.add(key=(ctx.retval < 0,))

    assert not session.refused
    before = session.snapshot().aggregation("results").entries
    for _ in range(TIMES):
        os.close(os.open("known.txt", os.O_WRONLY | os.O_CREAT, 0o640))
        with suppress(FileNotFoundError):
            os.open("unknown.txt", os.O_RDONLY)
    snapshot = session.snapshot()
    entries = snapshot.aggregation("opened").entries
    assert entries["known.txt", os.O_WRONLY, 0o640].count == TIMES
    assert entries["unknown.txt", os.O_RDONLY, 0].count == TIMES
    after = snapshot.aggregation("results").entries
    failed = after[1,].count - (before[1,].count if (1,) in before else 0)
    assert failed >= TIMES
    assert not snapshot.missing


@pytest.mark.thorough
def test_fields_of_a_tracepoint_and_what_it_passes(session):
    switches, others = Count("switches", by=("comm", "pid")), Count("others", by=("comm", "pid"))
    mine = os.getpid()

    @session.entry("tracepoint:sched:sched_switch")
    def switched(ctx, prev_comm, prev_pid):
        if prev_pid == mine:
            switches.add(key=(prev_comm, prev_pid))

    @session.entry("rawtracepoint:sched_switch")
    def passed(ctx, prev):
        if prev.pid == mine:
            others.add(key=(prev.comm, prev.pid))

    assert not session.refused
    before = times_switched()
    for _ in range(TIMES):
        time.sleep(0.001)
    known = times_switched() - before
    snapshot = session.snapshot()
    assert known > TIMES // 2  # a sleep that is over before the switch is none
    assert {site.strategy for site in snapshot.sites} == {"tracepoint", "raw_tp"}
    with open("/proc/self/comm") as file:
        comm = file.read().strip()
    assert snapshot.aggregation("switches").entries[comm, mine].count >= known
    assert snapshot.aggregation("others").entries[comm, mine].count >= known


def test_what_a_tracepoint_passes_by_its_type(session):
    """Its pointers are known to the verifier, which permits less with them."""
    exits, codes = Count("exits", by=("comm", "pid")), Count("codes", by=("code",))

    @session.entry("tracepoint:sched:sched_process_exit", mechanism="tp_btf")
    def exited(ctx, p):
        exits.add(key=(p.comm, p.pid))

    @session.entry("rawtracepoint:sched_process_exit", when=lambda ctx, p: p.tgid == ctx.pid, mechanism="tp_btf")
    def ended(ctx, p):
        if p.group_leader.pid == p.pid:
            codes.add(key=(p.exit_code,))

    assert [site.strategy for site in session.snapshot().sites] == ["tp_btf", "tp_btf"]
    children = [subprocess.Popen(["/bin/sh", "-c", "exit 7"]) for _ in range(3)]
    for each in children:
        each.wait()
    snapshot = session.snapshot()
    assert {("sh", each.pid) for each in children} <= set(snapshot.aggregation("exits").entries)
    assert snapshot.aggregation("codes").entries[7 << 8,].count == 3
    assert not snapshot.missing


def test_texts_of_a_record_whose_place_it_says(session):
    started = Count("started", by=("file",))

    @session.entry("tracepoint:sched:sched_process_exec")
    def executed(ctx, filename, pid):
        started.add(key=(filename,))
        emit("executed", file=filename, pid=pid)

    assert not session.refused
    children = [subprocess.Popen(["/bin/true"]) for _ in range(3)]
    for each in children:
        each.wait()
    found = session.snapshot().aggregation("started").entries
    assert found["/bin/true",].count == 3
    records = session.records()["executed"]
    assert {each.pid for each in children} <= set(records["pid"].tolist())


def test_an_unknown_field_has_the_nearest_name(session):
    with pytest.raises(anyprobe.HandlerError, match=r"no parameter filname\n(.*\n)*.*instead: filename"):

        @session.entry("syscall::openat")
        def entered(ctx, filname):
            pass

    with pytest.raises(anyprobe.HandlerError, match=r"no parameter prev_com\n(.*\n)*.*instead: prev_comm"):

        @session.entry("tracepoint:sched:sched_switch")
        def switched(ctx, prev_com):
            pass
