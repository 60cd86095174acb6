"""Handlers of returns that run where callers go on: calls, results and data are those of the program's own record."""

import pytest

import anyprobe
from anyprobe import Count, Sum, emit, i64, u64
from support.driver import wait_until
from support.image import Image
from support.learning import after_learning, copied, since
from support.results import timing

pytestmark = pytest.mark.live
NAMES = [f"f{number}" for number in range(8)]
ALL = ("ends", "by_pointer", "deep", "joined", "leaps", "ping", "pong")
WAYS = ("auto", "callers")
ROUNDS = 30
MAIN = 'extern "C" int run(int, char **); int main(int argc, char **argv) { return run(argc, argv); }'
PLAIN = """
#include "protocol.h"
PROBED static int add(int n) { return n + 3; }
PROBED static int fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2) + (n & 0); }
PROBED static long twice(long n) { long r = add((int)n); return n & 1 ? r * 2 : r; }
static int (*volatile pointer)(int) = add;
static volatile long sink;
static void setup(int argc, char **argv) { (void)argc; (void)argv; }
static void one_round(void) {
    for (int n = 0; n < 10; n++) { sink += fib(n); sink += twice(n); sink += pointer(n); }
}
"""


def known(session, target, sites):
    """Have the program make calls until every return point that it has is known."""
    for _ in range(60):
        target.go(12)
        session.pump(0.05)
        before = sum(site.learning for site in sites())
        target.go(12)
        if sum(site.learning for site in sites()) == before:
            return
    raise AssertionError("something is learnt for ever")


def ends_of(session):
    return lambda: [site for site in session.snapshot().sites if site.kind == "return"]


@pytest.fixture
def random_calls(run_target, compiled):
    """Start the program of random calls, as a library whose functions call each other through its PLT, or as it is."""

    def start(*options, library=False):
        if not library:
            return run_target("random_calls.cpp", *options, options=("-O2", "-pthread"))
        made = compiled("random_calls.cpp", "-shared", "-fPIC", "-Dmain=run", "-pthread")
        linked = (str(made), f"-Wl,-rpath,{made.parent}")
        return run_target("calls_main.cpp", *options, options=linked, text=MAIN)

    return start


@pytest.mark.parametrize("returns", WAYS)
@pytest.mark.parametrize(
    "options",
    [
        "1",
        "8",
        "8 coroutines",
        "8 library",
        "1 wild",
        "8 wild",
        "8 wild coroutines",
        "8 signals",
        "8 wild coroutines signals",
    ],
)
def test_random_calls_and_results_are_those_of_the_program_s_own_record(random_calls, options, returns):
    """Tail calls by names, pointers, PLT and virtual functions, recursion, exceptions, longjmp, coroutines, signals."""
    words = options.split()
    target = random_calls(*(word for word in words if word != "library"), library="library" in words)
    module = "random_calls" if "library" in words else "a.out"
    results, seen, missing = Sum("results", by=("func",)), Count("seen", by=("func",)), Count("missing", by=("func",))
    with anyprobe.attach(target.pid, returns=returns, maxactive=4096) as session:

        @session.ret(*(f"{module}:{name}" for name in NAMES), retval=i64)
        def returned(ctx):
            if ctx.retval is None:
                missing.add(key=(ctx.func,))
            else:
                seen.add(key=(ctx.func,))
                results.add(ctx.retval, key=(ctx.func,))

        assert not session.refused
        for _ in range(10):  # until no call comes from where none has come before
            known(session, target, ends_of(session))
            start = {each.name: by_function(each) for each in (seen, missing)}
            sums, before = by_function(results, "sum"), copied(target.counts)
            missed, learning = (sum(getattr(s, of) for s in ends_of(session)()) for of in ("nmissed", "learning"))
            own = target.go(ROUNDS)
            missed = sum(site.nmissed for site in ends_of(session)()) - missed
            if sum(site.learning for site in ends_of(session)()) == learning:
                break
        for name in NAMES:
            record = since(before, own, name)
            found = by_function(seen).get(name, 0) - start["seen"].get(name, 0)
            told = name, found, record, missed
            assert by_function(missing).get(name, 0) == start["missing"].get(name, 0), told
            if "signals" in words:  # a handler may run while the program says what it has counted
                continue
            assert found <= record["returns"], told
            if "wild" not in words:
                assert (found, missed) == (record["calls"], 0), told
                assert by_function(results, "sum")[name] - sums.get(name, 0) == record["tails"], told
        if "wild" in words and "signals" not in words:
            everything = [since(before, own, name) for name in NAMES]
            all_seen = sum(by_function(seen).values()) - sum(start["seen"].values())
            assert all_seen + missed >= sum(record["returns"] for record in everything)
    target.go(2)
    target.finish()


def by_function(aggregation, field="count"):
    """Return an aggregation's counts, or sums, by the function's name."""
    entries = aggregation.result().entries
    return {key[0].rpartition(":")[2]: getattr(cell, field) for key, cell in entries.items()}


@pytest.mark.parametrize("returns", WAYS)
@pytest.mark.parametrize("options", ["1", "8", "8 library"])
def test_random_calls_are_nested_as_the_program_s_own_record_has_it(random_calls, options, returns):
    """Who made which calls, by tail calls too; calls that the record has and the tree has not are the learning ones."""
    target = random_calls(options.split()[0], "shallow", library="library" in options)
    module = "random_calls" if "library" in options else "a.out"
    with anyprobe.attach(target.pid, returns=returns, maxactive=4096, call_tree=True) as session:
        session.time(*(f"{module}:{name}" for name in NAMES))
        then, snapshot, before, own = after_learning(session, target, ROUNDS)
        first, last = edges_of(then), edges_of(snapshot)
    assert all(timing(snapshot, name).learning == timing(then, name).learning for name in NAMES)
    assert all(each.tail_exits == each.nmissed == 0 for each in snapshot.functions)
    assert all(each.left == each.in_flight == 0 for each in snapshot.functions)
    found = {edge: last[edge] - first.get(edge, 0) for edge in last}
    wanted = {
        (name[1], name[2]): calls
        for name in own.calls
        if name.startswith("e") and (calls := since(before, own, name)["calls"])
    }
    assert {edge: calls for edge, calls in found.items() if calls} == wanted
    target.finish()


def edges_of(snapshot):
    """Return how often each function called each other one, by the ends of their names; N is nobody."""
    from anyprobe.data.findings.calltree import by_caller

    edges = {}
    for each in by_caller(snapshot.tree):
        edge = (each.caller or "N")[-1], each.function[-1]
        edges[edge] = edges.get(edge, 0) + each.count
    return edges


def test_both_ways_have_the_same_calls_and_results_one_by_one(run_target):
    """Of functions with plain returns: what exits see is what callers see, after learning."""
    lists = {}
    for returns in ("exits", "callers"):
        target = run_target("plain_returns.c", text=PLAIN)
        with anyprobe.attach(target.pid, returns=returns) as session:

            @session.call(*(f"a.out:{name}" for name in ("add", "fib", "twice")))
            def called(ctx):
                ctx.data.argument = ctx.regs.rdi
                ctx.data.began = ctx.now

            @called.ret
            def returned(ctx):
                if ctx.retval is not None:
                    emit(
                        "call",
                        of=ctx.func,
                        argument=u64(ctx.data.argument),
                        result=u64(ctx.retval),
                        took=ctx.now - ctx.data.began,
                    )

            for _ in range(20):
                target.go(1)
                session.pump(0.03)
            list(session.rows())
            target.go(3)
            rows = [row for _, row in session.rows()]
            assert all(site.nmissed == 0 for site in session.snapshot().sites)
        lists[returns] = [(row["of"].rpartition(":")[2], row["argument"], row["result"] & 0xFFFFFFFF) for row in rows]
        assert all(row["took"] >= 0 for row in rows)
        target.finish()
    assert len(lists["exits"]) > 500
    assert lists["callers"] == lists["exits"]


@pytest.mark.parametrize("live", [False, True], ids=["stop", "live"])
@pytest.mark.parametrize("returns", WAYS)
def test_handlers_come_and_go_while_the_program_runs(run_target, returns, live):
    """All that was spliced in callers goes with them, and comes again."""
    target = run_target("return_points.c", options=("-O2",))
    image = Image.of(target.pid)
    target.run_freely()
    results = Count("results")
    with anyprobe.attach(target.pid, returns=returns, live=live) as session:
        for _ in range(3):

            @session.ret(*(f"a.out:{name}" for name in ALL))
            def returned(ctx):
                if ctx.retval is not None:
                    results.add()

            probes = session.handling.probes_of(returned)
            for _ in range(2):
                session.enable(*probes)
                before = results.result().total.count
                wait_until(lambda: session.pump(0.02) and results.result().total.count > before, "returns are seen")  # noqa: B023
                session.remove(*probes)
                target.check_alive()
        assert not session.refused
    target.halt()
    image.assert_restored(target.pid)
    target.finish()
