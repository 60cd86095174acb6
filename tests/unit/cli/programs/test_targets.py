import contextlib
import os
import time

import pytest

from anyprobe.cli import main, split_program
from anyprobe.cli.programs import targets
from anyprobe.core.errors import NoSuchProcess
from anyprobe.probes.following import selection


def wait_for_exec(pid):
    """Popen returns once the child has called exec, so the name is there; wait for it all the same."""
    deadline = time.monotonic() + 10
    while "sleep" not in selection.names_of(pid) and time.monotonic() < deadline:
        time.sleep(0.01)


def test_what_follows_two_dashes_is_the_command():
    assert split_program(["count", "x", "--", "ls", "--", "-l"]) == (["count", "x"], ("ls", "--", "-l"))
    assert split_program(["count", "x"]) == (["count", "x"], ())


def test_a_process_is_found_by_its_name(sleeper):
    wait_for_exec(sleeper.pid)
    assert sleeper.pid in targets.pids_by_name("sleep")


def test_nobody_is_found_by_our_own_name():
    own = (selection.names_of(os.getpid())).pop()
    with contextlib.suppress(NoSuchProcess):
        assert os.getpid() not in targets.pids_by_name(own)


def test_a_spec_may_name_the_process():
    assert targets.choose((), (), (), ("pid4194305:libc:malloc:entry",)).pids == (4194305,)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["count", "x:y"], "choose a target"),
        (["count", "x:y", "-p", "1", "--", "ls"], "not both"),
        (["count", "-p", "1"], "SPEC"),
        (["count", "x:y", "-p", "zero"], "zero"),
        (["explain", "x:y", "-p", "1", "-p", "2"], "one process, please"),
        (["count", "pid77:x:y:entry", "-p", "78"], "names a process that is not among the targets"),
        (["count", "pid77:x:y:entry", "--", "ls"], "names a process that is not among the targets"),
        (["detach"], "choose a target: -p PID or -n NAME\n"),
        (["count", "x:y", "-p", "1", "--strategy", "hope"], "hope"),
        (["tracee", "x:y"], "No such command"),
    ],
)
def test_a_wrong_command_line_is_exit_status_2(fakes, capsys, arguments, message):
    assert main(arguments) == 2
    assert message in capsys.readouterr().err
    assert not fakes.sessions


def test_a_name_nobody_has_is_exit_status_1(fakes, capsys):
    assert main(["count", "x:y", "-n", "no-such-name"]) == 1
    assert "no-such-name" in capsys.readouterr().err


def test_of_processes_with_one_name_those_that_have_ended_are_left_out(monkeypatch, capsys):
    def attach(pid, **_):
        if pid != 12:
            raise NoSuchProcess(f"there is no process {pid}")
        return contextlib.nullcontext(pid)

    monkeypatch.setattr("anyprobe.probes.opening.attach", attach)
    monkeypatch.setattr(targets, "pids_by_name", lambda _name: [11, 12, 13])
    target = targets.choose((), ("worker",))
    with contextlib.ExitStack() as stack:
        assert targets.open_sessions(stack, target) == [12]
    assert capsys.readouterr().err.count("has ended before it could be attached to") == 2
    for none_left in (targets.choose((11,), ()), targets.Target((11, 13), named=frozenset({11, 13}))):
        with contextlib.ExitStack() as stack, pytest.raises(NoSuchProcess):
            targets.open_sessions(stack, none_left)


@pytest.mark.parametrize(
    ("spec", "chosen", "everywhere"),
    [
        ("u:libc:malloc", {}, ["u:libc:malloc"]),
        ("uretprobe:/bin/bash:readline", {}, ["uretprobe:/bin/bash:readline"]),
        ("u:libc:malloc", {"pids": (4194305,)}, []),
        ("u:libc:malloc", {"program": ("ls",)}, []),
        ("kernel::vfs_read", {}, []),
    ],
)
def test_places_in_files_are_in_all_processes_where_none_is_named(spec, chosen, everywhere):
    settings = {"pids": (), "names": (), "program": (), **chosen}
    assert targets.choose(**settings, specs=(spec,)).everywhere == everywhere
