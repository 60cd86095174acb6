"""Whole sessions, from specs to snapshots, on a target that is memory and an emulator."""

import pytest

from anyprobe import Count, Hist, Sum, i64, ptr
from anyprobe.core.errors import SpecError
from support.driver import MissingTool
from support.simulated.compiled import CompiledProgram

SOURCE = """
__attribute__((noinline)) long twice(long n) { return n + n; }
__attribute__((noinline)) long sum(long n) { long s = 0; for (long i = 1; i <= n; i++) s += twice(i); return s; }
__attribute__((noinline)) long sign(long n) { if (n < 0) return -twice(1); return twice(n) + 1; }
__attribute__((noinline)) long follow(long n) { return n; }
"""


MASK, DATA = (1 << 64) - 1, 0x6000_0000


@pytest.fixture
def program(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    try:
        return CompiledProgram(SOURCE)
    except MissingTool as missing:
        pytest.skip(f"{missing} is not installed")


@pytest.fixture(autouse=True)
def _restored(program):
    """After each test text, memory map and descriptors are as before."""
    target = program.target
    before, text = target.mappings(), target.mem.read(program["twice"], 512)
    yield
    assert target.mappings() == before
    assert target.mem.read(program["twice"], 512) == text
    assert not target.files


def hits(snapshot):
    return {(site.function, site.kind): site.hits for site in snapshot.sites}


def test_entries_and_returns_are_counted(program):
    with program.session() as session:
        session.count("a.out:twice", "a.out:sum", "a.out:sum:return")
        assert not session.refused
        assert program.call("sum", 4) == 20
        counted = {("twice", "entry"): 4, ("sum", "entry"): 1, ("sum", "return"): 1}
        assert hits(session.snapshot()) == counted
    assert hits(session.snapshot()) == counted
    assert program.call("sum", 4) == 20
    assert hits(session.snapshot()) == counted


def test_every_instruction_counts_as_often_as_the_emulator_runs_it(program):
    """Compiled code, by specs, with offsets within functions."""
    names = ("twice", "sum", "sign")
    low, high = program["twice"], program["twice"] + 512
    with program.target.machine.tracing(low, high) as seen:
        results = [program.call(name, n) for name in names for n in (1, 2, 3)]
    with program.session() as session:
        session.count(*(f"a.out:{name}:insn" for name in names))
        assert not session.refused
        assert [program.call(name, n) for name in names for n in (1, 2, 3)] == results
        sites = session.snapshot().sites
        assert len(sites) > 20
        assert {site.address: site.hits for site in sites} == {site.address: seen[site.address] for site in sites}


def test_calls_are_timed(program):
    with program.session() as session:
        session.time("a.out:twice", "a.out:sum")
        assert program.call("sum", 5) == 30
        timings = {each.function: each for each in session.snapshot().functions}
    assert {name: (each.count, each.unmatched, each.in_flight) for name, each in timings.items()} == {
        "twice": (5, 0, 0),
        "sum": (1, 0, 0),
    }
    assert timings["sum"].sum_ns > timings["twice"].sum_ns > 0


def test_probes_are_removed_and_armed_again(program):
    with program.session() as session:
        twice, total = session.count("a.out:twice", "a.out:sum")
        program.call("sum", 3)
        session.remove(twice)
        program.call("sum", 3)
        session.enable(twice)
        session.remove(total)
        program.call("sum", 3)
        found = hits(session.snapshot())
    assert found == {("twice", "entry"): 6, ("sum", "entry"): 2}


def test_a_handler_is_compiled_for_the_target_and_runs_there(program):
    sizes, signs = Hist("sizes"), Count("signs", by=("negative",))
    with program.session() as session:

        @session.entry("a.out:twice")
        def on_entry(n: i64):
            sizes.add(n)

        @session.entry("a.out:sign")
        def on_sign(n: i64):
            if n != 0:
                signs[n < 0].add()

        assert program.call("sum", 6) == 42
        assert [program.call("sign", n & MASK) for n in (5, -3, 0)] == [11, -2 & MASK, 1]
        shown = session.snapshot()
        assert shown
        assert (sizes.result().count, sizes.result().min, sizes.result().max) == (9, 0, 6)
        assert {bool(key[0]): cell.count for key, cell in signs.result().entries.items()} == {False: 1, True: 1}


def test_a_handler_reads_the_program_s_memory_and_misses_what_is_not_there(program):
    values = Sum("values")
    program.target.mem.add(DATA, 4096, "rw-p")
    program.target.mem.write(DATA + 8, (77).to_bytes(8, "little"))
    with program.session() as session:

        @session.entry("a.out:follow")
        def on_follow(n: ptr[i64]):
            values.add(n[1])

        assert program.call("follow", DATA) == DATA
        assert program.call("follow", 0x123) == 0x123
        assert (values.result().count, values.result().sum) == (1, 77)
        assert sum(session.misses().values()) > 0
    program.target.mem.remove(DATA, DATA + 4096)


def test_a_spec_that_means_nothing_changes_nothing(program):
    with program.session() as session:
        with pytest.raises(SpecError, match="twice"):
            session.count("a.out:sum", "a.out:twise")
        assert program.target.stops == 0
        assert not session.probes


def test_what_has_ended_is_no_error_for_the_counts(program):
    session = program.session()
    session.count("a.out:twice")
    program.call("sum", 2)
    program.target.exit_status = 0
    assert hits(session.snapshot()) == {("twice", "entry"): 2}
    program.target.exit_status = None
    session.close()
