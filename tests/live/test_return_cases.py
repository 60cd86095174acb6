"""What tests of returns ask elsewhere, asked here: DTrace's, uftrace's, bpftrace's and the kernel's, written anew.

Each asks for results of one program, call by call. Its output stays as it is without probes.
"""

import subprocess
from collections import Counter

import pytest

import anyprobe
from anyprobe import Count, cstr, emit, i8, i32, i64, u64
from support.driver import build
from support.results import timing

pytestmark = pytest.mark.live
WAYS = ("auto", "exits", "callers")
"""Where the ends of calls are looked for."""
DEPTH = 200
"""Of recursion: the kernel follows 64 returns of a thread."""


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def fib_calls(n):
    """Return the arguments of all calls that one makes, itself included."""
    return Counter([n]) + (fib_calls(n - 1) + fib_calls(n - 2) if n > 1 else Counter())


FIB = fib_calls(12) + fib_calls(5)
"""Of the program, and of its fork child."""
RESULTS = {
    "int_add": Counter({1: 2, 2: 1, 9: 1}),
    "int_sub": Counter({-1: 1, 6: 1}),
    "int_mul": Counter({12: 1, 25: 1}),
    "int_div": Counter({-2: 1}),
    "fib": sum((Counter({fib(n): times}) for n, times in FIB.items()), Counter()),
    "leaves": Counter({5: 1}),
    "calls_leaving": Counter({6: 1}),
    "tries": Counter({6: 1, 101: 1, 102: 1}),
    "interrupted": Counter({3: 1, 4: 1}),
    "waits": Counter({42: 1}),
    "jumps": Counter({9: 1}),
}
"""Of functions that return ``int``; two calls of ``leaves`` and ``calls_leaving`` are left by ``longjmp``."""
OTHERS = {
    "depth": (i64, Counter(range(DEPTH + 1))),
    "on_stack": (i64, Counter([1000, 70000])),
    "return_pointer": (u64, Counter([0x7F0012345678])),
    "return_char": (i8, Counter([-2])),
}


@pytest.fixture(scope="module")
def program():
    return str(build("return_cases.c", "-w"))


def run(program, tmp_path, place, **options):
    """Run it with what ``place`` places; return the snapshot. Its output is as it is without probes."""
    output = tmp_path / "output"
    with output.open("wb") as stdout, anyprobe.run([program], stdout=stdout, maxactive=512, **options) as session:
        place(session)
        assert not session.refused
        session.resume()
        session.pump(60)
        assert session.wait(180) == 0
        snapshot = session.snapshot()
    assert output.read_bytes() == subprocess.run([program], stdout=subprocess.PIPE, check=True).stdout
    return snapshot


def found(results):
    """Return results by function."""
    by_function = {}
    for (function, value), cell in results.items():
        by_function.setdefault(function.rpartition(":")[2], Counter())[value] += cell.count
    return by_function


@pytest.mark.parametrize("returns", WAYS)
def test_results_one_by_one(program, tmp_path, returns):
    """DTrace's tst.ret1, ret2, multi-return; uftrace's t063_retval; bpftrace's ``retval``; the kernel's kretprobe_args.

    Recursion, tail calls, calls that are left, wait in a coroutine, or are made in a signal handler or a fork child.
    """
    results = Count("results", by=("function", "value"))

    def place(session):
        @session.ret(*(f"a.out:{name}" for name in RESULTS), retval=i32)
        def returned(ctx):
            if ctx.retval is not None:
                results.add(key=(ctx.func, ctx.retval))

    snapshot = run(program, tmp_path, place, returns=returns)
    expected = dict(RESULTS)
    if returns == "exits":
        del expected["jumps"]  # it ends in a jump, where there is no result yet
    assert found(results) == expected
    assert snapshot.nmissed == (4 if returns == "callers" else 0)  # those that are left


@pytest.mark.parametrize("returns", WAYS)
def test_handlers_of_one_return_run_in_their_order(program, returns):
    """bpftrace's uretprobe_order; where calls end in callers, too."""
    with anyprobe.run([program], stdout=subprocess.DEVNULL, returns=returns) as session:

        @session.ret("a.out:fib", "a.out:jumps")
        def first(ctx):
            emit("first", func=ctx.func)

        @session.ret("a.out:fib", "a.out:jumps")
        def second(ctx):
            emit("second", func=ctx.func)

        assert not session.refused
        session.resume()
        session.pump(60)
        assert session.wait(180) == 0
        times = {"first": [], "second": []}
        for name, row in session.rows(final=True):
            times[name].append(row["ts"])
    assert len(times["first"]) == len(times["second"]) == FIB.total() + 1
    in_order = [time for pair in zip(*times.values(), strict=True) for time in pair]
    assert in_order == sorted(in_order)  # the clock may not tell two from each other
    assert len({*in_order}) > FIB.total()


@pytest.mark.parametrize("returns", WAYS)
def test_returns_of_a_glob(program, tmp_path, returns):
    """bpftrace's uretprobe_multi_wildcard, in its own words."""
    results = Count("results", by=("function", "value"))

    def place(session):
        @session.ret("uretprobe:a.out:int_*", retval=i32)
        def returned(ctx):
            results.add(key=(ctx.func, ctx.retval))

    run(program, tmp_path, place, returns=returns)
    assert found(results) == {name: values for name, values in RESULTS.items() if name.startswith("int_")}


@pytest.mark.parametrize("name", OTHERS)
def test_results_of_other_types(program, tmp_path, name):
    """uftrace's t062_arg_char; bpftrace's pointers; recursion deeper than the kernel follows."""
    kind, expected = OTHERS[name]
    results = Count("results", by=("function", "value"))

    def place(session):
        @session.ret(f"a.out:{name}", retval=kind)
        def returned(ctx):
            results.add(key=(ctx.func, ctx.retval))

    run(program, tmp_path, place)
    assert found(results) == {name: expected}


def test_texts_that_are_returned(program, tmp_path):
    """uftrace's t059_arg_str; bpftrace's ``str(retval)``."""
    results = Count("results", by=("value",))

    def place(session):
        @session.ret("a.out:return_text")
        def returned(ctx):
            results.add(key=(cstr(ctx.retval, 16),))

    run(program, tmp_path, place)
    assert {key: cell.count for (key,), cell in results.items()} == {"none": 1, "some": 1}


def test_arguments_are_known_at_the_return(program, tmp_path):
    """The kernel's kretprobe_entry_arg; bpftrace's ``@arg[tid] = arg0``, which recursion would spoil."""
    results = Count("results", by=("n", "result"))

    def place(session):
        @session.call("a.out:fib")
        def called(ctx, n: i32):
            ctx.data.n = n

        @called.ret
        def returned(ctx):
            results.add(key=(ctx.data.n, i32(ctx.retval)))

    run(program, tmp_path, place)
    assert Counter({key: cell.count for key, cell in results.items()}) == Counter(
        {(n, fib(n)): times for n, times in FIB.items()}
    )


@pytest.mark.parametrize("returns", WAYS)
@pytest.mark.parametrize("options", [{}, {"self_time": True}, {"call_tree": True}])
def test_calls_are_timed_whatever_they_return(program, tmp_path, options, returns):
    """uftrace's t051_return, t052_nested_func, t013_signal, t014_ucontext, t015_longjmp, t016_alloca and t009_fork."""
    counts = {name: results.total() for name, results in RESULTS.items()}
    counts |= {name: results.total() for name, (_, results) in OTHERS.items()}
    counts |= {"return_small": 1, "return_large": 1, "return_long_double": 1, "return_double": 1, "in_handler": 2}
    snapshot = run(
        program, tmp_path, lambda session: session.time(*(f"a.out:{n}" for n in counts)), returns=returns, **options
    )
    timed = {name: timing(snapshot, name) for name in counts}
    if returns == "exits":
        assert (timed["jumps"].count, timed["jumps"].tail_exits) == (0, 1)
        counts["jumps"] = 0
    if returns == "callers":  # the kernel has called it
        assert (timed["in_handler"].count, timed["in_handler"].learning) == (0, 2)
        counts["in_handler"] = 0
    assert {name: each.count for name, each in timed.items()} == counts
    assert {(each.nmissed, each.unmatched) for each in timed.values()} == {(0, 0)}
    assert sum(each.learning for each in timed.values()) == (2 if returns == "callers" else 0)
    if options:
        left = {name: each.left for name, each in timed.items() if each.left}
        assert left == {"leaves": 2, "calls_leaving": 2}
        assert timed["depth"].nested.outermost_ns == pytest.approx(timed["depth"].max_ns, rel=1e-6)
