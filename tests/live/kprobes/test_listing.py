"""``anyprobe probes``: the kernel's list, as somebody else reads it out of the program."""

import json
import os
import subprocess
import sys

import pytest

import anyprobe
from anyprobe import i64
from anyprobe.kprobes import (
    KPROBE_FLAG_DISABLED,
    Jprobe,
    Kprobe,
    Kretprobe,
    debugfs,
    disable_kprobe,
    enable_kprobe,
    register_jprobe,
    register_kprobe,
    register_kprobes,
    register_kretprobe,
    unregister_kprobe,
    unregister_kretprobe,
)
from anyprobe.probes.providers.function.outside import leftover, listing
from support.driver import build, started

pytestmark = pytest.mark.live


def command(*arguments):
    done = subprocess.run(
        [sys.executable, "-m", "anyprobe", *arguments], capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def lines(pid):
    """Return the list without addresses: what has a type, a place, a module and states."""
    return [str(each).split(maxsplit=1)[1] for each in listing.inspect(pid).registered]


def quiet(ri, regs):
    return 0


def test_types_are_those_of_registration(target, session):
    module = os.path.basename(session.exe)

    def entry(n: i64):
        pass

    kps = [Kprobe(symbol_name="chosen"), Kprobe(symbol_name="chosen"), Kprobe(symbol_name="stepped")]
    rp, jp = Kretprobe(Kprobe(symbol_name="asked"), quiet), Jprobe(Kprobe(symbol_name="chosen"), entry)
    assert register_kprobes(kps) == register_kretprobe(rp) == register_jprobe(jp) == 0
    session.time("a.out:recursive")
    session.count("a.out:caller_of%return")
    shown = command("probes", "-p", str(target.pid)).splitlines()
    assert [line.split(maxsplit=1)[1] for line in shown] == lines(target.pid)
    assert sorted(lines(target.pid)) == sorted(
        [
            *[f"k  chosen+0x0  {module} [OPTIMIZED]"] * 2,
            f"j  chosen+0x0  {module} [OPTIMIZED]",
            f"k  stepped+0x0  {module} [OPTIMIZED]",
            f"r  asked+0x0  {module} [OPTIMIZED]",
            f"r  recursive+0x0  {module} [OPTIMIZED]",
            f"r  caller_of+0x0  {module} [OPTIMIZED]",
        ]
    )
    own = {str(each) for each in debugfs.listing()}
    assert own <= set(shown)
    document = json.loads(command("probes", "--json", "-p", str(target.pid)))
    assert [(each["address"], each["type"], each["flags"]) for each in document] == [
        (int(line.split()[0], 16), line.split()[1], ["OPTIMIZED"]) for line in shown
    ]
    letters = {site.type for site in listing.inspect(target.pid).sites if not site.internal}
    assert {"jk", "k", "r"} <= letters
    target.go(1)
    target.finish()


def test_states_follow_what_is_done(target, session):
    module = os.path.basename(session.exe)
    one, other = Kprobe(symbol_name="chosen"), Kprobe(symbol_name="chosen", flags=KPROBE_FLAG_DISABLED)
    rp = Kretprobe(Kprobe(symbol_name="asked"), quiet)
    here, there = f"k  chosen+0x0  {module}", f"r  asked+0x0  {module}"
    assert register_kprobe(other) == 0
    assert lines(target.pid) == []  # nothing of ours is in the program yet
    assert register_kprobe(one) == register_kretprobe(rp) == 0
    assert sorted(lines(target.pid)) == [f"{here} [DISABLED]", f"{here} [OPTIMIZED]", f"{there} [OPTIMIZED]"]
    assert disable_kprobe(one) == enable_kprobe(other) == 0
    assert sorted(lines(target.pid)) == [f"{here} [DISABLED]", f"{here} [OPTIMIZED]", f"{there} [OPTIMIZED]"]
    assert disable_kprobe(other) == 0
    assert sorted(lines(target.pid)) == [f"{here} [DISABLED]"] * 2 + [f"{there} [OPTIMIZED]"]
    assert enable_kprobe(one) == enable_kprobe(other) == 0
    debugfs.set_optimization(False)
    assert sorted(lines(target.pid)) == [here, here, there]
    debugfs.set_optimization(True)
    leftover.switch(target.pid, on=False)
    assert sorted(lines(target.pid)) == [f"{here} [DISABLED]"] * 2 + [f"{there} [DISABLED]"]
    leftover.switch(target.pid, on=True)
    assert disable_kprobe(one) == 0
    for on in (False, True):
        leftover.switch(target.pid, on=on)
    assert sorted(lines(target.pid)) == [f"{here} [DISABLED]", f"{here} [OPTIMIZED]", f"{there} [OPTIMIZED]"]
    debugfs.set_enabled(False)  # each one's own state stays what it is, in the list, too
    assert sorted(lines(target.pid)) == [here, f"{here} [DISABLED]", there]
    debugfs.set_enabled(True)
    assert sorted(lines(target.pid)) == [f"{here} [DISABLED]", f"{here} [OPTIMIZED]", f"{there} [OPTIMIZED]"]
    assert enable_kprobe(one) == 0
    unregister_kprobe(one)
    unregister_kretprobe(rp)
    assert lines(target.pid) == [f"{here} [OPTIMIZED]"]
    target.go(1)
    unregister_kprobe(other)
    assert lines(target.pid) == []
    target.finish()


def test_a_dead_controllers_probes_are_listed_and_removed(target, tmp_path):
    script = tmp_path / "dies.py"
    script.write_text(
        "import os, signal, anyprobe\n"
        "from anyprobe.kprobes import *\n"
        f"session = anyprobe.attach({target.pid})\n"
        "assert register_kprobe(Kprobe(symbol_name='stepped'), session=session) == 0\n"
        "rp = Kretprobe(Kprobe(symbol_name='asked'), lambda ri, regs: 0)\n"
        "assert register_kretprobe(rp, session=session) == 0\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, script], timeout=180, check=False)
    assert {line.split()[0] for line in lines(target.pid)} == {"k", "r"}
    assert "restored" in command("detach", "-p", str(target.pid))
    assert lines(target.pid) == []
    target.go(1)
    target.finish()


def test_a_journal_without_registrations_shows_sites(target, session, monkeypatch):
    """As earlier versions have left it."""
    monkeypatch.setattr(session.splicing.registrations, "write", lambda: None)
    session.count("a.out:stepped", "a.out:asked%return")
    assert [line.split()[0] for line in lines(target.pid)] == ["k"] * len(listing.inspect(target.pid).sites)
    assert any("stepped+0x0" in line for line in lines(target.pid))
    target.go(1)
    target.finish()


def test_what_is_gone_is_listed_until_it_is_unregistered(tmp_path):
    source = tmp_path / "library.c"
    source.write_text("long inside_library(long n) { return n * 5 + 1; }\n")
    library = tmp_path / "library.so"
    subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
    with started(build("reloaded.c"), env={"LIBRARY": str(library)}) as target, anyprobe.attach(target.pid) as session:
        kp = Kprobe(symbol_name="inside_library", module="library.so")
        assert register_kprobe(kp) == 0
        session.count("a.out:main")
        target.go(2)
        assert lines(target.pid)[-1] == "k  inside_library+0x0  library.so [OPTIMIZED]"
        target.go(1)
        session.snapshot()
        (gone,) = (line for line in lines(target.pid) if "[GONE]" in line)
        assert gone.startswith("k")
        unregister_kprobe(kp)
        assert len(lines(target.pid)) == 1
        target.go(1)
        target.finish()


def test_words_are_taken_again_and_nothing_is_written_after_the_end(target):
    with anyprobe.attach(target.pid) as session:
        keep = Kprobe(symbol_name="stepped")
        assert register_kprobe(keep, session=session) == 0
        for _ in range(30):
            kps = [Kprobe(symbol_name="chosen") for _ in range(10)]
            assert register_kprobes(kps) == 0
            assert len(lines(target.pid)) == 11
            for kp in kps:
                unregister_kprobe(kp)
        journals = sum(arena.journal.capacity - arena.journal.room() for arena in session.splicing.holdings.arenas)
        assert journals < 30
    session.splicing.registrations.note_all()
    session.splicing.registrations.write()
    assert lines(target.pid) == []
    target.go(1)
    target.finish()
