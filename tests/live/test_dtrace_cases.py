"""What DTrace's own tests of its pid provider ask, asked here: named after them, written anew."""

import subprocess

import pytest

import anyprobe
from live.test_offsets import boundaries
from support.compilation import compiled_under, instructions_of, needs_gcc
from support.results import hits, sites_of


@pytest.fixture
def target(run_target):
    return run_target("several_returns.c")


def test_offsets(target):
    """tst.offsets: hot and cold instructions, all probed at once, each counted as objdump's listing has it."""
    listing = boundaries(f"/proc/{target.pid}/exe", "hot_and_cold")
    top = next(int(text.split()[1], 16) for text in listing.values() if text.startswith("jne"))
    with anyprobe.attach(target.pid) as session:
        (site,) = session.resolve("a.out:hot_and_cold")[0]
        first = top - site.function.start
        last = next(offset for offset, text in listing.items() if text.startswith("jne"))
        session.count(*(f"a.out:hot_and_cold+{offset:#x}" for offset in listing))
        calls = target.go(10).calls["hot_and_cold"]
        found = {each.offset: each.hits for each in session.snapshot().sites}
    assert calls == 10
    assert found == {offset: 10 * 1000 if first <= offset <= last else 10 for offset in listing}
    assert sorted(found.values()).count(10_000) == 5
    target.finish()


def test_entry_off0(target):
    """tst.entry_off0: both ``entry`` and the first instruction's offset see each call."""
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:leaf:entry", "a.out:leaf:0x0")
        calls = target.go(50).calls["leaf"]
        assert {site.kind: site.hits for site in session.snapshot().sites} == {"entry": calls, "offset": calls}
    target.finish()


def test_addprobes(target):
    """tst.addprobes: entries, and in a later session on the same process returns."""
    before = target.go(1).calls["leaf"]
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:leaf:entry")
        counts = target.go(40)
        assert session.snapshot().hits == counts.calls["leaf"] - before
    before = counts.returns["leaf"]
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:leaf:return")
        (site,) = session.snapshot().sites
        assert site.kind == "return"
        returns = target.go(40).returns["leaf"]
        assert session.snapshot().hits == returns - before
    target.finish()


@pytest.mark.parametrize("function", ["leaf", "one_return"])
def test_ret1_and_ret2(target, function):
    """tst.ret1, tst.ret2: the returns of a function that calls another, and of a leaf."""
    with anyprobe.attach(target.pid) as session:
        session.count(f"a.out:{function}:return", f"a.out:{function}:entry")
        counts = target.go(60)
        assert hits(session.snapshot(), function, "return") == counts.returns[function]
        assert hits(session.snapshot(), function) == counts.calls[function]
    target.finish()


def test_multi_return(target):
    """tst.multi-return: each ``ret`` is a site of its own, and counts the calls that left by it."""
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:three_returns:return")
        target.go(100)
        sites = sites_of(session.snapshot(), "three_returns", "return")
        assert sorted(site.hits for site in sites) == [33, 33, 34]
        assert [site.exit_kind for site in sites] == ["ret"] * 3
    target.finish()


def test_a_tail_call_is_a_return_of_its_own_kind(target):
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:last_call:return")
        counts = target.go(100)
        (site,) = sites_of(session.snapshot(), "last_call", "return")
        assert (site.exit_kind, site.hits) == ("tail", counts.tails["last_call"])
    target.finish()


def test_coverage(target):
    """tst.coverage: all instructions of all functions of a running program, again and again; it finds nothing wrong."""
    target.run_freely()
    with anyprobe.attach(target.pid) as session:
        for _ in range(3):
            probes = session.count("a.out:*:insn")
            target.check_alive()
            session.remove(*probes)
        session.count("a.out:*:insn")
        target.halt()
        before = target.go(0).calls["leaf"]
        entered = {s.offset: s.hits for s in session.snapshot().sites if s.function == "leaf"}
        calls = target.go(30).calls["leaf"] - before
        now = {s.offset: s.hits for s in session.snapshot().sites if s.function == "leaf"}
        assert {now[at] - entered[at] for at in now} == {calls}
    target.finish()


def test_program_made_by_gcc(compiled):
    """Every instruction of a program that gcc has made, from its first one on."""
    program = compiled("every_kind.c", "-nostdlib", "-static", "-fno-builtin", "-fno-stack-protector", "-O3")
    plain = subprocess.run([program], capture_output=True)
    with anyprobe.run([str(program)], stdout=subprocess.DEVNULL) as session:
        session.count("a.out:*:insn")
        session.resume()
        assert session.wait(180) == plain.returncode << 8
        assert session.snapshot().hits > 10_000


@needs_gcc
def test_gcc(tmp_path):
    """tst.gcc: the driver and the assembler that it executes, each instruction of what runs; the torture has all."""
    plain, _ = compiled_under({}, tmp_path)
    output, entered = compiled_under({"gcc": ["a.out:*"], "as": ["a.out:*"]}, tmp_path)
    assert output == plain
    plan = {
        "gcc": instructions_of(entered["gcc"]["functions"]),
        "as": instructions_of(entered["as"]["functions"], 60, 1),
    }
    output, counted = compiled_under(plan, tmp_path)
    assert output == plain
    assert counted["gcc"]["hits"] > 400_000
