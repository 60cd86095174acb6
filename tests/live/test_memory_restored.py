"""After a session the target is as before: text, mappings, private memory; W^X holds all the time."""

import re
from pathlib import Path

import pytest

import anyprobe
from support.driver import wait_until
from support.image import Image, foreign_executable, mappings, writable_and_executable

PROGRAMS = {
    "pie": ("static_program.c", ()),
    "non-pie": ("static_program.c", ("-no-pie",)),
    "static": ("static_program.c", ("-static",)),
    "threads": ("thread_churn.c", ()),
}


@pytest.fixture(params=PROGRAMS, name="target")
def a_target(request, run_target):
    source, options = PROGRAMS[request.param]
    return run_target(source, options=options)


def test_nothing_is_left(target):
    """All functions of all modules, counted and timed, then gone without a trace."""
    target.go(1)
    before = Image.of(target.pid)
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:*", "a.out:*%return")
        target.go(5)
    before.assert_restored(target.pid)
    target.go(5)
    with anyprobe.attach(target.pid) as session:
        session.time("a.out:*")
        target.go(5)
    before.assert_restored(target.pid)
    target.finish()


def test_attach_alone_changes_no_text(target):
    """Attaching without arming anything leaves text alone and is undone too."""
    before = Image.of(target.pid)
    with anyprobe.attach(target.pid):
        assert Image.of(target.pid).text == before.text
    before.assert_restored(target.pid)
    target.finish()


def test_what_is_counted_is_in_no_core_dump(target):
    """The data, that is; code and journal tell whoever reads the dump what he sees."""
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:*")
        entries = re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path(f"/proc/{target.pid}/smaps").read_text())
        ours = [entry for entry in entries if " rw-s " in entry and "memfd:anyprobe" in entry]
        assert ours
        assert all(" dd" in entry[entry.index("VmFlags") :] for entry in ours)
    target.finish()


def test_no_mapping_is_ever_writable_and_executable(target):
    """W^X holds before, while probes are armed, and after."""
    before = {(m.start, m.end) for m in writable_and_executable(target.pid)}
    with anyprobe.attach(target.pid) as session:
        probes = session.count("a.out:*")
        assert foreign_executable(target.pid), "no patches were mapped?"
        assert {(m.start, m.end) for m in writable_and_executable(target.pid)} == before
        target.go(2)
        session.remove(*probes)
        assert {(m.start, m.end) for m in writable_and_executable(target.pid)} == before
    assert {(m.start, m.end) for m in writable_and_executable(target.pid)} == before
    target.finish()


def test_nobody_is_attached_between_changes(target):
    """While probes are armed the target has no tracer and no thread, library or file of ours."""
    threads, libraries = tasks(target.pid), {m.name for m in mappings(target.pid) if ".so" in m.name}
    descriptors = open_files(target.pid)
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:*")
        assert tracer(target.pid) == 0
        assert tasks(target.pid) == threads
        assert {m.name for m in mappings(target.pid) if ".so" in m.name} == libraries
        assert open_files(target.pid) == descriptors
        target.go(1)
    target.finish()


def tracer(pid):
    """Return the pid of who traces the process."""
    from pathlib import Path

    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("TracerPid")))


def tasks(pid):
    """Return how many threads the process has."""
    import os

    return len(os.listdir(f"/proc/{pid}/task"))


def open_files(pid):
    """Return the process's descriptors."""
    import os

    return sorted(os.listdir(f"/proc/{pid}/fd"))


def test_who_sleeps_in_a_patch_is_led_out_of_it(run_target):
    """A thread sleeps in a displaced system call when its session ends: it sleeps on in the program and all is gone."""
    target = run_target("parked.c")
    target.go(1)
    before = Image.of(target.pid)
    with anyprobe.attach(target.pid) as session:
        (probe,) = session.count("a.out:sleep_inside")
        target.run_freely()

        def armed():
            session.enable(probe)
            return probe.armed

        wait_until(armed, "the sleeper is elsewhere for a moment")
        target.halt()  # now it sleeps in the displaced call
    assert not session.warnings
    before.assert_restored(target.pid)
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:spin_inside")
        calls = target.counts.calls["spin_inside"]
        assert target.go(2).calls["spin_inside"] - calls == session.snapshot().hits
    before.assert_restored(target.pid)
    target.finish()
