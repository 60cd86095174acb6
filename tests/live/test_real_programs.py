"""Acceptance: real programs with all functions of all their modules counted while they run.

Same results as unprobed; the share of functions by strategy, and the refusals, are printed.
"""

import shutil
import subprocess

import pytest

import anyprobe
from support.driver import Target
from support.filter_programs import FILTERS, PYTHON, PYTHON_MODULES, python_tests
from support.filters import EACH, LEVELS, functions_run, print_shares, sample, specs_of
from support.redis_server import redis
from support.results import hits


def count_everything(session: "anyprobe.Session", *, exits: bool = False) -> None:
    """Count all functions of all modules."""
    session.count(*LEVELS["exits" if exits else "entries"])


def need(*programs: str) -> None:
    """Skip where a program is missing."""
    for program in programs:
        if not shutil.which(program):
            pytest.skip(f"needs {program}")


@pytest.mark.sliced(2)
@pytest.mark.parametrize("level", ["entries", "exits"])
@pytest.mark.parametrize("name", ["gzip", "gunzip", "xz", "unxz", "sqlite3", "busybox"])
def test_functions(name, level):
    """Compressed and unpacked, an SQL script, a checksum by a static program: the output is the unprobed one."""
    program = FILTERS[name]()
    output, snapshot = program.probed(lambda session: session.count(*LEVELS[level]))
    print_shares(f"{name}, {level}", snapshot)
    assert snapshot.hits > 100
    assert output == program.plain()


@pytest.mark.sliced(3)
@pytest.mark.parametrize("level", EACH)
@pytest.mark.parametrize("name", ["gzip", "bc", "ripgrep"])
def test_blocks_and_instructions(name, level):
    """Of some functions that run, in the program (C and Rust, stripped) and its libraries."""
    program = FILTERS[name]()
    expected = program.plain()
    _, snapshot = program.probed(lambda session: session.count("*:*"))
    functions = sample(functions_run(snapshot), 60, seed=1)
    output, snapshot = program.probed(lambda session: session.count(*specs_of(session, functions, level)))
    print_shares(f"{name}, {level} of {len(functions)} functions", snapshot)
    assert snapshot.hits > 100
    assert output == expected


def test_cpythons_own_tests():
    """Modules of ``python3 -m test``: as many tests run, fail and are skipped as without probes."""
    program = python_tests(*PYTHON_MODULES[:4])()
    output, snapshot = program.probed(lambda session: session.count("*:*"))
    print_shares("python3 -m test", snapshot)
    assert output == program.plain()


WORK = """
import gzip, hashlib, json, lzma, re, sys, zlib
def work(n):
    h = hashlib.sha256()
    for i in range(n):
        d = {"i": i, "l": list(range(i % 50)), "s": "x" * (i % 97), "f": i / 7}
        s = json.dumps(d, sort_keys=True)
        assert json.loads(s) == d
        z = zlib.compress(s.encode() * 5)
        assert zlib.decompress(z) == s.encode() * 5
        try:
            int("x%d" % i)
        except ValueError as e:
            s += str(e)
        h.update(re.sub(r"[0-9]+", lambda m: m.group() * 2, s).encode() + bytes(sorted(z)))
    return h.hexdigest()
print("ready", flush=True)
for line in sys.stdin:
    print(work(int(line)), flush=True)
"""


EXITS_TOO = pytest.mark.parametrize("exits", [False, pytest.param(True, marks=pytest.mark.torture)])
"""Tens of thousands of exits are planned."""


@EXITS_TOO
@pytest.mark.timeout(600)
def test_python_with_everything_counted(exits):
    """A script of JSON, hashing, compression and regular expressions gives the same digest, before, during, after."""
    with subprocess.Popen([PYTHON, "-c", WORK], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def work() -> str:
            process.stdin.write("400\n")
            process.stdin.flush()
            return process.stdout.readline()

        assert process.stdout.readline() == "ready\n"
        expected = work()
        with anyprobe.attach(process.pid) as session:
            count_everything(session, exits=exits)
            assert work() == expected
            print_shares("python3", session.snapshot())
            assert session.snapshot().hits > 100_000
        assert work() == expected
        process.stdin.close()
        process.stdin = None
        assert process.wait(180) == 0


@EXITS_TOO
@pytest.mark.timeout(600)  # everything is counted, and the benchmark runs twice
def test_redis_under_its_benchmark(tmp_path, exits):
    """redis-server with everything counted, under redis-benchmark: no errors, the same data in keys of every type."""
    with redis(tmp_path) as server:
        expected = server.benchmark()
        with anyprobe.attach(server.pid) as session:
            count_everything(session, exits=exits)
            assert server.benchmark() == expected
            assert print_shares("redis-server", session.snapshot()) > 0.98  # it handles faults
        assert server.ask("get", "k") == "500500"


def test_go_program(compiled):
    """Goroutines, growing stacks, preemption by signals: everything counted, results right, main.Work exact."""
    target = Target([compiled("go_program.go")])
    try:
        before = target.go(1).calls["main.Work"]
        with anyprobe.attach(target.pid) as session:
            session.count("a.out:*")
            counts = target.go(30)
            print_shares("a Go program", session.snapshot())
            assert hits(session.snapshot(), "main.Work") == counts.calls["main.Work"] - before
        target.go(5)
        target.finish()
    finally:
        target.close()


def test_what_a_go_program_has_no_thread_slots_for(compiled):
    """Assembly may run without a goroutine: it is not timed, and the refusal says why; handlers run all the same."""
    target, calls = Target([compiled("go_program.go")]), anyprobe.Count("calls")
    try:
        with anyprobe.attach(target.pid) as session:
            session.time("a.out:runtime.memmove")

            @session.entry("a.out:main.Work")
            def on_work():
                calls.add()

            ((_, timing),) = session.refused
            assert timing.reason.value == "go-timing"
            before = target.go(1).calls["main.Work"]
            at_first = int(calls)
            assert target.go(5).calls["main.Work"] - before == int(calls) - at_first
        target.finish()
    finally:
        target.close()


def test_static_musl_program(run_target):
    """Everything in a static musl program, entries and exits."""
    target = run_target("static_program.c", options=("-static",), compiler="musl-gcc")
    with anyprobe.attach(target.pid) as session:
        count_everything(session, exits=True)
        counts = target.go(2000)
        print_shares("a static musl program", session.snapshot())
        assert hits(session.snapshot(), "plain") == counts.calls["plain"]
        assert hits(session.snapshot(), "plain", "return") == counts.calls["plain"]
    target.go(5)
    target.finish()


def test_cplusplus_program(run_target):
    """Exceptions with everything counted in all modules: libstdc++, the unwinder, libc."""
    target = run_target("exceptions.cpp")
    with anyprobe.attach(target.pid) as session:
        count_everything(session, exits=True)
        counts = target.go(500)
        print_shares("C++ exceptions", session.snapshot())
        assert hits(session.snapshot(), "thrower") == counts.calls["thrower"]
    target.go(5)
    target.finish()


@pytest.mark.parametrize("live", [False, True], ids=["stopped", "live"])
@pytest.mark.parametrize("kind", ["insn", "block", "call"])
@pytest.mark.sliced(2)
def test_exceptions_fly_where_everything_is_displaced(run_target, kind, live):
    """The unwinder, the personality and the program that throws, each instruction, block or call of theirs."""
    target = run_target("exceptions.cpp")
    specs = [f"{where}%{kind}" for where in ("a.out:*", "libgcc_s:*", "libstdc++:__cxa_*", "libstdc++:__gxx_*")]
    with anyprobe.attach(target.pid, live=live) as session:
        probes = session.count(*specs)
        places = [place for probe in probes for place in probe.all_places]
        assert sum(place.hook.armed for place in places) > 0.99 * len(places) > 100
        assert all(place.hook.armed or place.hook.refusal is not None for place in places)
        entry = session.count("a.out:thrower")
        counts = target.go(500)
        snapshot = session.snapshot()
        assert hits(snapshot, "thrower", "entry") == counts.calls["thrower"]
        assert all(probe.armed for probe in entry)
    target.go(5)
    target.finish()


TIMES = """
import sys, time
print("ready", flush=True)
for line in sys.stdin:
    before = time.monotonic_ns(), time.time_ns()
    for _ in range(int(line)):
        time.clock_gettime(time.CLOCK_MONOTONIC)
    print(time.monotonic_ns() > before[0] and abs(time.time_ns() - before[1]) < 60e9, flush=True)
"""


def test_the_vdso_by_instruction():
    """Its code reads below itself, where link-time addresses are negative: the clocks go on, and each call is seen."""
    with subprocess.Popen([PYTHON, "-c", TIMES], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def ask(calls: int) -> str:
            process.stdin.write(f"{calls}\n")
            process.stdin.flush()
            return process.stdout.readline()

        assert process.stdout.readline() == "ready\n"
        with anyprobe.attach(process.pid) as session:
            session.count("vdso:*:insn")
            assert ask(1000) == "True\n"
            first = [site for site in session.snapshot().sites if site.function == "clock_gettime" and site.offset == 0]
            assert [site.hits >= 1000 for site in first] == [True]
        assert ask(10) == "True\n"
        process.stdin.close()
        process.stdin = None
        assert process.wait(180) == 0
