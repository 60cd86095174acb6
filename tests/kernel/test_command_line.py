"""The command line in the guest's kernel: exact counts of a known number of system calls.

Commands run in the tests' own process: Python takes long to start in a guest.
"""

import json
import os
import signal
import threading
import time

import jsonschema
import pytest

from anyprobe.cli import main
from anyprobe.cli.commands.schema import text_of
from anyprobe.target.kernel import preemption, tracefs

NUMBER, COUNT, THREADS = 110, 20_000, 2
CALLS = COUNT * THREADS
FUNCTION = "__x64_sys_getppid"
PATIENCE = 100.0


@pytest.fixture
def program(system_calls):
    return ["--", str(system_calls), str(NUMBER), str(COUNT), str(THREADS)]


@pytest.fixture
def document(tmp_path):
    """Run a command and return its document, which is as its schema says."""

    def run(kind, *arguments):
        file = tmp_path / "document"
        before, dashes, program = " ".join(arguments).partition(" -- ")
        assert main([kind, *before.split(), "--json", "--quiet", "-o", str(file), *(dashes + program).split()]) == 0
        found = json.loads(file.read_text())
        jsonschema.Draft202012Validator(json.loads(text_of(kind))).validate(found)
        return found

    return run


def probes_listed():
    with open("/sys/kernel/debug/kprobes/list") as file:
        return file.read()


def interrupt_when(condition):
    """Send SIGINT to this process as soon as a condition holds, and a command has its own handler."""
    before = signal.getsignal(signal.SIGINT)

    def wait():
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if signal.getsignal(signal.SIGINT) is not before and condition():
                os.kill(os.getpid(), signal.SIGINT)
                return
            time.sleep(0.01)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def assert_exact(site):
    """Assert that all hits were counted; where fentry misses some, that is told."""
    assert site["hits"] + site["nmissed"] == CALLS
    assert site["nmissed"] == 0 or (preemption.is_preemptible() and site["strategy"] in {"fentry", "fexit"})


def test_counts_of_a_started_command_are_exact(document, program):
    specs = [f"kprobe:{FUNCTION}", f"fexit:{FUNCTION}", "syscall::getppid", "tracepoint:syscalls:sys_exit_getppid"]
    found = document("count", *specs, *program)
    assert found["target"] == {"kernel": os.uname().release}
    assert [each["spec"] for each in found["sites"]] == [
        f"kprobe:vmlinux:{FUNCTION}",
        f"fexit:vmlinux:{FUNCTION}",
        "syscall::getppid:entry",
        "tracepoint:syscalls:sys_exit_getppid",
    ]
    for site in found["sites"]:
        assert_exact(site)


def test_table_says_by_which_mechanism(capsys, program):
    assert main(["count", f"kernel::{FUNCTION}:return", "--mechanism", "kprobe", *program]) == 0
    shown = capsys.readouterr().err
    assert shown.startswith("Linux ")
    row = next(line.split() for line in shown.splitlines() if f"{FUNCTION}%return" in line)
    assert (row[0], row[-2:]) == (f"{CALLS:,}", ["vmlinux", "kretprobe"])


def test_without_a_command_it_ends_after_for_seconds(capsys):
    arguments = ["tracepoint:sched:sched_sw*", "--for", "0.5", "--every", "0.2", "--json", "--zero"]
    assert main(["count", *arguments]) == 0
    first, *_, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["interval"]["hits"] > 0
    assert last["duration_s"] >= 0.5
    assert {each["function"]: each["hits"] for each in last["sites"]}["sched_switch"] > 0


def test_ctrl_c_ends_it_with_results(capsys):
    thread = interrupt_when(lambda: True)
    assert main(["count", "rawtracepoint:sched_switch"]) in {0, 1}  # 1: before it was armed
    thread.join()
    assert "1 site" in capsys.readouterr().out


def test_ctrl_c_while_it_is_arming_leaves_nothing(capsys):
    thread = interrupt_when(lambda: "vfs_" in probes_listed())
    assert main(["count", "kernel::vfs_*", "--mechanism", "kprobe"]) in {0, 1}  # 0: all were armed already
    thread.join()
    assert "vfs_" not in probes_listed()


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["kernel::vfs_reed"], 2, "nearest: vfs_read"),
        (["tracepoint:skhed:sched_switch"], 2, "nearest: sched"),
        (["kernel::do_exit:return"], 1, "no-exit"),
        (["rawtracepoint:sched_switch", "--mechanism", "kprobe"], 2, "possible: raw_tp"),
    ],
)
def test_what_cannot_be_counted(capsys, arguments, status, message):
    assert main(["count", *arguments]) == status
    shown = capsys.readouterr()
    assert message in shown.out + shown.err
    assert len(shown.err.splitlines()) <= 4


def test_function_on_the_blacklist(capsys):
    name = next(each[2] for each in tracefs.blacklist() if each[2] == "do_int3" or each[2].startswith("exc_"))
    assert main(["count", f"kprobe:{name}"]) == 1
    assert f"refused: kprobe:vmlinux:{name}" in (shown := capsys.readouterr().out)
    assert "kprobe-blacklist" in shown


def test_an_ordinary_user_is_told_in_one_line(capsys):
    before = os.geteuid()
    os.seteuid(65534)  # all capabilities are not effective then
    try:
        status = main(["count", "kernel::vfs_read"])
    finally:
        os.seteuid(before)
    assert status == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert "CAP_BPF" in line
