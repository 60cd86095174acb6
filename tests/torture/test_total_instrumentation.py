"""Everything of real programs counted or timed while they do what they check themselves: the same results.

Entries and exits, and calls that are timed, are those of all functions of the program and its libraries; blocks and
instructions those of the functions that run, which a first pass finds (at most ``MOST`` of them, chosen anew each
time), and of small programs those of all functions. Sessions attach to a program that runs.
"""

import dataclasses

import pytest

import anyprobe
from support.filter_programs import FILTERS, PYTHON_MODULES, built, python_tests
from support.filters import (
    EACH,
    LEVELS,
    TIMED,
    check_level,
    functions_run,
    place,
    print_shares,
    probed_at,
    run_at,
    sample,
    specs_of,
    started_at,
    stopped,
)
from support.redis_server import redis, redis_started
from support.results import hits

MOST = {"blocks": 3000, "instructions": 300}
SMALL = ("gzip", "xz", "bc", "unzstd")
LARGER = ("zstd", "sqlite3", "sha256", "aes-ctr", "busybox", "rust", "ripgrep", "perl", "python", "cc1")
FLOORS = {"busybox": 0.96, "rust": 0.97, "ripgrep": 0.97}
"""The least share that is counted, where not 0.999, of entries 0.99: less where faults are handled, or the C library is
static."""
WHOLE = [
    *((name, level) for name in (*SMALL, *LARGER) for level in (*EACH, *TIMED)),
    ("gunzip", "blocks"),
    ("unxz", "blocks"),
]
WHOLE.remove(("cc1", "instructions"))  # five million, whose plans take more memory than many machines have
ON_SIGNAL_STACKS = ("runtime.sigtrampgo", "runtime.sigfwdgo")
"""Go functions that run on a signal stack with the goroutine of what they interrupt."""
PARTS = ("*[0-3]?", "*[4-7]?", "*[89ab]?", "*[c-e]?", "*[f-s]?", "*[!0-9a-s]?")
"""Globs of which each name matches one, names that say where a function begins, too."""


def all_specs(name, level):
    """Return the specs of everything; of node's own text, most of which is V8's, some parts."""
    if name == "node":
        own = ("a.out:uv_*", "a.out:EVP_*", "a.out:deflate*", "a.out:inflate*")
        specs = [*own, *(f"{spec}%return" for spec in own)] if level == "exits" else list(own)
        return [*specs, *("lib*:*", "ld-*:*")]
    return LEVELS[level]


@pytest.mark.timeout(3600)  # cc1's levels take a quarter of an hour
@pytest.mark.parametrize("name", FILTERS)
def test_functions_blocks_and_instructions(name):
    program = FILTERS[name]()
    expected = program.plain()
    for level in (*TIMED, "entries", "exits"):
        output, snapshot = probed_at(program, level, *all_specs(name, level))
        assert output == expected
        check_level(program.name, level, snapshot, 0.9)  # less is counted where faults are handled
    functions = functions_run(snapshot)
    for level in EACH:
        assert run_at(program, level, functions, MOST[level]) == expected


@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("name", "level"), WHOLE)
def test_the_whole_of_a_program_and_its_libraries(name, level):
    program = FILTERS[name]()
    output, snapshot = probed_at(program, level)
    assert output == program.plain()
    check_level(f"{program.name}, all", level, snapshot, FLOORS.get(name, 0.99 if level in TIMED else 0.999))


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("level", TIMED)
@pytest.mark.parametrize("name", FILTERS)
def test_timed_from_the_first_instruction_on(name, level):
    program = FILTERS[name]()
    output, snapshot = started_at(program, level, *all_specs(name, level))
    assert output == program.plain()
    check_level(f"{program.name}, started", level, snapshot, 0.9)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", PARTS)
def test_every_instruction_of_a_compiler(part):
    """A part of the functions of cc1 at a time: patches have to lie within two gigabytes of the code."""
    program = FILTERS["cc1"]()
    output, snapshot = probed_at(program, "instructions", f"a.out:{part}:insn")
    assert output == program.plain()
    check_level(f"cc1, functions {part}", "instructions", snapshot, 0.998)


@pytest.mark.parametrize("module", PYTHON_MODULES)
def test_a_module_of_cpythons_tests(module):
    """As many tests run, fail and are skipped as without probes, with the blocks and instructions counted that run."""
    program = python_tests(module)()
    expected = program.plain()
    for level in (*TIMED, "exits"):
        output, snapshot = probed_at(program, level)
        assert output == expected
        check_level(f"{program.name}, {module}", level, snapshot, 0.99)
    for level in EACH:
        assert run_at(program, level, functions_run(snapshot), MOST[level]) == expected


@pytest.mark.parametrize("level", EACH)
def test_redis_under_its_benchmark(level, tmp_path):
    """First all entries, then blocks or instructions of what runs, in one server: the data are what they should be."""
    with redis(tmp_path) as server:
        expected = server.benchmark()
        with anyprobe.attach(server.pid) as session:
            probes = session.count("*:*")
            assert server.benchmark() == expected
            functions = functions_run(session.snapshot())
            session.remove(*probes)
            session.count(*specs_of(session, sample(functions, MOST[level]), level))
            assert server.benchmark() == expected
            snapshot = session.snapshot()
            print_shares(f"redis-server, {level}", snapshot)
            assert snapshot.nmissed == 0


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("level", [*EACH, *TIMED])
def test_the_whole_of_redis(level, tmp_path):
    """Two and a half million instructions: patches have to lie within two gigabytes of the libraries."""
    with redis(tmp_path) as server:
        expected = server.benchmark()
        with anyprobe.attach(server.pid, **TIMED.get(level, {})) as session:
            place(session, level)
            with stopped(server.pid):  # it looks around ten times a second
                before = session.snapshot()
            assert server.benchmark() == expected
            with stopped(server.pid):
                snapshot = session.snapshot()
            check_level("redis-server, all", level, snapshot, 0.97, before)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("level", TIMED)
def test_redis_timed_from_the_first_instruction_on(level, tmp_path):
    with redis(tmp_path) as server:
        expected = server.benchmark()
    with redis_started(tmp_path, lambda session: place(session, level), **TIMED[level]) as (server, session):
        assert server.benchmark() == expected
        with stopped(server.pid):
            check_level("redis-server, started", level, session.snapshot(), 0.97)
        assert server.benchmark() == expected
    check_level("redis-server, from start to end", level, session.snapshot(), 0.97)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("level", [*EACH, *TIMED])
def test_the_whole_of_a_go_program(level, run_target):
    target = run_target("go_program.go")
    with anyprobe.attach(target.pid, **TIMED.get(level, {})) as session:
        place(session, level)
        with stopped(target.pid):  # its runtime is never at rest
            before = session.snapshot()
        target.go(20)
        with stopped(target.pid):
            snapshot = session.snapshot()
        check_level("a Go program, all", level, snapshot, 0.95, before, ON_SIGNAL_STACKS)
    target.go(5)
    target.finish()


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("level", TIMED)
def test_a_go_program_timed_from_the_first_instruction_on(level):
    program = dataclasses.replace(built("go_program.go")(), name="a Go program", given=b"go 20\nhalt\n")
    output, snapshot = started_at(program, level)
    assert output.splitlines()[1:] == program.plain().splitlines()[1:]  # the first one has the number of the process
    check_level(f"{program.name}, started", level, snapshot, 0.95, None, ON_SIGNAL_STACKS)
    assert [each.count for each in snapshot.functions if each.function == "main.Work"] == [20 * 8 * 200]


@pytest.mark.parametrize("level", EACH)
def test_go_program(level, run_target):
    """Goroutines, growing stacks, preemption: blocks or instructions of what runs; its own function counted exactly."""
    target = run_target("go_program.go")
    with anyprobe.attach(target.pid) as session:
        probes = session.count("a.out:*")
        target.go(5)
        functions = [each for each in functions_run(session.snapshot()) if each[1] != "main.Work"]
        session.remove(*probes)
        session.count("a.out:main.Work", *specs_of(session, sample(functions, MOST[level]), level))
        counts = target.go(20)
        snapshot = session.snapshot()
        print_shares(f"a Go program, {level}", snapshot)
        assert hits(snapshot, "main.Work") == counts.calls["main.Work"]  # both probes
    target.go(5)
    target.finish()
