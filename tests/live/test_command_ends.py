"""How a command after ``--`` ends with the session, and what is said of programs that execute others."""

import json
import os
import re
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from anyprobe.cli import main
from anyprobe.cli.measurement.plan import Meanwhile
from anyprobe.cli.programs import ending
from anyprobe.core.errors import TargetError
from anyprobe.probes.providers.function.outside import listing
from anyprobe.target.system import procfs
from support.driver import wait_until

pytestmark = pytest.mark.live

SLEEP = ("sleep", "1000")
STUBBORN = """
import signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(1000)
"""
THEN_ANOTHER = "import os, sys\nprint('ready', flush=True)\nsys.stdin.readline()\nos.execvp('sleep', ['sleep', '1000'])"


@pytest.fixture
def run(capfd):
    """Run a command line; return its exit status and what it said on standard error."""

    def run(*arguments):
        capfd.readouterr()
        status = main(arguments)
        return status, capfd.readouterr().err

    return run


def pid_in(said):
    return int(re.search(r"process (\d+) ", said)[1])


def exists(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def end(pid):
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_command_is_told_to_end_after_the_time(run):
    status, said = run("count", "libc:malloc", "--for", "0.1", "--", *SLEEP)
    assert status == 0
    pid = pid_in(said)
    assert f"anyprobe: process {pid} was told to end (SIGTERM), and has ended (--leave lets it run on)\n" in said
    assert f"sleep (pid {pid}, which has ended)" in said
    assert not exists(pid)


def test_a_command_that_does_not_listen_is_killed(run, monkeypatch):
    settle = ending.settle

    def settle_who_does_not_listen(session, *arguments, **how):
        wait_until(lambda: is_ignored(session.pid, signal.SIGTERM), "it does not listen")
        return settle(session, *arguments, **how)

    monkeypatch.setattr(ending, "GRACE", 0.2)
    monkeypatch.setattr(ending, "settle", settle_who_does_not_listen)
    _, said = run("count", "libc:getppid", "--for", "0.1", "--", sys.executable, "-c", STUBBORN)
    assert re.search(r"process \d+ was told to end \(SIGTERM\), did not within 0.2 s, and was killed \(SIGKILL\)", said)
    assert not exists(pid_in(said))


def is_ignored(pid, number):
    return bool(int(procfs.read_status(pid)["SigIgn"], 16) >> number - 1 & 1)


def test_a_command_is_left_on_demand(run):
    status, said = run("count", "libc:malloc", "--for", "0.1", "--leave", "--", *SLEEP)
    pid = pid_in(said)
    assert (status, f"process {pid} runs on, without probes (--kill ends it)" in said) == (0, True)
    assert exists(pid)
    end(pid)


def test_the_status_is_that_of_the_end(run):
    status, said = run("count", "libc:malloc", "--for", "0.1", "--exit-status", "--quiet", "--json", "--", *SLEEP)
    assert status == 128 + signal.SIGTERM
    assert json.loads(said)["target"]["exited"] == 128 + signal.SIGTERM


@pytest.mark.parametrize(("option", "lives"), [((), True), (("--kill",), False)])
def test_a_signal_leaves_the_command_or_ends_it(option, lives):
    command = [sys.executable, "-m", "anyprobe", "count", "libc:malloc", *option, "--", *SLEEP]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as controller:
        children = f"/proc/{controller.pid}/task/{controller.pid}/children"
        looks = []  # it may be stopped for a moment at the next one
        wait_until(lambda: looks.append(started_by(children)) or looks[-1], "it runs the command")
        pid = looks[-1]
        controller.send_signal(signal.SIGINT)
        assert controller.wait(180) == 130
        said = controller.stderr.read() if not lives else ""
        assert exists(pid) == lives
        assert lives or "was told to end (SIGTERM), and has ended" in said
        if lives:
            os.kill(pid, signal.SIGKILL)


def started_by(children):
    """Return the pid of a child that sleeps already, with its probes."""
    for pid in Path(children).read_text().split():
        if Path(f"/proc/{pid}/stat").read_text().startswith(f"{pid} (sleep) S ") and has_probes(int(pid)):
            return int(pid)
    return None


def has_probes(pid):
    """Return whether probes are in place; while they are being placed, nobody else can look."""
    with suppress(TargetError):
        found = listing.inspect(pid).registered
        return bool(found) and not any("DISABLED" in each.flags for each in found)
    return False


def test_what_the_end_is_about_is_a_command(run):
    status, said = run("count", "libc:malloc", "-p", str(os.getpid()), "--kill")
    assert (status, "--kill is about a command after --" in said) == (2, True)


def test_a_command_that_becomes_another_program(run, monkeypatch):
    wait = Meanwhile.wait

    def wait_for_the_other(meanwhile):
        (session,) = meanwhile.sessions.processes
        wait_until(lambda: procfs.read_status(session.pid)["Name"] == "sleep", "it is another program")
        wait(meanwhile)

    monkeypatch.setattr(Meanwhile, "wait", wait_for_the_other)
    status, said = run(
        "count",
        "libc:malloc",
        "--no-follow",
        "--for",
        "0.5",
        "--exit-status",
        "--top=7",
        "--",
        "sh",
        "-c",
        "exec sleep 1000",
    )
    pid = pid_in(said)
    follow = f"follow with: anyprobe count libc:malloc --for 0.5 --top=7 -p {pid}\n"
    assert re.search(rf"process {pid} became \S*/sleep, without probes: {re.escape(follow)}", said)
    assert status == 128 + signal.SIGTERM


def test_a_command_that_has_become_another_program_before_it_ended(run):
    _, said = run("count", "libc:malloc", "--no-follow", "--", "sh", "-c", "exec true")
    assert "the command became true before it ended, without probes: start true itself" in said


def test_a_name_of_its_own_makes_no_other_program(run):
    program = "open('/proc/self/comm', 'w').write('renamed')"
    _, said = run("count", "libc:malloc", "--", sys.executable, "-c", program)
    assert "became" not in said


def test_a_running_program_that_becomes_another_ends_the_session(run):
    command = [sys.executable, "-c", THEN_ANOTHER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        with subprocess.Popen(
            [sys.executable, "-m", "anyprobe", "count", "libc:getppid", f"-p{process.pid}", "--json", "--every=0.1"],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as controller:  # fmt: skip
            assert json.loads(controller.stdout.readline())["target"]["pid"] == process.pid
            process.stdin.write("\n")
            process.stdin.flush()
            out, said = controller.communicate(timeout=180)  # without --for: it ends with the program
        process.kill()
    assert f"follow with: anyprobe count libc:getppid --json --every=0.1 -p {process.pid}\n" in said
    assert any("became" in each for each in json.loads(out.splitlines()[-1])["warnings"])
    assert controller.returncode == 0
