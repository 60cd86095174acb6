"""What handlers see of their hit: where it is, in which function, what the thread is called."""

from collections import Counter

import pytest

import anyprobe
from anyprobe import Count, Map, emit, func, i64, printf, u64
from support.driver import build, started
from support.results import counts

pytestmark = pytest.mark.live
OPTIONS = ("-O2", "-pthread")


@pytest.fixture
def target():
    with started(build("handled.c", *OPTIONS)) as running:
        yield running


def test_functions_are_shown_by_name(target):
    calls, values, callers = Count("calls"), Map("values"), Count("callers")
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:deep", "a.out:answers", "a.out:sized")
        def on_call(ctx):
            calls[ctx.func, 7].add()
            callers[func(ctx.caller)].add()
            values[ctx.func] = 3

        target.go(2)
        found = counts(calls)
        name = session.exe.rpartition("/")[2]
        assert found == {(f"{name}:deep", 7): 42, (f"{name}:answers", 7): 2, (f"{name}:sized", 7): 8000}
        assert session.snapshot().as_json()["aggregations"]["calls"][0]["key"] == [f"{name}:answers", 7]
        (view,) = values.views
        assert set(view.items()) == {(f"{name}:deep",), (f"{name}:answers",), (f"{name}:sized",)}
    by_caller = Counter()
    for (caller,), count in counts(callers).items():
        by_caller[caller.partition("+")[0].partition(".part")[0]] += count
    assert by_caller == {f"{name}:work": 8000, f"{name}:one_round": 4, f"{name}:deep": 40}
    target.finish()


def test_functions_in_records(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:answers", "a.out:ten")
        def on_call(ctx):
            emit("call", function=ctx.func, raw=u64(ctx.func), at=ctx.ip)
            printf(f"in {ctx.func}")

        target.go(2)
        rows = list(session.rows(final=True))
        name = session.exe.rpartition("/")[2]
    assert [row["function"] for kind, row in rows if kind == "call"] == [f"{name}:ten", f"{name}:answers"] * 2
    assert len({row["raw"] for kind, row in rows if kind == "call"}) == 2
    assert [row["field0"] for kind, row in rows if kind != "call"] == [f"{name}:ten", f"{name}:answers"] * 2
    target.finish()


def test_a_function_can_be_kept(target):
    calls = Count("calls")
    with anyprobe.attach(target.pid) as session:

        @session.call("a.out:deep")
        def on_deep(ctx, n: i64):
            here = ctx.func
            ctx.data.who = here

        @on_deep.ret
        def on_deep_done(ctx):
            calls[ctx.data.who].add()

        target.go(1)
        name = session.exe.rpartition("/")[2]
        assert counts(calls) == {(f"{name}:deep",): 21}
    target.finish()


def test_names_of_threads_are_those_of_the_moment():
    names, equal = Count("names"), Count("equal")
    with started(build("thread_names.c", *OPTIONS)) as target:
        with anyprobe.attach(target.pid) as session:

            @session.entry("a.out:step")
            def on_step(ctx):
                names[ctx.comm].add()
                if ctx.comm == "last" and len(ctx.comm) == 4:
                    equal.add()
                emit("named", comm=ctx.comm)

            target.go(2)
            rows = [row["comm"] for _, row in session.rows(final=True)]
            assert session.handling.misses()["fault"] == 0
        target.finish()
    assert counts(names) == {(name,): 20 for name in ("first", "fifteen letters", "", "last")}
    assert counts(equal) == {(): 20}
    assert rows == [name for name in ("first", "fifteen letters", "", "last") for _ in range(10)] * 2


TWINS = """
#include "protocol.h"
long through(long);
PROBED static long twin(long n) { return n + 1; }
static void one_round(void) { for (long n = 0; n < 10; n++) check(twin(n) + through(n) == 2 * n + 4, "twins"); }
static void setup(int argc, char **argv) { (void)argc; (void)argv; }
"""
OTHER_TWIN = """
__attribute__((noinline, noclone, noipa)) static long twin(long n) { return n + 2; }
long through(long n) { return twin(n) + 1; }
"""


def test_functions_of_one_name_are_told_apart(tmp_path):
    calls = Count("calls")
    (tmp_path / "other.c").write_text(OTHER_TWIN)
    with started(build("twins.c", str(tmp_path / "other.c"), text=TWINS)) as target:
        with anyprobe.attach(target.pid) as session:

            @session.entry("a.out:t*n")
            def on_twin(ctx):
                calls[ctx.func].add()

            target.go(1)
            entries = counts(calls)
        target.finish()
    assert sorted(entries.values()) == [10, 10]
    assert all(name.startswith("twins:twin@0x") for (name,) in entries)
