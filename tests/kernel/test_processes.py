"""Hits in some processes alone: exact counts of theirs, nothing of others that do the same at the same time."""

import json
import os
import signal
import subprocess
from contextlib import ExitStack, contextmanager

import pytest

import anyprobe
from anyprobe import Count, NoSuchProcess
from anyprobe.cli import main

GETPPID, COUNT = 110, 3_000
FUNCTION = "__x64_sys_getppid"
MANY = "kernel::__x64_sys_get*"


@contextmanager
def waiting(system_calls, threads=2):
    """Yield a process that makes system calls when its standard input is closed."""
    command = f"echo ready; read line; exec {system_calls} {GETPPID} {COUNT} {threads}"
    with subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdout.readline()  # the shell has asked for its parent already
        yield process


@pytest.fixture
def both(system_calls):
    """Return two processes; ``run`` lets both do their system calls."""
    with ExitStack() as stack:
        yield [stack.enter_context(waiting(system_calls)) for _ in range(2)]


def run(processes):
    for each in processes:
        each.stdin.close()
    for each in processes:
        assert each.wait(600) == 0


@pytest.mark.parametrize("mechanism", ["kprobe", "fentry", "splice"])
def test_this_process_is_left_out_alone(both, mechanism, request):
    if mechanism == "splice":
        request.getfixturevalue("loaded")
    with anyprobe.kernel(mechanism=mechanism, include_self=False) as session:
        session.count(f"kernel::{FUNCTION}")
        for _ in range(COUNT):
            os.getppid()
        run(both)
        snapshot = session.snapshot()
    (site,) = snapshot.sites
    assert 4 * COUNT <= site.hits + site.nmissed < 5 * COUNT
    assert snapshot.target.without == (os.getpid(),)


@pytest.mark.parametrize(
    "spec",
    [
        f"kprobe:{FUNCTION}",
        "tracepoint:syscalls:sys_enter_getppid",
        *(
            pytest.param(each, marks=pytest.mark.thorough)
            for each in (f"kretprobe:{FUNCTION}", f"fentry:{FUNCTION}", f"fexit:{FUNCTION}", "syscall::getppid")
        ),
    ],
)
def test_counts_are_of_the_processes_alone(both, spec):
    with anyprobe.kernel(pids=[both[0].pid]) as session:
        session.count(spec)
        run(both)
        snapshot = session.snapshot()
    (site,) = snapshot.sites
    assert site.hits + site.nmissed == 2 * COUNT
    assert snapshot.target.pids == (both[0].pid,)


@pytest.mark.thorough
def test_several_processes_and_many_functions(both, system_calls):
    with waiting(system_calls) as other, anyprobe.kernel(pids=[each.pid for each in both]) as session:
        (probe,) = session.count(MANY)
        assert len(probe.sites) >= 8  # enough for one program for all of them, where the kernel has that
        run([*both, other])
        (counted,) = [each for each in session.snapshot().sites if each.function == FUNCTION]
    assert counted.hits + counted.nmissed == 4 * COUNT


def test_handlers_run_in_the_processes_alone(both):
    calls, switches = Count("calls", by=("pid",)), Count("switches", by=("pid",))
    with anyprobe.kernel(pids=[both[1].pid]) as session:

        @session.entry(f"kernel::{FUNCTION}")
        def called(ctx):
            calls.add(key=(ctx.pid,))

        @session.entry("tracepoint:sched:sched_switch")
        def switched(ctx, next_pid):
            switches.add(key=(ctx.pid,))

        run(both)
        found = session.snapshot()
    assert found.aggregation("calls").entries[both[1].pid,].count == 2 * COUNT
    assert set(found.aggregation("switches").entries) == {(both[1].pid,)}


FORKS = "echo ready; read line; {0} & ({0}; true); sh -c '{0}; {0}' & wait"


@pytest.mark.parametrize("spec", [f"kprobe:{FUNCTION}", pytest.param(f"fentry:{FUNCTION}", marks=pytest.mark.thorough)])
@pytest.mark.parametrize("children", [True, False])
def test_what_a_process_starts_counts_if_that_is_asked_for(system_calls, spec, children):
    command = FORKS.format(f"{system_calls} {GETPPID} {COUNT} 2")
    with ExitStack() as stack:
        shells = [
            stack.enter_context(subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE, stdout=subprocess.PIPE))
            for _ in range(2)
        ]
        for each in shells:
            each.stdout.readline()
        calls = Count("calls", by=("pid",))
        with anyprobe.kernel(pids=[shells[0].pid], children=children) as session:
            session.count(spec)

            @session.entry(spec)
            def called(ctx):
                calls.add(key=(ctx.pid,))

            run(shells)
            snapshot = session.snapshot()
    first = snapshot.sites[0]
    entries = {key: each.count for key, each in snapshot.aggregation("calls").entries.items()}
    assert snapshot.target.children == children
    if not children:
        assert (first.hits, first.nmissed, entries) == (0, 0, {})
        return
    assert shells[0].pid not in {pid for (pid,) in entries}
    assert [each for each in entries.values() if each > 1] == [2 * COUNT] * 4  # the inner shell has asked once itself
    assert first.hits + first.nmissed == sum(entries.values())


def test_a_process_that_there_is_not():
    with pytest.raises(NoSuchProcess, match="there is no process 4194303"):
        anyprobe.kernel(pids=[4194303])


@pytest.fixture
def busy():
    """Yield two processes that go on making the system call."""
    code = "import os\nwhile True: os.getppid()"
    with ExitStack() as stack:
        made = [stack.enter_context(subprocess.Popen(["/usr/bin/python3", "-S", "-c", code])) for _ in range(2)]
        yield made
        for each in made:
            each.kill()


@pytest.mark.thorough
def test_commands_are_about_the_processes_of_the_command_line(busy, tmp_path, capsys):
    pid = busy[0].pid
    target = ["-p", str(pid), "--for", "100", "--json"]
    assert main(["trace", "syscall::getppid", "-c", "20", *target]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["pid"] for each in lines] == [pid] * 20
    target[3] = "0.5"
    assert main(["hist", "syscall::getppid", "--as", "count", "--by", "pid", *target]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["target"] == {"kernel": os.uname().release, "pids": [pid]}
    assert [each["key"] for each in document["aggregations"]["hits"]] == [[pid]]
    file = tmp_path / "script.py"
    file.write_text("""
from anyprobe import Count, session

calls = Count("calls", by=("pid",))


@session.entry("syscall::getppid")
def called(ctx):
    calls.add(key=(ctx.pid,))
""")
    assert main(["script", str(file), "--kernel", *target]) == 0
    assert [each["key"] for each in json.loads(capsys.readouterr().out)["aggregations"]["calls"]] == [[pid]]


def test_the_table_says_whose_hits_were_counted(busy, capsys):
    assert main(["count", "kernel::vfs_read", "-p", str(busy[0].pid), "--for", "0"]) == 0
    assert capsys.readouterr().out.startswith(f"Linux {os.uname().release} in pid {busy[0].pid}: ")


@pytest.mark.thorough
def test_beside_probes_in_a_command_the_kernels_are_about_the_command(system_calls, tmp_path):
    others = f"while :; do {system_calls} {GETPPID} 100 1; sleep 0.2; done"
    line = ["--json", "--output", str(tmp_path / "told"), "--", str(system_calls), str(GETPPID), str(COUNT), "2"]
    with subprocess.Popen(["sh", "-c", others], start_new_session=True) as other:
        try:
            assert main(["count", "system_calls:main", "syscall::getppid", *line]) == 0
        finally:
            os.killpg(other.pid, signal.SIGKILL)
    program, kernel = json.loads((tmp_path / "told").read_text())["targets"]
    assert kernel["target"]["children"] is True
    assert [each["hits"] + each["nmissed"] for each in kernel["sites"]] == [2 * COUNT]
    assert [each["hits"] for each in program["sites"]] == [1]


def test_alone_probes_in_the_kernel_are_about_all_processes(busy, tmp_path):
    line = ["--json", "--output", str(tmp_path / "told"), "--", "sleep", "0.5"]
    assert main(["count", "syscall::getppid", *line]) == 0
    document = json.loads((tmp_path / "told").read_text())
    assert "pids" not in document["target"]
    assert document["sites"][0]["hits"] > 0
