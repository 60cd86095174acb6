"""Plans that are only shown: whatever ends one, what armed probes depend on stays protected."""

import json
import re
import shlex
import subprocess

import pytest

import anyprobe
from anyprobe.cli import main
from anyprobe.splice.plan.planner import Planner
from live.test_any_order import ASKED, FUNCTIONS, Toggled, target, times
from support.driver import build

__all__ = ["target", "times"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_interrupted(target, times, monkeypatch, function, when):
    """Ctrl-C meets a plan before it has begun or when all of it is there; then everything else is probed as well."""

    def interrupted(planner, *arguments):
        if when == "after":
            plan(planner, *arguments)
        raise KeyboardInterrupt

    plan = Planner.plan
    with anyprobe.attach(target.pid) as session:
        toggled = Toggled(session, target, times)
        toggled.toggle([(function, "insn")])
        module = next(module for module in session.engine.modules if module.claims.written)
        claimed = module.claims.replaced((), ())
        with monkeypatch.context() as patched:
            patched.setattr(Planner, "plan", interrupted)
            for kind in ("insn", "block", "entry"):
                with pytest.raises(KeyboardInterrupt):
                    session.explain(f"pid:a.out:{function}:{kind}")
        assert module.claims == claimed
        session.explain(f"pid:a.out:{function}:insn")
        assert module.claims == claimed
        toggled.toggle([one for one in ASKED if one != (function, "insn")])
        with toggled.compared(toggled.armed()):
            target.go(2)


ENDLESS = """
#include <unistd.h>
__attribute__((noinline)) int ends(int x) { if (x == 3) return x * 7; pause(); return x + 1; }
__attribute__((noinline, noreturn)) void endless(void) { for (;;) ends(1); }
int main(void) { write(1, "r", 1); endless(); }
"""


@pytest.fixture
def explained(capfd):
    """Return what ``explain`` prints of a program that waits in a function which never returns."""
    program = build("endless.c", "-O2", "-fno-pie", "-no-pie", text=ENDLESS)
    with subprocess.Popen([program], stdout=subprocess.PIPE) as process:
        process.stdout.read(1)

        def explained(*arguments, command="explain"):
            capfd.readouterr()
            main([command, *arguments, "-p", str(process.pid)])
            return capfd.readouterr().out

        yield explained
        process.kill()


def test_the_first_line_says_what_would_be_done(explained):
    assert explained("a.out:ends").startswith("would be placed by a 5-byte jump, about 1 ns a hit\n")
    first = "would be timed at its entry, placed by a 5-byte jump, and at each of its 2 exits, about 30 ns a call\n"
    assert explained("--for", "time", "a.out:ends").startswith(first)
    assert json.loads(explained("--for", "time", "a.out:ends", "--json"))["summary"] == first.rstrip()


def test_what_was_refused_is_explained(explained):
    refused = "refused: the function never returns (no-exit)\n"
    assert explained("a.out:endless%return").startswith(refused)
    assert explained("a.out:endless", "--for", "time").startswith(refused)
    assert explained("a.out:endless").startswith("would be placed")
    assert "refused: no-exit" in explained("a.out:endless%return", command="list")


def test_the_command_below_a_refusal_explains_it(explained):
    """It is pasted as it is."""
    shown = explained("a.out:endless", "--for", "0", command="time")
    command = re.search(r"^anyprobe explain (.*) -p \d+ says more$", shown, re.MULTILINE)[1]
    assert explained(*shlex.split(command)).startswith("refused: the function never returns")
    counted = explained("a.out:endless%return", "--for", "0", command="count")
    assert re.search(r"^anyprobe explain pid:\S+:endless:return -p \d+ says more$", counted, re.MULTILINE)


def test_places_have_names_and_registers_their_usual_order(explained):
    shown = explained("a.out:endless")
    assert "call ends\n" in re.sub(" +", " ", shown)
    assert re.search(r"jmp endless\+0x[0-9a-f]+\n", shown.replace(" \n", "\n"))
    order = ["rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11"]
    for line in re.findall(r"^  (?:registers|dead)  +(.*)$", shown, re.MULTILINE):
        assert [name for name in order if name in line.split()] == [name for name in line.split() if name in order]


def test_what_is_refused_before_it_is_planned_is_explained_too(explained):
    assert explained("a.out:ends+0x1").startswith("refused: no instruction starts here; nearest: ")
    document = json.loads(explained("a.out:ends+0x1", "--json"))
    assert document["refused"].startswith("not-an-instruction-boundary: ")
    assert document["disassembly"] == []
    assert explained("libc:__restore_rt").startswith("refused: this code must never be displaced")
