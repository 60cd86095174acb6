"""Whole trees of processes: a build by make, shells, scripts, daemons; each program that is executed is counted in."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from anyprobe.probes.following.followed import Followed
from anyprobe.probes.providers.function.gates import exec_gate
from anyprobe.probes.providers.function.handlers import callbacks
from anyprobe.target.system import procfs
from support.driver import wait_until
from support.results import hits

pytestmark = pytest.mark.live
START = "libc:__libc_start_main"
"""What each dynamic program calls once, and which then calls its ``main``."""
MAKEFILE = """
CFLAGS = -O1 -frandom-seed=1
OBJECTS = one.o two.o three.o
program: $(OBJECTS)
\t$(CC) -o $@ $(OBJECTS) && ./program | tee said
%.o: %.c
\t$(CC) $(CFLAGS) -c $< -o $@
"""
SOURCES = {
    "one.c": '#include <stdio.h>\nint two(int), three(int);\nint main(void) { printf("%d\\n", two(three(4))); }\n',
    "two.c": "int two(int n) { return 2 * n; }\n",
    "three.c": "int three(int n) { return n + 3; }\n",
}


def project(folder: Path) -> Path:
    folder.mkdir()
    for name, text in {"Makefile": MAKEFILE, **SOURCES}.items():
        (folder / name).write_text(text)
    return folder


def executed(log: str) -> int:
    """Return how many executions strace has seen succeed, those too whose end it shows on a line of its own."""
    return len(re.findall(r"execve(?:at)?(?:\(| resumed>).* = 0$", log, re.MULTILINE))


def test_a_build_followed_whole(tmp_path):
    """As many programs begin as strace sees executed in the same build, cc1, as, ld among them; the same comes out."""
    for tool in ("make", "gcc", "strace"):
        if shutil.which(tool) is None:
            pytest.skip(f"needs {tool}")
    plain, followed = project(tmp_path / "plain"), project(tmp_path / "followed")
    log = tmp_path / "log"
    make = ["make", "-j2", "CC=gcc"]
    subprocess.run(
        ["strace", "-f", "-o", log, "-e", "trace=execve,execveat", *make], cwd=plain, check=True, timeout=180
    )
    seen = executed(log.read_text())
    with Followed.run(make, cwd=str(followed)) as tree:
        tree.count(START)
        tree.resume()
        assert os.waitstatus_to_exitcode(tree.wait(300)) == 0
        snapshots = tree.snapshots()
        assert tree.notes() == []
    began = [os.path.basename(each.target.exe).rpartition("-")[2].removesuffix(".bfd") for each in snapshots]
    assert sum(hits(each, "__libc_start_main") for each in snapshots) == len(snapshots) == seen
    assert [began.count(name) for name in ("cc1", "as", "ld")] == [3, 3, 1]
    for name in (*(each.replace(".c", ".o") for each in SOURCES), "said"):
        assert (followed / name).read_bytes() == (plain / name).read_bytes()
    assert (followed / "said").read_text() == "14\n"


def test_the_command_line_has_each_program(tmp_path):
    """Shells, a script by its interpreter's name, and what replaces the command itself; statuses come through."""
    script = tmp_path / "script"
    script.write_text("#!/bin/sh\n/bin/true; exec /bin/false\n")
    script.chmod(0o755)
    command = f"{script}; test $? = 1 && exec sh -c 'exit 5'"
    arguments = ["count", START, "--json", "--exit-status", "-o", tmp_path / "results", "--", "sh", "-c", command]
    outcome = subprocess.run([sys.executable, "-m", "anyprobe", *arguments], timeout=180, check=False)
    assert outcome.returncode == 5
    document = json.loads((tmp_path / "results").read_text())
    names = [os.path.basename(os.path.realpath(each["target"]["exe"])) for each in document["targets"]]
    shell = os.path.basename(os.path.realpath("/bin/sh"))
    assert names == [shell, shell, "true", "false", shell]
    assert [each["sites"][0]["hits"] for each in document["targets"]] == [1] * 5
    assert document["sites"][0]["hits"] == 5
    pids = [each["target"]["pid"] for each in document["targets"]]
    assert pids[0] == pids[4]
    assert pids[1] == pids[3]


def test_a_running_shell_is_followed():
    """``-p --follow``: what it executes later is counted; the session goes on in what replaces it."""
    with subprocess.Popen(
        ["sh", "-c", "echo ready; read l; /bin/true; read l; exec /bin/cat"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as shell:
        assert shell.stdout.readline() == b"ready\n"
        with Followed.attach([shell.pid]) as tree:
            tree.count("libc:execve", START)
            shell.stdin.write(b"1\n2\nsaid\n")
            shell.stdin.flush()
            assert shell.stdout.readline() == b"said\n"
            assert [os.path.basename(each.target.exe) for each in tree.snapshots()][1:] == ["true", "cat"]
            assert hits(tree.snapshot(), "execve") == 2
            assert hits(tree.snapshot(), "__libc_start_main") == 2
            assert tree.notes() == []
        shell.stdin.close()
        assert shell.stdout.read() == b""
    assert shell.returncode == 0


def test_processes_that_are_killed_before_they_execute_take_no_room_for_ever(monkeypatch):
    """As many as there is room for, killed where they wait; later ones are followed as ever."""
    monkeypatch.setattr(exec_gate, "PATIENCE", 5.0)
    executes = Followed.executes
    killed = []

    def executes_or_kills(self, session, function, hit, takes, waits_at):
        if len(killed) < exec_gate.PLACES:
            killed.append(hit.tid)
            os.kill(hit.tid, signal.SIGKILL)
            wait_until(lambda: has_ended(hit.tid), "the process is killed")
        else:
            executes(self, session, function, hit, takes, waits_at)

    monkeypatch.setattr(Followed, "executes", executes_or_kills)
    loop = f"n=0; while [ $n -lt {exec_gate.PLACES} ]; do n=$((n+1)); /bin/true; done"
    reads, writes = os.pipe()
    with Followed.run(
        ["sh", "-c", f"{loop}; read line; /bin/true; /bin/true"], stdin=reads, stderr=subprocess.DEVNULL
    ) as tree:
        os.close(reads)
        tree.count(START)
        tree.resume()
        wait_until(lambda: len(killed) == exec_gate.PLACES, "not all are killed")
        time.sleep(exec_gate.PATIENCE + callbacks.AFTER_ALL + 1.0)
        os.write(writes, b"go\n")
        os.close(writes)
        assert os.waitstatus_to_exitcode(tree.wait(180)) == 0
        assert hits(tree.snapshot(), "__libc_start_main") == 1 + 2
        assert tree.notes() == []


def has_ended(pid):
    try:
        return procfs.read_stat(pid).ended
    except OSError:
        return True


def test_a_daemon_is_followed(tmp_path):
    """Forked twice, with a session of its own, and after the end of whoever has started it."""
    done = tmp_path / "done"
    inner = f"(setsid sh -c '/bin/true; echo well > {done}' </dev/null >/dev/null 2>&1 &)"
    with Followed.run(["sh", "-c", inner]) as tree:
        tree.count(START)
        tree.resume()
        assert os.waitstatus_to_exitcode(tree.wait(180)) == 0
        wait_until(done.exists, "the daemon does nothing")
        wait_until(lambda: done.read_text() == "well\n", "the daemon does not end")
        names = [os.path.basename(os.path.realpath(each.target.exe)) for each in tree.snapshots()]
        assert names.count("true") == names.count("setsid") == 1
        assert hits(tree.snapshot(), "__libc_start_main") == len(names)


def warnings_in(results):
    """Return the warnings of results, of one program or of several."""
    document = json.loads(results.read_text())
    return [warning for each in document.get("targets", [document]) for warning in each.get("warnings", [])]


def test_what_a_command_leaves_behind_is_said(tmp_path):
    """The results are of the time until the command's end; what it has started runs on unprobed."""
    script = "sleep 60 > /dev/null 2>&1 & echo $! > left"
    arguments = ["count", START, "--json", "-o", tmp_path / "results", "--", "sh", "-c", script]
    subprocess.run([sys.executable, "-m", "anyprobe", *arguments], cwd=tmp_path, timeout=180, check=True)
    left = int((tmp_path / "left").read_text())
    try:
        (warning,) = warnings_in(tmp_path / "results")
        assert warning.startswith(f"a process that the command has left behind runs on without probes (pid {left})")
        assert "memfd:anyprobe" not in Path(f"/proc/{left}/maps").read_text()
    finally:
        os.kill(left, signal.SIGKILL)


@pytest.mark.parametrize(("seconds", "whole"), [(50, True), (2, False)], ids=["to its end", "for its time"])
def test_a_time_outlives_the_first_process(tmp_path, seconds, whole):
    """What the command has left behind counts on, until the time is over or there is nothing of it any more."""
    script = f"(sleep {1 if whole else 20}; /bin/true) > /dev/null 2>&1 & echo $! > left"
    arguments = ["count", START, "--for", str(seconds), "--json", "-o", tmp_path / "results", "--", "sh", "-c", script]
    begin = time.monotonic()
    subprocess.run([sys.executable, "-m", "anyprobe", *arguments], cwd=tmp_path, timeout=90, check=True)
    taken = time.monotonic() - begin
    document = json.loads((tmp_path / "results").read_text())
    names = [os.path.basename(each["target"]["exe"]) for each in document["targets"]]
    warnings = warnings_in(tmp_path / "results")
    if whole:
        assert taken < seconds
        assert (names.count("sleep"), names.count("true")) == (1, 1)
        assert warnings == []
    else:
        assert taken >= seconds
        assert "true" not in names
        left = int((tmp_path / "left").read_text())
        (warning,) = warnings
        assert "left behind" in warning
        os.kill(left, signal.SIGKILL)


@pytest.mark.parametrize("children", ["ignore", "free"])
def test_what_children_execute_that_are_none_of_the_users(children):
    """It is not followed, as was asked for, and nothing is said of it."""
    with Followed.run(["sh", "-c", "/bin/true; /bin/true; exec /bin/true"], children=children) as tree:
        tree.count(START)
        tree.resume()
        assert os.waitstatus_to_exitcode(tree.wait(180)) == 0
        assert hits(tree.snapshot(), "__libc_start_main") == 2
        assert tree.notes() == []


def test_what_must_not_be_traced_is_left_alone(tmp_path):
    """A set-uid program runs as it would; it is told by name, and how often."""
    program = tmp_path / "of-another"
    shutil.copy(os.path.realpath("/bin/true"), program)
    program.chmod(0o4755)
    with Followed.run(["sh", "-c", f"{program}; {program}; /bin/true"]) as tree:
        tree.count(START)
        tree.resume()
        assert os.waitstatus_to_exitcode(tree.wait(180)) == 0
        assert hits(tree.snapshot(), "__libc_start_main") == 2
        note, *balance = tree.notes()
    assert balance in ([], ["3 executions seen by the kernel: 1 probed, 2 refused, 0 missed"])
    assert note.startswith(f"{program} was executed 2 times without probes: it is set-uid")
