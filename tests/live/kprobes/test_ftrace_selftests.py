"""The kernel's ftrace selftests of kprobes, one by one under their own names, for programs."""

import errno
import re
import subprocess

import pytest

import anyprobe
from anyprobe.kprobes import debugfs
from anyprobe.kprobes.events.errors import Problem
from anyprobe.kprobes.events.table import Events
from anyprobe.probes.providers.function.outside import listing
from support.driver import build, started

pytestmark = pytest.mark.live
PLACES = 256
"""How many bytes of a function the originals try."""


@pytest.fixture
def events(session):
    return Events()


@pytest.fixture
def traced():
    with started(build("traced.c", "-O2")) as running:
        yield running


def optimized(pid):
    """Return how many lines of the list, as somebody else reads it, are optimized."""
    return sum("OPTIMIZED" in line.flags for line in listing.inspect(pid).registered)


@pytest.mark.parametrize("function", ["shapes", "stepped", "recursive"])
def test_kprobe_insn_boundary(target, session, events, function):
    """What is accepted at 256 places, one byte apart, is enabled together, runs, and goes without a trace."""
    (site,), _ = session.resolve(f"a.out:{function}")
    before = session.process.mem.read(site.address, PLACES)
    accepted = [at for at in range(PLACES) if events.write(f"p:at_{at} {function}+{at}") == 0]
    inside = {at + site.address for at in accepted if at < site.function.size}
    assert inside == {address for address in instructions(session, function) if address in inside}
    assert len(inside) >= 3
    refused = [log for log in events.error_log if Problem.BAD_INSN_BNDRY.value in log]
    assert len(refused) >= site.function.size - len(instructions(session, function))
    events.enable("kprobes/")
    target.go(2)
    profile = {line.split()[0]: int(line.split()[1]) for line in events.profile().splitlines()}
    assert profile["at_0"] > 0
    events.enable("kprobes/", on=False)
    assert events.clear() == 0
    assert session.process.mem.read(site.address, PLACES) == before
    target.go(1)
    target.finish()


def instructions(session, function):
    """Return the addresses of a function's instructions, by the program's own disassembly."""
    (site,), _ = session.resolve(f"a.out:{function}")
    listed = subprocess.run(
        ["objdump", "-d", f"--disassemble={function}", site.object.path], capture_output=True, text=True, check=True
    ).stdout
    bias = site.object.bias
    lines = re.findall(r"^ *([0-9a-f]+):\t(?:[0-9a-f]{2} )+ *\t", listed, re.MULTILINE)
    return {int(address, 16) + bias for address in lines}


def test_kprobe_opt_types(target, session, events):
    """One place after the other, at least one is optimized, all are unregistered, and nothing is left."""
    found = 0
    for at in range(PLACES):
        if events.write(f"p:testprobe chosen+{at}") != 0:
            continue
        events.enable("testprobe")
        mine = optimized(target.pid)
        assert mine == sum("OPTIMIZED" in line.flags for line in debugfs.listing())
        found += mine
        events.enable("testprobe", on=False)
        assert optimized(target.pid) == 0
        assert events.clear() == 0
        if at > 32:  # the rest is other functions
            break
    assert found >= 1
    target.go(1)
    target.finish()


def test_busy_check(traced):
    with anyprobe.attach(traced.pid):
        events = Events()
        assert events.write("p:mine fetched") == 0
        events.enable("mine")
        assert events.clear() == events.write("-:mine") == -errno.EBUSY
        assert "busy" in events.error_log[-1].lower() or Problem.BUSY.value in events.error_log[-1]
        assert str(events) == "p:kprobes/mine fetched\n"
        traced.go(1)
        events.enable("mine", on=False)
        assert events.write("-:mine") == 0
        assert str(events) == ""
    traced.finish()


def test_kprobe_multiprobe(target, events):
    one, other = "p:kprobes/testevent chosen", "p:kprobes/testevent stepped"
    assert events.write(f"{one}\n{other}") == 0
    assert str(events).splitlines() == [one, other]
    assert events.write("-:kprobes/testevent") == 0
    assert str(events) == ""
    assert events.write(f"{one}\n{other}") == 0
    assert events.write("-:kprobes/testevent nowhere") == -errno.ENOENT
    assert events.write("-:kprobes/testevent chosen") == 0
    assert str(events).splitlines() == [other]
    assert events.write("p:kprobes/testevent chosen $stack") == -errno.EEXIST
    events.enable("testevent")
    target.go(1)
    assert events.profile().split() == ["testevent", "4000", "0"]
    target.finish()


def test_probepoint(target, session, events):
    """By symbol, by address, by symbol and offset; not before a symbol, nor far behind."""
    (site,), _ = session.resolve("a.out:chosen")
    for place in ("chosen", f"{site.address:#x}", f"{site.address}", "chosen+5", "chosen+0x5", "a.out:chosen+0"):
        assert events.write(f"p:testprobe {place}") == 0, events.error_log
        (line,) = debugfs.listing()
        assert line.address == site.address + (5 if "5" in place[-3:] and "+" in place else 0)
        assert events.write("-:testprobe") == 0
    for place in ("chosen-1", "chosen-0", "chosen+4294967296", "chosen+99999", "chosen+1", f"{site.address + 1:#x}"):
        assert events.write(f"p:testprobe {place}") < 0
        assert str(events) == ""
    target.go(1)
    target.finish()


def test_kprobe_eventname(events):
    """Names made up, of the user's own, and of symbols with dots."""
    assert events.write("p chosen\np:mine chosen\np:group/mine chosen\np chosen+5\nr asked\np libc:getpid") == 0
    assert [line.split()[0] for line in str(events).splitlines()] == [
        "p:kprobes/p_chosen_0", "p:kprobes/mine", "p:group/mine", "p:kprobes/p_chosen_5", "r:kprobes/r_asked_0",
        "p:kprobes/p_getpid_0",
    ]  # fmt: skip
    assert events.clear() == 0


def test_kretprobe_maxactive(target, events):
    assert events.write("p1:testprobe chosen") == events.write("r1a1:testprobe chosen") == -errno.EINVAL
    assert events.write("r100000:testprobe chosen") == -errno.E2BIG
    assert events.write("r10:testprobe chosen\nr10 asked\nr:plain chosen") == 0
    assert str(events) == "r10:kprobes/testprobe chosen\nr10:kprobes/r_asked_0 asked\nr:kprobes/plain chosen\n"
    events.enable("kprobes/")
    target.go(1)
    assert [line.split()[1:] for line in events.profile().splitlines()] == [["100", "0"], ["1", "0"], ["100", "0"]]
    target.finish()


def test_kretprobe_return_suffix(target, events):
    assert events.write("p:suffix chosen%return $retval:u64\nr:letter chosen $retval:u64") == 0
    events.enable("kprobes/")
    target.go(1)
    lines = [line.partition(": ")[2] for line in events.lines(final=True)]
    values = {
        name: [line.rpartition(" ")[2] for line in lines if line.startswith(name)] for name in ("suffix", "letter")
    }
    assert len(values["suffix"]) == 100
    assert values["suffix"] == values["letter"]
    target.finish()


def test_multiple_kprobes(target, session, events):
    """256 functions, enabled and disabled at once; 10,000 are in the torture tests."""
    libc = session.objects.libc()
    names = [each.name for each in libc.image.functions.all() if each.size >= 32 and not each.is_ifunc][::4]
    made = 0
    for name in names:
        made += made < 256 and events.write(f"p:probe_{made} libc:{name}") == 0
    assert made == 256
    events.enable("kprobes/")
    assert optimized(target.pid) == 256
    target.go(1)
    events.enable("kprobes/", on=False)
    assert optimized(target.pid) == 0
    assert events.clear() == 0
    assert listing.inspect(target.pid).registered == []
    target.go(1)
    target.finish()


def test_profile(target, events):
    assert events.write("p:called stepped\np:idle chosen\nr1:returns recursive") == 0
    events.enable("called")
    events.enable("returns")
    counts = target.go(3)
    rows = {line.split()[0]: tuple(map(int, line.split()[1:])) for line in events.profile().splitlines()}
    assert rows["called"] == (counts.calls["stepped"], 0)
    assert rows["idle"] == (0, 0)
    assert rows["returns"] == (3, counts.calls["recursive"] - 3)  # one is followed at a time, the others are missed
    target.finish()
