"""Probes in the machine's own kernel, by whatever it permits: tracepoints nearly always, functions not on all."""

import gc
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import anyprobe
from anyprobe import Count, Sum, emit, i64, ptr
from anyprobe.cli import main
from anyprobe.core.errors import TargetError
from anyprobe.handlers.bpf.storages import KernelMaps
from anyprobe.probes.providers.kernel import chosen
from anyprobe.probes.providers.kernel.naming import KernelNaming
from anyprobe.target.kernel import perf, programs, tracefs
from support.bpf_running import refused_because
from support.driver import wait_until
from support.in_kernel import in_child, numbers_of

CALL, NUMBER = "sched_rr_get_interval", 148
"""A system call that no other program here makes, not even at its start as a JVM does its neighbours."""
COUNT, THREADS = 20_000, 2
REFUSED = refused_because()


def no_tracefs():
    """Return why there is no tracefs here, nothing if there is."""
    try:
        tracefs.root()
    except TargetError as error:
        return str(error)
    return ""


needs_tracefs = pytest.mark.skipif(bool(no_tracefs()), reason=no_tracefs())
pytestmark = [pytest.mark.root, pytest.mark.skipif(REFUSED is not None, reason=str(REFUSED))]


@pytest.fixture
def calls(compiled):
    program = compiled("system_calls.c", "-pthread")
    return lambda: subprocess.run([program, str(NUMBER), str(COUNT), str(THREADS)], check=True, timeout=180)


@needs_tracefs
@pytest.mark.parametrize(
    ("spec", "mechanism"),
    [
        (f"tracepoint:syscalls:sys_enter_{CALL}", None),
        (f"tracepoint:syscalls:sys_exit_{CALL}", "tracepoint"),
        (f"syscall::{CALL}:entry", None),
        (f"syscall::{CALL}:return", None),
        (f"syscall::{CALL}:entry", "tracepoint"),
    ],
)
def test_counts_are_exact(calls, spec, mechanism):
    with anyprobe.kernel() as session:
        session.count(spec, mechanism=mechanism)
        calls()
        (site,) = session.snapshot().sites
    assert site.hits == COUNT * THREADS
    assert site.nmissed == 0
    assert site.armed
    assert mechanism in {None, site.strategy}


def test_raw_tracepoint_sees_at_least_what_was_called(calls):
    with anyprobe.kernel() as session:
        session.count("rawtracepoint:sys_enter")
        calls()
        (site,) = session.snapshot().sites
    assert site.strategy == "raw_tp"
    assert site.hits >= COUNT * THREADS


@needs_tracefs
def test_others_at_a_tracepoint_see_all_hits_too(calls):
    first, second = anyprobe.kernel(), anyprobe.kernel()
    with first, second:
        for session in (first, second):
            session.count(f"tracepoint:syscalls:sys_enter_{CALL}")
        calls()
        assert [site.hits for each in (first, second) for site in each.snapshot().sites] == [COUNT * THREADS] * 2


@needs_tracefs
def test_removed_probes_count_no_more_and_count_on_when_enabled(calls):
    with anyprobe.kernel() as session:
        (probe,) = session.count(f"syscall::{CALL}:entry")
        calls()
        session.remove(probe)
        calls()
        (site,) = session.snapshot().sites
        assert (site.hits, site.armed) == (COUNT * THREADS, False)
        session.enable(probe)
        calls()
        (site,) = session.snapshot().sites
        assert (site.hits, site.armed) == (2 * COUNT * THREADS, True)
    (site,) = session.snapshot().sites
    assert (site.hits, site.armed) == (2 * COUNT * THREADS, False)
    with pytest.raises(anyprobe.UsageError, match="over"):
        session.count("rawtracepoint:sys_enter")


@needs_tracefs
def test_category_of_tracepoints():
    with anyprobe.kernel() as session:
        session.count("tracepoint:sched:sched_process_*")
        subprocess.run(["true"], check=True)
        found = {site.function: site for site in session.snapshot().sites}
        assert not session.refused
    assert {"sched_process_fork", "sched_process_exec", "sched_process_exit"} <= set(found)
    assert all(found[f"sched_process_{name}"].hits >= 1 for name in ("fork", "exec", "exit"))
    assert found["sched_process_exec"].spec == "tracepoint:sched:sched_process_exec"


@needs_tracefs
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tracepoint:sched:sched_swich", "sched_switch"),
        ("tracepoint:shed:sched_switch", "sched"),
        ("syscall::openatt:entry", "openat"),
        ("kernel::vfs_reed:entry", "vfs_read"),
        ("kernel:nosuchmodule:vfs_read:entry", "is in vmlinux"),
        ("kernel::vfs_read:0xfffff", "bytes"),
    ],
)
def test_what_is_not_there_is_said_with_what_is_near(spec, message):
    with anyprobe.kernel() as session:
        with pytest.raises(anyprobe.SpecError, match=message):
            session.count("rawtracepoint:sys_enter", spec)
        assert not session.probes, "all specs are understood before anything is attached"


@needs_tracefs
def test_mechanism_that_is_not_for_this_is_said():
    with anyprobe.kernel() as session:
        with pytest.raises(anyprobe.SpecError, match="possible: raw_tp, tp_btf, tracepoint"):
            session.count("tracepoint:sched:sched_switch", mechanism="kprobe")
        with pytest.raises(anyprobe.UsageError, match="no mechanism"):
            session.count("rawtracepoint:sys_enter", mechanism="magic")


def test_what_the_kernel_refuses_is_said():
    with anyprobe.kernel() as session:
        session.count("rawtracepoint:sched_swich")
        ((spec, why),) = session.refused
        assert not session.snapshot().sites
    assert spec == "rawtracepoint:sched_swich"
    assert why.detail.startswith("no tracepoint of the kernel has this name; nearest: sched_switch")
    assert why.reason is anyprobe.Reason.KERNEL_REFUSES
    assert "ENOENT" in why.detail


def test_ordinary_user_is_told_what_is_missing():
    program = "import os, anyprobe\nopen_it = anyprobe.kernel\nimport gzip\nos.setuid(65534)\nopen_it()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=180)
    assert done.returncode == 1
    assert "PermissionDenied" in done.stderr
    assert "CAP_BPF" in done.stderr


@needs_tracefs
def test_nothing_stays_of_a_killed_session():
    program = "import anyprobe, time\ns = anyprobe.kernel()\ns.count('tracepoint:sched:*')\nprint(1, flush=True)\n"
    child = subprocess.Popen([sys.executable, "-c", program + "time.sleep(100)"], stdout=subprocess.PIPE)
    assert child.stdout.readline() == b"1\n"
    own = programs_of(child.pid)
    assert own
    assert own <= set(numbers_of("program"))
    child.kill()
    child.communicate()
    wait_until(lambda: not own & set(numbers_of("program")), "the kernel has given them back")


def programs_of(pid):
    """Return the numbers of the programs in the kernel that a process holds; others come and go meanwhile."""
    told = "".join(each.read_text() for each in Path(f"/proc/{pid}/fdinfo").iterdir())
    return {int(number) for number in re.findall(r"^prog_id:\s+(\d+)$", told, re.MULTILINE)}


def test_a_timer_and_a_software_event_run_programs():
    from anyprobe.probes.providers.kernel.counters import Counters

    counters = Counters(2)
    held = []
    try:
        for slot in (0, 1):
            program = programs.load(counters.program(slot), programs.Kind(programs.PROGRAM_OF_A_SAMPLE))
            held.append(program)
            for processor in range(os.cpu_count()):
                event = (
                    perf.open_timer(processor, hertz=99) if slot == 0 else perf.open_software("page-faults", processor)
                )
                held += [event, programs.attach_to_event(program, event)]

        def both_ran():
            subprocess.run(["true"], check=True)
            return all(counters.read())

        wait_until(both_ran, "both have run")
    finally:
        for each in reversed(held):
            os.close(each)
        counters.close()


def test_handler_at_a_raw_tracepoint(calls):
    found = Count("found", by=("pid",))
    numbers = Sum("numbers")
    with anyprobe.kernel() as session:

        @session.entry("rawtracepoint:sys_enter")
        def handler(ctx, registers: ptr, number: i64):
            if number == 148:
                found.add(key=(ctx.pid,))
                numbers.add(number)

        calls()
        (site,) = session.snapshot().sites
    snapshot = session.snapshot()
    ((_, counted),) = snapshot.aggregation("found").entries.items()
    assert counted.count == COUNT * THREADS
    assert snapshot.aggregation("numbers").entries[()].sum == COUNT * THREADS * NUMBER
    assert site.hits >= COUNT * THREADS
    assert not snapshot.missing


def collects_in_two_ways():
    """Place a handler with a record and an aggregation, and read both."""
    calls = Count("calls", by=("tid",))
    with anyprobe.kernel() as session:

        @session.entry("rawtracepoint:sys_enter")
        def called(ctx):
            calls.add(key=(ctx.tid,))
            emit("record", pid=ctx.pid)

        os.getppid()
        session.snapshot()
        list(session.records())


@pytest.mark.parametrize("may_be_raised", [True, False])
def test_descriptors_that_run_out_anywhere_are_raised_or_said(may_be_raised):
    collects_in_two_ways()
    gc.collect()  # which would close what other tests have left, in a child that has no descriptor to spare
    taken = {int(each) for each in os.listdir("/proc/self/fd")}
    answers = []
    for most in [each for each in range(max(taken) + 21) if each not in taken][:20]:  # leaves none, one, two, …

        def work(most=most):
            hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1] if may_be_raised else most
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            collects_in_two_ways()

        answers.append(in_child(work))
    assert [each["untyped"] for each in answers if "untyped" in each] == []
    errors = [each.get("error", "") for each in answers]
    assert all("may have" in each for each in errors if each)
    if may_be_raised:
        assert not any(errors)
    else:
        assert errors[0]
        assert not errors[-1]


def test_what_a_command_starts_counts_beside_its_own_probes_and_nothing_else(compiled, tmp_path):
    program = compiled("system_calls.c", "-pthread")
    one = f"{program} {NUMBER} {COUNT} {THREADS}"
    told = str(tmp_path / "told")
    with subprocess.Popen(["sh", "-c", f"while {one}; do :; done"], start_new_session=True) as other:
        try:
            command = ["sh", "-c", f"{one}; {one} & wait"]
            specs = ["system_calls:main", "rawtracepoint:sys_enter"]
            more = ["--as", "count", "--by", "pid", "--when", f"arg1 == {NUMBER}", "--json", "--output", told]
            assert main(["hist", *specs[1:], *more, "--", "true"]) == 0  # alone it is about all processes
            alone = json.loads(Path(told).read_text())
            more = ["--as", "count", "--by", "pid", "--json", "--output", told]
            assert main(["hist", *specs, *more, "--", *command]) == 0
        finally:
            os.killpg(other.pid, signal.SIGKILL)
    assert "pids" not in alone["target"]
    kernel = json.loads(Path(told).read_text())["targets"][-1]
    assert kernel["target"]["children"] is True
    counts = [each["count"] for each in kernel["aggregations"]["hits"]]
    assert len(counts) == 3  # the shell and the two that it has started
    assert sum(each >= COUNT * THREADS for each in counts) == 2


def test_processes_for_which_there_is_no_room_are_told_of(monkeypatch):
    monkeypatch.setattr(chosen, "_ROOM", 8)
    command = "read line; for each in $(seq 40); do sleep 100 & done; wait"
    with subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, start_new_session=True) as shell:
        try:
            with anyprobe.kernel(pids=[shell.pid], children=True) as session:
                session.count("rawtracepoint:sys_enter")
                shell.stdin.close()
                deadline = time.monotonic() + 60
                while not (found := session.snapshot().warnings):
                    assert time.monotonic() < deadline
        finally:
            os.killpg(shell.pid, signal.SIGKILL)
    assert "processes and what they start are left out: too many were there at once" in found[0]


def test_handlers_that_the_kernel_cannot_have_are_refused_before_anything_is_attached():
    seen = Count("seen", by=("caller",))
    with anyprobe.kernel() as session:
        with pytest.raises(anyprobe.HandlerError, match="sys_enter has no parameter count"):

            @session.entry("rawtracepoint:sys_enter")
            def without_types(ctx, count):
                pass

        with pytest.raises(anyprobe.HandlerError, match="here in the kernel"):

            @session.entry("rawtracepoint:sys_enter")
            def with_its_caller(ctx, registers: ptr, number: i64):
                seen[ctx.caller].add()

        with pytest.raises(anyprobe.HandlerError, match="no function returns early"):

            @session.entry("rawtracepoint:sys_enter")
            def in_its_stead(ctx):
                ctx.skip(-1)

        with pytest.raises(anyprobe.HandlerError, match="change nothing"):

            @session.entry("rawtracepoint:sys_enter")
            def another_result(ctx):
                ctx.retval = -1

        assert not session.probes


def test_functions_of_programs_in_all_processes(compiled):
    program = str(compiled("probed_everywhere.c"))
    with anyprobe.kernel() as session:
        session.count(f"uprobe:{program}:work", f"uretprobe:{program}:work", f"usdt:{program}:everywhere:passed")
        heard = subprocess.run([program, str(COUNT)], check=True, timeout=180, capture_output=True, text=True).stdout
        assert [site.hits + site.nmissed for site in session.snapshot().sites] == [COUNT, COUNT, COUNT]
    assert heard.split()[1] == str(COUNT)


def test_timers_and_page_faults():
    with anyprobe.kernel() as session:
        session.count("software:page-faults:1", "interval:ms:10")
        for _ in range(1000):
            subprocess.run(["true"], check=True)
            faults, ticks = session.snapshot().sites
            if ticks.hits > 3 and faults.hits + faults.nmissed > 100:
                break
        assert faults.hits + faults.nmissed > 100
        assert ticks.hits > 3
        assert ticks.notes


def test_stacks_of_programs_that_have_ended(monkeypatch):
    """They are named once all are read: naming has page faults of its own, which are counted meanwhile."""
    faults = Count("faults", by=("program", "stack"))
    elements, shown, reading = KernelMaps._elements, KernelNaming.shown, []

    def read(*arguments):
        reading.append(arguments)
        yield from elements(*arguments)
        reading.clear()

    def named(*arguments):
        assert not reading
        return shown(*arguments)

    monkeypatch.setattr(KernelMaps, "_elements", read)
    monkeypatch.setattr(KernelNaming, "shown", named)
    with anyprobe.kernel() as session:

        @session.entry("software:page-faults:1")
        def faulted(ctx):
            if ctx.comm == "true":  # a busy machine's other programs take all places
                faults.add(key=(ctx.comm, ctx.ustack(3)))

        for _ in range(20):
            subprocess.run(["true"], check=True)
        found = session.snapshot().aggregation("faults").entries
    assert any(program == "true" for program, _ in found)
    assert all(stack for _, stack in found)


@pytest.fixture
def document(compiled, tmp_path):
    """Run a command on the kernel and on the program that makes system calls; return its document."""
    program = compiled("system_calls.c", "-pthread")

    def run(*arguments):
        file = tmp_path / "document"
        command = ["--", str(program), str(NUMBER), str(COUNT), str(THREADS)]
        assert main([*arguments, "--json", "--quiet", "-o", str(file), *command]) == 0
        return json.loads(file.read_text())

    return run


def test_command_line_counts_under_a_condition(document):
    found = document("count", "rawtracepoint:sys_enter", "--when", f"arg1 == {NUMBER}")
    assert found["target"] == {"kernel": os.uname().release, "without": [os.getpid()]}
    assert [(each["hits"], each["strategy"]) for each in found["sites"]] == [(COUNT * THREADS, "raw_tp")]


def test_command_line_shows_a_distribution_by_key(document):
    found = document("hist", "rawtracepoint:sys_enter", "--of", "arg1", "--by", "comm", "--when", f"arg1 == {NUMBER}")
    (cell,) = found["aggregations"]["arg1"]
    assert cell["key"] == ["system_calls"]
    assert (cell["count"], cell["min"], cell["max"]) == (COUNT * THREADS, NUMBER, NUMBER)


def test_what_was_armed_until_the_end_is_shown_so():
    with anyprobe.kernel() as session:
        session.count("rawtracepoint:sys_enter")
        (removed,) = session.count("rawtracepoint:sys_exit")
        os.getppid()
        session.remove(removed)
        found = session.finish()
        assert session.snapshot() is found
    assert {each.spec: each.armed for each in found.sites} == {
        "rawtracepoint:sys_enter": True,
        "rawtracepoint:sys_exit": False,
    }
    assert all(each.hits for each in found.sites)
    assert not any(probe.armed for probe in session.probes)


@needs_tracefs
def test_a_histogram_is_under_way_before_what_reads_and_shows_it_is_imported(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # others may fill the usual one, so that something has to go
    program = (
        "import sys, anyprobe.cli; from anyprobe.cli.measurement import measuring; release = measuring.release\n"
        "def released(*of):\n"
        "    print(*(each for each in sys.argv[1].split() if each in sys.modules))\n"
        "    release(*of)\n"
        "measuring.release = released\n"
        "sys.exit(anyprobe.cli.main(sys.argv[2:]))"
    )
    needless = "numpy rich llvmlite iced_x86 hashlib difflib json pickle anyprobe.binary.images.image anyprobe.kprobes"
    command = ["hist", "tracepoint:raw_syscalls:sys_enter", "--of", "id", "--by", "pid", "--quiet", "--", "true"]
    for _ in range(2):  # the kernel's types are read the first time
        words = [sys.executable, "-c", program, needless, *command]
        done = subprocess.run(words, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, done.stderr
    assert done.stdout == "\n"


def test_command_line_traces(capsys, compiled):
    program = ["--", str(compiled("system_calls.c", "-pthread")), str(NUMBER), "5", "1"]
    assert main(["trace", "rawtracepoint:sys_enter", "--when", f"arg1 == {NUMBER}", "--json", *program]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines() if line.startswith("{")]
    assert [(each["spec"], each["args"][1]) for each in lines] == [("rawtracepoint:sys_enter", NUMBER)] * 5
    assert [each["ts_ns"] for each in lines] == sorted(each["ts_ns"] for each in lines)


def test_command_line_runs_a_script(document, tmp_path):
    file = tmp_path / "script.py"
    file.write_text(
        "from anyprobe import Count, session, u64\n"
        "made = Count('made', by=('thread',))\n"
        f"@session.entry('rawtracepoint:sys_enter', when=lambda ctx, regs, number: number == {NUMBER})\n"
        "def entered(ctx, regs: u64, number: u64):\n"
        "    made.add(key=(ctx.tid,))\n"
    )
    found = document("script", str(file), "--kernel")
    assert sorted(each["count"] for each in found["aggregations"]["made"]) == [COUNT] * THREADS


def test_session_is_the_current_one_within_its_block():
    with anyprobe.kernel() as session:
        anyprobe.session.count("rawtracepoint:sys_enter")
        assert [probe.spec for probe in session.probes] == ["rawtracepoint:sys_enter"]
    with pytest.raises(anyprobe.UsageError, match="no session here"):
        anyprobe.session.snapshot()


def test_timers_and_events_are_listed():
    with anyprobe.kernel() as session:
        (timer,) = session.list("interval:s:1")
        (faults,) = session.list("software:faults:")
    assert timer.mechanisms == faults.mechanisms == ("perf_event",)
