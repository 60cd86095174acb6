import itertools
import json
import os
import re
import signal
import threading
import time

import pytest

from anyprobe.cli import main
from anyprobe.core.errors import NoSuchProcess, PermissionDenied, SpecError, TargetExited
from anyprobe.data.snapshots.processes import TargetInfo
from support.sample_snapshots import refused, site, snapshot


def test_count_prints_the_documented_json(fakes, sleeper, capsys):
    assert main(["count", "libc:malloc", "-p", str(sleeper.pid), "--for", "0.05", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["sites"][1]["hits"] == 12345
    assert "targets" not in document
    assert fakes.sessions[0].calls == [("count", ("libc:malloc",)), "detach", "exit"]


def test_count_prints_a_table(fakes, sleeper, capsys):
    assert main(["count", "libc:malloc", "-p", str(sleeper.pid), "--for", "0"]) == 0
    shown = capsys.readouterr().out
    assert "12,345" in shown
    assert "\x1b" not in shown


def test_time_prints_a_histogram(fakes, sleeper, capsys):
    assert main(["time", "libc:malloc", "-p", str(sleeper.pid), "--for", "0"]) == 0
    assert "█" in capsys.readouterr().out


def test_the_session_ends_after_for_seconds(fakes, sleeper, capsys):
    began = time.monotonic()
    assert main(["count", "x:y", "-p", str(sleeper.pid), "--for", "0.2", "--quiet"]) == 0
    assert 0.2 <= time.monotonic() - began < 50


def test_signal_handlers_are_followed(fakes, sleeper, monkeypatch):
    monkeypatch.setattr("anyprobe.cli.measurement.plan.OVERHEAD_LOOKS", 0.05)
    assert main(["count", "x:y", "-p", str(sleeper.pid), "--for", "2.5", "--quiet"]) == 0
    assert fakes.sessions[0].host.loop.looks >= 3


def test_the_session_ends_with_the_target(fakes, sleeper, capsys):
    threading.Timer(0.1, sleeper.kill).start()
    assert main(["count", "x:y", "-p", str(sleeper.pid), "--for", "60"]) == 0


def send_when_handled(number, before):
    """Wait until the command has its own handler: before that, the signal would end the tests."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if signal.getsignal(number) is not before:
            os.kill(os.getpid(), number)
            return
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_session_with_results(fakes, sleeper, capsys, number):
    threading.Thread(target=send_when_handled, args=(number, signal.getsignal(number)), daemon=True).start()
    assert main(["count", "x:y", "-p", str(sleeper.pid)]) == {signal.SIGINT: 130, signal.SIGTERM: 0}[number]
    assert "12,345" in capsys.readouterr().out
    assert "detach" in fakes.sessions[0].calls


def test_handlers_are_put_back(fakes, sleeper, capsys):
    before = signal.getsignal(signal.SIGTERM)
    main(["count", "x:y", "-p", str(sleeper.pid), "--for", "0"])
    assert signal.getsignal(signal.SIGTERM) is before


def test_every_prints_one_document_per_line(fakes, sleeper, capsys):
    main(["count", "x:y", "-p", str(sleeper.pid), "--for", "2.5", "--every", "0.1", "--json"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 3
    assert all(json.loads(line)["sites"] for line in lines)


def growing():
    """Return snapshots that count ten hits more than the one before, and last a second longer."""
    for number in itertools.count(1):
        sites = (site("malloc", 10 * number), site("calloc", 0))
        yield snapshot(sites=sites, refused=(), duration_s=float(number))


@pytest.fixture
def counting(fakes, monkeypatch):
    snapshots = growing()
    monkeypatch.setattr(type(fakes), "snapshot", property(lambda _: next(snapshots), lambda *_: None), raising=False)


@pytest.mark.usefixtures("counting")
def test_every_prints_what_was_added_and_the_heading_once(sleeper, capsys):
    assert main(["count", "x:y", "-p", str(sleeper.pid), "--for", "2.5", "--every", "0.1"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("set up in") == shown.count("(pid ") == 1
    moments = re.findall(r"^\d\d:\d\d:\d\d  10 hits at 2 sites in 1.00 s$", shown, re.MULTILINE)
    assert len(moments) >= 2
    rows = re.findall(r"^ *10 +10 +(\d+) +malloc ", shown, re.MULTILINE)
    assert rows == [str(10 * number) for number in range(1, len(moments) + 1)]
    assert re.search(r"\n\nredis-server \(pid 4194305\): \d+ hits", shown)


@pytest.mark.usefixtures("counting")
def test_documents_of_every_have_the_interval_and_no_silent_sites(sleeper, capsys):
    assert main(["count", "x:y", "-p", str(sleeper.pid), "--for", "2.5", "--every", "0.1", "--json"]) == 0
    *between, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert len(between) >= 2
    for number, document in enumerate(between, 1):
        (one,) = document["sites"]
        assert (one["hits"], one["interval_hits"]) == (10 * number, 10)
        assert document["interval"]["hits"] == 10
        assert document["left_out"] == {"sites": 1, "functions": 0}
    assert "interval" not in last
    assert last["left_out"]["sites"] == 1


@pytest.mark.parametrize(
    ("options", "functions"),
    [([], 3), (["--nonzero"], 2), (["--every", "9"], 2), (["--every", "9", "--zero"], 3)],
)
def test_documents_leave_out_what_was_not_hit_on_demand(fakes, sleeper, capsys, options, functions):
    assert main(["count", "x:y", "-p", str(sleeper.pid), "--for", "0", "--json", *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert len(document["sites"]) == functions
    assert ("left_out" in document) == (functions == 2)


def test_several_processes_are_added_up_and_listed(fakes, sleeper, capsys):
    pids = ["-p", str(sleeper.pid), "-p", str(os.getppid())]
    assert main(["count", "x:y", *pids, "--for", "0", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["sites"][1]["hits"] == 2 * 12345
    assert len(document["targets"]) == 2


def test_a_started_command_owns_standard_output(fakes, dead_pid, capsys):
    fakes.snapshot = snapshot(target=TargetInfo(dead_pid, "/bin/true", exited=0, alive=False))
    assert main(["count", "x:y", "--json", "--", "true", "--for", "x"]) == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert json.loads(captured.err)["target"]["exited"] == 0
    assert fakes.argv == ("true", "--for", "x")
    assert fakes.sessions[0].calls[1] == "resume"


@pytest.mark.parametrize(("wait_status", "shown"), [(3 << 8, 3), (9, 137), (0, 0)])
def test_the_status_of_the_command_passes_through_on_demand(fakes, dead_pid, capsys, wait_status, shown):
    fakes.snapshot = snapshot(target=TargetInfo(dead_pid, "/bin/false", exited=wait_status, alive=False))
    assert main(["count", "x:y", "--exit-status", "--", "false"]) == shown
    assert main(["count", "x:y", "--", "false"]) == 0


def test_results_go_to_a_file(fakes, sleeper, capsys, tmp_path):
    path = tmp_path / "results"
    assert main(["count", "x:y", "-p", str(sleeper.pid), "--for", "0", "--json", "-o", str(path)]) == 0
    assert capsys.readouterr().out == ""
    assert json.loads(path.read_text())["sites"]


def test_a_file_that_cannot_be_written_is_the_users_mistake(fakes, sleeper, capsys):
    assert main(["count", "x:y", "-p", str(sleeper.pid), "--for", "0", "-o", "/nowhere/results"]) == 2
    assert not fakes.sessions


def test_settings_reach_the_session(fakes, sleeper, capsys):
    main(["time", "x:y", "-p", str(sleeper.pid), "--for", "0", "--strategy", "punned", "--maxactive", "9"])
    assert fakes.sessions[0].settings == {
        "strategy": "punned", "maxactive": 9, "clock": "auto", "returns": "auto", "pending": "modules",
    }  # fmt: skip


def test_live_reaches_the_session(fakes, sleeper, capsys):
    main(["count", "x:y", "-p", str(sleeper.pid), "--for", "0"])
    main(["count", "x:y", "-p", str(sleeper.pid), "--for", "0", "--live"])
    assert ["live" in session.settings for session in fakes.sessions] == [False, True]


def test_the_clock_reaches_the_session(fakes, sleeper, capsys):
    main(["time", "x:y", "-p", str(sleeper.pid), "--for", "0", "--clock", "monotonic"])
    assert fakes.sessions[0].settings["clock"] == "monotonic"
    assert main(["time", "x:y", "-p", str(sleeper.pid), "--for", "0", "--clock", "sundial"]) == 2


def test_nothing_placed_is_exit_status_1_and_nothing_to_wait_for(fakes, sleeper, capsys):
    fakes.snapshot, fakes.probes = snapshot(sites=(), refused=(refused(),)), []
    assert main(["count", "x:y", "-p", str(sleeper.pid)]) == 1
    assert "jump-target-in-jtpr" in capsys.readouterr().out


def test_no_instruction_there_is_exit_status_2(fakes, sleeper, capsys):
    fakes.snapshot, fakes.probes = snapshot(sites=(), refused=(refused(reason="not-an-instruction-boundary"),)), []
    assert main(["count", "x:y+0x1", "-p", str(sleeper.pid)]) == 2


def test_something_placed_is_exit_status_0_whatever_was_refused(fakes, sleeper, capsys):
    fakes.snapshot = snapshot(sites=(), refused=(refused(),))
    assert main(["count", "x:y", "-p", str(sleeper.pid), "--for", "0"]) == 0


def test_the_document_of_time_has_functions_where_all_was_refused(fakes, sleeper, capsys):
    fakes.snapshot, fakes.probes = snapshot(sites=(), refused=(refused(),)), []
    assert main(["time", "x:y", "-p", str(sleeper.pid), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["functions"] == []


def test_overlapping_specs_are_not_added_to_themselves(fakes, sleeper, capsys):
    once = site("malloc", 5)
    fakes.snapshot = snapshot(sites=(once, site("free", 1), once, site("malloc", 5, kind="offset")), refused=())
    pids = ["-p", str(sleeper.pid), "-p", str(os.getppid())]
    assert main(["count", "x:y", *pids, "--for", "0", "--json"]) == 0
    sites = json.loads(capsys.readouterr().out)["sites"]
    assert [(each["function"], each["hits"]) for each in sites] == [("malloc", 10), ("free", 2), ("malloc", 10)]


def test_a_spec_may_be_meant_for_one_of_several_processes(fakes, sleeper, capsys):
    pids = ["-p", str(sleeper.pid), "-p", str(os.getppid())]
    assert main(["count", "x:y", f"pid{sleeper.pid}:x:z:entry", *pids, "--for", "0"]) == 0
    assert fakes.sessions[0].calls[0] == ("count", ("x:y", f"pid{sleeper.pid}:x:z:entry"))
    assert fakes.sessions[1].calls[0] == ("count", ("x:y",))


def test_a_command_does_not_run_when_the_command_line_is_wrong(fakes, sleeper, capsys):
    fakes.snapshot = snapshot(target=TargetInfo(sleeper.pid, "/bin/sleep"))
    fakes.failure = SpecError("libc:mallok", 5, "no such function")
    assert main(["count", "libc:mallok", "--", "sleep", "9"]) == 2
    assert sleeper.wait(180) == -9


def test_the_status_of_a_command_is_what_a_shell_would_see(fakes, dead_pid, capsys):
    for status, shown in ((7 << 8, 7), (9, 137), (0, 0)):
        fakes.snapshot = snapshot(target=TargetInfo(dead_pid, "/bin/false", exited=status, alive=False))
        assert main(["count", "x:y", "--json", "--", "false"]) == 0
        assert json.loads(capsys.readouterr().err)["target"]["exited"] == shown


def test_a_target_that_dies_while_arming_is_an_ordinary_end(fakes, dead_pid, capsys):
    fakes.failure = TargetExited(dead_pid)
    assert main(["count", "x:y", "-p", str(dead_pid)]) == 0
    captured = capsys.readouterr()
    assert "has exited" in captured.err
    assert "12,345" in captured.out


@pytest.mark.parametrize(
    ("failure", "status", "message"),
    [
        (SpecError("libc:mallok", 5, "no such function", ("malloc",)), 2, "     ^\nnearest: malloc"),
        (PermissionDenied("yama", "ptrace_scope is 1", "use sudo"), 1, "ptrace_scope is 1 (yama); use sudo"),
        (NoSuchProcess("no process 99"), 1, "anyprobe: no process 99\n"),
        (ZeroDivisionError("oops"), 3, "bug in anyprobe"),
    ],
)
def test_errors_become_exit_statuses(fakes, sleeper, capsys, failure, status, message):
    fakes.failure = failure
    assert main(["count", "libc:mallok", "-p", str(sleeper.pid), "--for", "0"]) == status
    captured = capsys.readouterr()
    assert message in captured.err
    assert "Traceback" not in captured.err
    assert captured.out == ""
