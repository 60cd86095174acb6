"""Programs that replace, hook and restore their own text while it is probed: they live, and the result says so."""

import subprocess
from contextlib import contextmanager

import pytest

import anyprobe
from live.test_command_line import anyprobe as command
from support.driver import build

PROBED = ("a.out:work", "a.out:other", "a.out:third")
REMAPS = ("anonymous", "anonymous page", "memfd private", "memfd shared", "memfd private page")
HOOKS = (5, 12, 14)


class Changing:
    """The program, told line by line what to do."""

    def __init__(self, process):
        self.process, self.pid = process, process.pid
        assert process.stdout.readline() == "ready\n"

    def tell(self, line):
        """Have it do something; return the first byte of ``work`` afterwards."""
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        verdict, first = self.process.stdout.readline().split()
        assert verdict == "right"
        return first

    def finish(self):
        self.process.stdin.close()
        assert self.process.wait(180) == 0


@contextmanager
def changing(*arguments):
    command = [build("changes_its_text.c", "-O2"), *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Changing(process)
        finally:
            if process.poll() is None:
                process.kill()


def hits(session):
    return {site.function: site.hits for site in session.snapshot().sites}


@pytest.mark.parametrize("how", REMAPS)
def test_text_is_replaced_by_a_copy(how):
    """The jumps are copied along and count on; afterwards the copy has the program's own bytes, too."""
    with changing(how) as target:
        pristine = target.tell("r 10")
        with anyprobe.attach(target.pid) as session:
            session.count(*PROBED)
            assert target.tell("r 100") == "e9"
            target.tell("c")
            assert target.tell("r 100") == "e9"
            assert hits(session) == {"work": 200, "other": 200, "third": 200}
            assert any("replaced the text" in text for text in session.warnings)
            if "shared" not in how:
                session.remove(session.probes[0])
                assert target.tell("r 100") == pristine
        assert target.tell("r 100") == left_by(how, pristine, session)
        target.finish()


@pytest.mark.parametrize("how", REMAPS)
def test_text_is_replaced_between_the_last_look_and_the_end(how):
    with changing(how) as target:
        pristine = target.tell("r 10")
        with anyprobe.attach(target.pid) as session:
            session.count(*PROBED)
            target.tell("r 100")
            target.tell("c")
        assert target.tell("r 100") == left_by(how, pristine, session)
        target.finish()


def left_by(how, pristine, session):
    """Return the first byte that a session leaves: shared memory cannot be written, so that the patches stay."""
    stays = "shared" in how
    assert stays == any("may have saved" in text for text in session.warnings)
    return "e9" if stays else pristine


@pytest.mark.parametrize("size", HOOKS)
def test_a_jump_that_the_program_has_saved_stays_good(size):
    """The program hooks a probed function and takes the hook out when the probes have gone: it writes our jump back."""
    with changing("hook", size) as target:
        pristine = target.tell("r 10")
        with anyprobe.attach(target.pid) as session:
            session.count(*PROBED)
            target.tell("r 100")
            target.tell("c")
            target.tell("r 100")
            snapshot = session.snapshot()
            (work,) = [site for site in snapshot.sites if site.function == "work"]
            assert (work.hits, work.armed) == (100, False)
            assert any("written over the probe" in text for text in session.warnings)
        assert any("may have saved" in text for text in session.warnings)
        assert target.tell("u") == "e9"
        target.tell("r 100")
        command("detach", "-p", str(target.pid))
        assert target.tell("r 100") == pristine
        target.finish()


@pytest.mark.parametrize("size", HOOKS)
def test_a_hook_that_comes_and_goes_under_the_probes(size):
    """The jump is back when the probes go, and in the program's memory still: it may write it once more."""
    with changing("hook", size) as target:
        pristine = target.tell("r 10")
        with anyprobe.attach(target.pid) as session:
            session.count(*PROBED)
            target.tell("c")
            session.snapshot()
            assert target.tell("u") == "e9"
            target.tell("r 100")
        assert target.tell("r 100") == pristine
        assert target.tell("u") == "e9"
        target.tell("r 100")
        target.finish()


@pytest.mark.parametrize("size", HOOKS)
def test_a_hook_from_before_is_taken_out_under_the_probes(size):
    """The program writes its own bytes over a jump: the probe has not counted since, and says so."""
    with changing("hook", size) as target:
        pristine = target.tell("r 10")
        target.tell("c")
        target.tell("u")
        with anyprobe.attach(target.pid) as session:
            session.count(*PROBED)
            target.tell("r 100")
            target.tell("u")
            target.tell("r 100")
            snapshot = session.snapshot()
            (work,) = [site for site in snapshot.sites if site.function == "work"]
            assert (work.hits, work.armed) == (100, False)
            assert any("original bytes" in text for text in session.warnings)
        assert target.tell("r 100") == pristine
        target.finish()
