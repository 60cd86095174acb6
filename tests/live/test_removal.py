"""Taking probes out when something stands in the way: it is told, nothing is lost, and it can be tried again."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import anyprobe
from anyprobe.core.errors import StopTimeout
from anyprobe.probes.providers.function.outside import leftover, listing
from anyprobe.splice.apply.recovery import recovery
from anyprobe.splice.apply.transaction import Transaction
from anyprobe.target.process.process import Process
from anyprobe.target.system import gateway, procfs, ptrace
from support.driver import build, wait_until
from support.image import Image
from support.results import hits, refusals, timing
from support.target_driver import PROGRAMS, running


def overwrite(pid: int, address: int, content: bytes) -> bytes:
    """Write into a program that waits for us; return what was there."""
    memory = os.open(f"/proc/{pid}/mem", os.O_RDWR)
    try:
        before = os.pread(memory, len(content), address)
        os.pwrite(memory, content, address)
    finally:
        os.close(memory)
    return before


def test_a_refused_removal_is_told(run_target):
    """Somebody overwrote our splice: the probe stays armed, and a warning says why."""
    target = run_target("counts.c", "1")
    before = Image.of(target.pid)
    with anyprobe.attach(target.pid) as session:
        (probe,) = session.count("a.out:work")
        place = probe.places[0]
        address = place.hook.splice.address
        ours = overwrite(target.pid, address, b"\x90" * 5)
        session.remove(probe)
        assert probe.armed
        (warning,) = session.warnings
        assert ":work:entry" in warning
        assert "stays armed" in warning
        assert "memory-differs-from-file" in warning
        assert any("stays armed" in text for text in session.snapshot().warnings)
        assert not probe.armed  # since that look
        overwrite(target.pid, address, ours)
        session.remove(probe)
        assert not probe.armed
        assert sum("stays armed" in text for text in session.warnings) == 1
    before.assert_restored(target.pid)
    target.go(10)
    target.finish()


@pytest.mark.parametrize("live", [False, True])
def test_a_program_whose_file_cannot_be_read_any_more(run_target, monkeypatch, live):
    """Its pages cannot be given back to the file; everything is removed all the same."""
    target = run_target("counts.c", "1")
    program, pread = os.readlink(f"/proc/{target.pid}/exe"), gateway.pread

    def stale(fd, size, offset):
        if os.readlink(f"/proc/self/fd/{fd}") == program:
            raise OSError(errno.ESTALE, "stale file handle")
        return pread(fd, size, offset)

    with anyprobe.attach(target.pid, live=live) as session:
        session.count("a.out:work")
        monkeypatch.setattr(gateway, "pread", stale)
    assert "memfd:anyprobe" not in Path(f"/proc/{target.pid}/maps").read_text()
    target.go(10)
    target.finish()


@pytest.mark.parametrize("live", [False, True])
def test_a_program_whose_first_thread_has_ended(live):
    """``/proc/PID`` shows no memory any more; the others' does."""
    with running("first_thread_ends", options=("-pthread",)) as program:
        assert program.line() == "ready"
        with anyprobe.attach(program.pid, live=live) as session:
            session.count("a.out:work")
            assert program.ask() == "alone"
            wait_until(lambda: program.state() == "Z", "the first thread has ended")
        assert not session.warnings
        with anyprobe.attach(program.pid, live=live) as session:
            session.count("a.out:work")
            wait_until(lambda: hits(session.snapshot(), "work"), "calls are counted")
        others = [int(tid) for tid in os.listdir(f"/proc/{program.pid}/task") if int(tid) != program.pid]
        assert "memfd:anyprobe" not in Path(f"/proc/{others[0]}/maps").read_text()
        assert program.ask() == "fine"


def test_another_library_where_a_trap_was():
    """It has an ``int3`` of its own there, which is no splice to be undone."""
    source = (PROGRAMS / "replaces_library.c").read_text()
    first, second = (build(f"{name}.c", "-shared", f"-D{name.upper()}", text=source) for name in ("first", "second"))
    with running("replaces_library", str(first), str(second)) as program:
        assert program.line() == "2"
        with anyprobe.attach(program.pid, strategy="trap") as session:
            session.count(f"{first.name}:probed")
            if program.ask() != "same":
                pytest.skip("the libraries are not in the same place")
        assert program.ask() == "cc"


def test_a_refused_arming_keeps_what_was_timed(run_target):
    """Timing that cannot be put in again has counted all the same."""
    target = run_target("counts.c", "1")
    with anyprobe.attach(target.pid) as session:
        (probe,) = session.time("a.out:side")
        address = probe.timed[0].places[0].hook.splice.address
        target.go(50)
        session.remove(probe)
        theirs = overwrite(target.pid, address, b"\x90")
        session.enable(probe)
        assert not probe.armed
        assert refusals(session.refused) == {"side": "memory-differs-from-file"}
        assert timing(session.snapshot(), "side").count == 50
        overwrite(target.pid, address, theirs)
        session.enable(probe)
        assert session.refused == []
        target.go(50)
        assert timing(session.snapshot(), "side").count == 100
    target.finish()


def test_arming_that_cannot_be_tried_keeps_its_refusals(run_target, monkeypatch):
    target = run_target("counts.c", "1")
    with anyprobe.attach(target.pid) as session:
        (probe,) = session.count("a.out:work")
        session.remove(probe)
        place = probe.places[0]
        theirs = overwrite(target.pid, place.address, b"\x90")
        session.enable(probe)
        assert refusals(session.refused) == {"work": "memory-differs-from-file"}
        overwrite(target.pid, place.address, theirs)
        with monkeypatch.context() as patched:
            patched.setattr(session.engine, "_carry_out", lambda _: (_ for _ in ()).throw(StopTimeout("no")))
            with pytest.raises(StopTimeout):
                session.enable(probe)
        assert refusals(session.refused) == {"work": "memory-differs-from-file"}
        session.enable(probe)
        assert session.refused == []
    target.finish()


@pytest.mark.parametrize("change", [anyprobe.Session.count, anyprobe.Session.time])
def test_probes_that_could_not_be_armed_in_time_are_forgotten(run_target, monkeypatch, change):
    target = run_target("counts.c", "1")
    with anyprobe.attach(target.pid) as session:
        with monkeypatch.context() as patched:
            patched.setattr(Transaction, "run", lambda *_: (_ for _ in ()).throw(StopTimeout("no")))
            with pytest.raises(StopTimeout):
                change(session, "a.out:work")
        assert (session.probes, session.refused, session.snapshot().sites) == ([], [], ())
        change(session, "a.out:work")
        assert ([probe.spec for probe in session.probes], session.refused) == (["a.out:work"], [])
    target.finish()


def test_a_failed_detach_can_be_repeated(run_target, monkeypatch):
    target = run_target("counts.c", "2")
    before = Image.of(target.pid)
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:work")
        target.go(7)

        def no_stop(_self, _timeout=2.0):
            raise StopTimeout("a thread did not stop")

        with monkeypatch.context() as patched:
            patched.setattr(Process, "stop", no_stop)
            with pytest.raises(StopTimeout):
                session.detach()
        with pytest.raises(anyprobe.UsageError, match="detached"):
            session.count("a.out:side")
        session.detach()
        before.assert_restored(target.pid)
        assert hits(session.snapshot(), "work") == 14
    target.finish()


@pytest.mark.parametrize("live", [False, True])
def test_a_child_that_cannot_be_cleaned_does_not_hold_up_the_rest(run_target, live):
    """A traced fork child keeps its probes, and runs on with them; the parent is cleaned, a warning names the child."""
    target = run_target("living_child.c")
    before = Image.of(target.pid)
    with anyprobe.attach(target.pid, live=live) as session:
        session.count("a.out:shared_work")
        child = target.go(1).calls["child"]
        tracer = os.fork()
        if not tracer:
            ptrace.seize(child)
            signal.pause()
        try:
            while f"TracerPid:\t{tracer}" not in Path(f"/proc/{child}/status").read_text():
                os.sched_yield()
            session.detach()
        finally:
            os.kill(tracer, signal.SIGKILL)
            os.waitpid(tracer, 0)
        (warning,) = session.warnings
        assert f"process {child} still has probes" in warning
    before.assert_restored(target.pid)
    target.go(3)
    report = leftover.remove(child)
    assert report.restored == 1
    assert Image.of(child).text == before.text
    target.go(3)
    target.finish()


def test_somebody_else_removes_what_a_living_session_has_installed(run_target, tmp_path):
    """``anyprobe detach`` removes what is installed, whoever installed it, and that session notices."""
    target = run_target("counts.c", "2")
    before = Image.of(target.pid)
    with anyprobe.attach(target.pid) as session:
        (probe,) = session.count("a.out:work")
        target.go(10)
        target.run_freely()
        other = os.fork()
        if not other:
            leftover.remove(target.pid)
            os._exit(0)
        assert os.waitpid(other, 0)[1] == 0
        before.assert_restored(target.pid)
        target.halt()
        counts = target.go(10)
        snapshot = session.snapshot()
        assert 20 <= hits(snapshot, "work") <= counts.calls["work"] - 20
        assert [site.armed for site in snapshot.sites] == [False]
        assert not probe.armed
        assert any("another anyprobe has removed" in text for text in snapshot.warnings)
        for change in (lambda: session.count("a.out:side"), lambda: session.enable(probe)):
            with pytest.raises(anyprobe.SessionConflict, match="another anyprobe has removed"):
                change()
        session.remove(probe)
        before.assert_restored(target.pid)
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:work")
        target.go(10)
        assert hits(session.snapshot(), "work") == 20
    before.assert_restored(target.pid)
    target.finish()


@pytest.fixture
def libraries(compiled, tmp_path):
    """Two files with the same content."""
    built = compiled("library.c", "-shared", "-fPIC", "-DVERSION=1")
    paths = [tmp_path / "libone.so", tmp_path / "libtwo.so"]
    for path in paths:
        shutil.copy(built, path)
    return paths


def test_a_library_that_is_unloaded_takes_its_probes_along(run_target, libraries):
    target = run_target("reloads_library.c", *map(str, libraries))
    with anyprobe.attach(target.pid) as session:
        target.go(1)
        (probe,) = session.count("libone:from_library", follow=False)
        target.go(1)
        snapshot = session.snapshot()
        assert hits(snapshot, "from_library") == 100
        assert [site.armed for site in snapshot.sites] == [False]
        assert refusals(session.refused) == {"from_library": "gone"}
        (left,) = listing.inspect(target.pid).sites
        assert left.flags == ("GONE",)
        session.remove(probe)
        session.enable(probe)
        assert refusals(session.refused) == {"from_library": "gone"}
        session.count("a.out:other")  # other changes proceed, and tidy up
        assert [left.symbol for left in listing.inspect(target.pid).sites] == ["other"]
        target.go(2)
        assert hits(session.snapshot(), "other") == 20
        assert hits(session.snapshot(), "from_library") == 100
    target.go(2)
    target.finish()


def test_another_file_at_the_same_address_is_not_written_to(run_target, libraries):
    """The same bytes at the same place, but of another file: nothing of ours, and probed anew."""
    target = run_target("reloads_library.c", *map(str, libraries))
    with anyprobe.attach(target.pid) as session:
        first = target.go(1).calls["place"]
        (probe,) = session.count("libone:from_library", follow=False)
        target.go(1)
        if target.go(1).calls["place"] != first:
            pytest.skip("the kernel chose another address")
        before = Image.of(target.pid)
        session.enable(probe)
        session.remove(probe)
        assert refusals(session.refused) == {"from_library": "gone"}
        assert Image.of(target.pid).text == before.text
        session.count("libtwo:from_library")
        target.go(1)
        by_module = {site.module: site.hits for site in session.snapshot().sites}
        assert by_module == {"libone.so": 100, "libtwo.so": 100}
    target.go(1)
    target.finish()


LEAVES_A_TRAP = """
import os, sys, anyprobe
session = anyprobe.attach(int(sys.argv[1]), strategy="trap")
(probe,) = session.count("libone:never_called", follow=False)
print(probe.places[0].address - probe.places[0].module.bias, flush=True)
os.kill(os.getpid(), 9)
"""


def test_a_byte_of_another_library_is_not_taken_for_what_a_dead_controller_left(run_target, libraries):
    """Where its trap was, the library that came instead has the same byte."""
    target = run_target("reloads_library.c", *map(str, libraries))
    first = target.go(1).calls["place"]
    command = [sys.executable, "-c", LEAVES_A_TRAP, str(target.pid)]
    at = int(subprocess.run(command, capture_output=True, timeout=180, check=False).stdout)
    content = bytearray(libraries[1].read_bytes())
    content[at] = 0xCC  # in its first segments, addresses are offsets in the file
    libraries[1].write_bytes(content)
    target.go(1)
    if target.go(1).calls["place"] != first:
        pytest.skip("the kernel chose another address")
    text = Image.of(target.pid).text
    report = leftover.remove(target.pid)
    assert (report.restored, report.gone) == (0, 1)
    assert Image.of(target.pid).text == text
    target.go(1)
    target.finish()


def test_probes_are_not_enabled_in_another_library(run_target, libraries):
    """Disabled in one library, they have no business in the one that came instead, whatever its bytes."""
    target = run_target("reloads_library.c", *map(str, libraries))
    with anyprobe.attach(target.pid) as session:
        first = target.go(1).calls["place"]
        session.count("libone:from_library", "a.out:other", follow=False)
        leftover.switch(target.pid, on=False)
        target.go(1)
        if target.go(1).calls["place"] != first:
            pytest.skip("the kernel chose another address")
        report = leftover.switch(target.pid, on=True)
        assert (report.changed, len(report.foreign)) == (1, 1)
        assert {site.symbol: site.flags for site in listing.inspect(target.pid).sites}["other"] == ("OPTIMIZED",)
        before = target.counts.calls["from_library"]
        target.go(1)
        assert target.counts.calls["from_library"] > before
        assert hits(session.snapshot(), "from_library") == 0
    target.finish()


def test_a_library_loaded_again_at_the_same_address_is_not_taken_for_spliced(run_target, libraries):
    """The very file again: removing its probe changes nothing, arming it works."""
    target = run_target("reloads_library.c", str(libraries[0]), str(libraries[0]))
    with anyprobe.attach(target.pid) as session:
        first = target.go(1).calls["place"]
        (probe,) = session.count("libone:from_library", follow=False)
        target.go(1)
        if target.go(1).calls["place"] != first:
            pytest.skip("the kernel chose another address")
        before = Image.of(target.pid)
        session.remove(probe)
        assert not probe.armed
        assert not session.warnings
        assert Image.of(target.pid).text == before.text
        session.enable(probe)
        target.go(1)
        assert hits(session.snapshot(), "from_library") == 200
    target.go(1)
    target.finish()


def sleeps(pid):
    return procfs.read_stat(pid).state == "S"


def test_reading_does_not_use_up_memory(run_target):
    """A snapshot of many timed functions reads what was written, not all that could have been."""
    target = run_target("counts.c", "1")
    with anyprobe.attach(target.pid) as session:
        session.time("a.out:*", "libc:mem*")
        target.go(1)
        wait_until(partial(sleeps, target.pid), "it reads what comes next, with functions that are timed, too")
        session.snapshot()
        used = [os.fstat(arena.descriptor).st_blocks for arena in session.splicing.holdings.arenas]
        for _ in range(3):
            json.dumps(session.snapshot().as_json())
        assert [os.fstat(arena.descriptor).st_blocks for arena in session.splicing.holdings.arenas] == used
        assert sum(used) < 2000  # of 512 bytes
    target.finish()


class DeathError(Exception):
    """The controller is no more."""


@pytest.mark.parametrize("dies_behind", [None, 1, 2, 3])
def test_memory_is_given_back_in_several_stops(run_target, monkeypatch, dies_behind):
    """Each does a little; whenever the controller dies between two of them, ``detach`` does the rest."""
    target = run_target("counts.c", "3")
    before = Image.of(target.pid)
    pauses = []

    def breath(seconds):
        target.check_alive()
        if seconds == recovery._BREATH:
            pauses.append(seconds)
        else:
            time.sleep(seconds)  # for threads to leave their patches
        if len(pauses) == dies_behind:
            raise DeathError

    session = anyprobe.attach(target.pid)
    session.count("a.out:*", "libc:getenv")
    target.run_freely()
    with monkeypatch.context() as patched:
        patched.setattr(recovery, "_SLICE", 0)
        patched.setattr(recovery, "time", SimpleNamespace(sleep=breath, monotonic=recovery.time.monotonic))
        if dies_behind is None:
            session.close()
            assert len(pauses) > 2
        else:
            with pytest.raises(DeathError):
                session.close()
    if dies_behind is not None:
        leftover.remove(target.pid)
    target.check_alive()
    before.assert_restored(target.pid)
    target.halt()
    target.finish()


@pytest.mark.parametrize("live", [False, True])
def test_pages_of_probes_taken_out_one_by_one_are_given_back_too(run_target, live):
    target = run_target("counts.c", "1")
    before = Image.of(target.pid)
    with anyprobe.attach(target.pid, live=live) as session:
        for probe in session.count("libc:a*", "libc:s*"):
            session.remove(probe)
        assert Image.of(target.pid).private_code_kb > before.private_code_kb + 64
    assert Image.of(target.pid).private_code_kb <= before.private_code_kb + 8
    target.go(1)
    target.finish()
