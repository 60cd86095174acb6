"""User stacks in keys and records: compared with what glibc's unwinder finds in the same place."""

import pytest

import anyprobe
from anyprobe import Count, HandlerError, emit, i64, u64
from support.driver import build, started, wait_until
from support.results import counts

pytestmark = pytest.mark.live
ROUND = 6
"""Calls of ``leaf`` in one round."""


def found_by(target, depth_of_callers):
    """Return the stacks that the program itself has found, as lists of return addresses."""
    return [[int(each, 16) for each in target._expect("stack").split()[1:]] for _ in range(depth_of_callers)]


@pytest.mark.parametrize("options", [("-fomit-frame-pointer",), ("-fno-omit-frame-pointer",)], ids=["omitted", "kept"])
def test_stacks_are_what_the_unwinder_finds(options):
    with started(build("stacks.c", "-O2", *options), "telling") as target:
        with anyprobe.attach(target.pid) as session:

            @session.entry("a.out:leaf")
            def on_leaf(ctx):
                emit("at", stack=u64(ctx.ustack(60)))

            @session.ret("a.out:leaf")
            def on_leaf_done(ctx):
                emit("done", stack=u64(ctx.ustack(60)))

            target.start(1)
            expected = found_by(target, ROUND)
            target.wait_done()
            rows = session.records(final=True)
            stacks = session.handling._stacks
            seen = [stacks.addresses(int(number)) for number in rows["at"]["stack"]]
            left = [stacks.addresses(int(number)) for number in rows["done"]["stack"]]
        target.finish()
    assert [each[1:] for each in seen] == expected
    assert [each[1:] for each in left] == expected
    assert max(map(len, seen)) > 30


def test_stacks_are_keys_and_fields_shown_by_name():
    stacks = Count("stacks")
    with started(build("stacks.c", "-O2")) as target:
        with anyprobe.attach(target.pid) as session:
            name = session.exe.rpartition("/")[2]

            @session.entry("a.out:leaf")
            def on_leaf(ctx, n: i64):
                stacks[ctx.ustack(3), n].add()
                emit("leaf", stack=ctx.ustack(2))

            target.go(5)
            by_stack = counts(stacks)
            rows = [row["stack"] for _, row in session.rows(final=True)]
            assert session.handling.misses() == {"fault": 0, "abandoned": 0, "division": 0}
            assert session.handling.dropped() == {}
            document = session.snapshot().as_json()
        target.finish()
    texts = {key[0] for key in by_stack}
    assert sum(by_stack.values()) == 5 * ROUND
    assert all(text.startswith(f"{name}:leaf < {name}:plain+") for text in texts)
    third = {text.split(" < ")[2].partition("+")[0] for text in texts}
    assert third == {f"{name}:{each}" for each in ("one_round", "deep", "framed", "compare", "handler")}
    assert len(rows) == 5 * ROUND
    assert {row.partition("+")[0] for row in rows} == {f"{name}:leaf < {name}:plain"}
    assert document["aggregations"]["stacks"][0]["key"][0] in texts


def test_a_stack_that_ends_in_a_signal_handler_goes_on_below_it():
    with started(build("stacks.c", "-O2")) as target:
        with anyprobe.attach(target.pid) as session:

            @session.entry("a.out:handler")
            def on_signal(ctx):
                emit("signal", stack=ctx.ustack())

            target.go(1)
            ((_, row),) = session.rows(final=True)
        target.finish()
    names = [each.partition("+")[0].partition(":")[2] for each in row["stack"].split(" < ")]
    assert names[0] == "handler"
    assert "one_round" in names
    assert names[-1] == "_start"


@pytest.mark.parametrize("options", [(), ("-fcf-protection=none", "-Os"), ("-O0",)], ids=["usual", "small", "plain"])
def test_at_every_instruction_the_callers_are_the_same(options):
    names = ("plain", "framed", "growing", "aligned", "many")
    with started(build("stacks.c", "-O2", *options)) as target:
        with anyprobe.attach(target.pid) as session:

            @session.entry(*(f"a.out:{name}" for name in names))
            def on_entry(ctx):
                emit("entry", function=ctx.func, stack=u64(ctx.ustack(60)))

            @session.at(*(f"a.out:{name}:insn" for name in names))
            def on_instruction(ctx):
                emit("instruction", function=ctx.func, stack=u64(ctx.ustack(60)))

            @session.after(*(f"a.out:{name}:insn" for name in names))
            def on_after(ctx):
                emit("behind", function=ctx.func, stack=u64(ctx.ustack(60)))

            target.go(2)
            found = session.records(final=True)
            stacks = session.handling._stacks
            callers = {"entry": set(), "instruction": set(), "behind": set()}
            for kind, rows in found.items():
                for row in rows:
                    place, *above = stacks.addresses(int(row["stack"]))
                    # behind a call or a return it is another function
                    if session.symbols.name(place).partition("+")[0] == row["function"]:
                        callers[kind].add((row["function"], *above))
            inside = len(found["instruction"])
            known = {row["function"] for row in found["instruction"]}
        target.finish()
    assert inside > 100
    assert len(known) == len(names)
    assert callers["behind"] == callers["instruction"] == callers["entry"]


LATE = r"""
#include "protocol.h"
#include <dlfcn.h>
static const char *path;
static long (*through)(long (*)(long), long);
PROBED long leaf(long n) { return n + 1; }
static void one_round(void) {
    check(leaf(1) == 2, "leaf");
    if (!through) {
        void *library = dlopen(path, RTLD_NOW);
        check(library != 0, "dlopen");
        through = (long (*)(long (*)(long), long))dlsym(library, "through");
    }
    check(through(leaf, 2) == 3, "through");
}
static void setup(int argc, char **argv) { check(argc > 1, "no library"); path = argv[1]; }
"""
THROUGH = "long through(long (*f)(long), long x) { volatile long y = f(x); return y; }\n"


def test_code_that_is_loaded_later_is_followed():
    library = build("through.c", "-shared", "-fPIC", "-O2", text=THROUGH)
    with started(build("late.c", text=LATE), library) as target:
        with anyprobe.attach(target.pid) as session:
            seen = []

            @session.entry("a.out:leaf")
            def on_leaf(ctx, n: i64):
                if n == 2:
                    emit("at", stack=ctx.ustack(3))

            def complete():
                target.go(1)
                seen.extend(row["stack"] for _, row in session.rows(final=True))
                return ":through+" in seen[-1] and ":one_round" in seen[-1]

            wait_until(complete, "the library is known")
        target.finish()
    assert seen[0].endswith(":leaf")  # the library was not known by then, and code that is not known is none


BY_FRAME_POINTERS = ("-O2", "-fno-omit-frame-pointer", "-fno-asynchronous-unwind-tables", "-fno-unwind-tables")


def test_frame_pointers_where_there_are_no_tables():
    with started(build("stacks.c", *BY_FRAME_POINTERS)) as target:
        with anyprobe.attach(target.pid) as session:

            @session.entry("a.out:leaf")
            def on_leaf(ctx, n: i64):
                if n == 0:
                    emit("deep", stack=ctx.ustack(40))

            target.go(1)
            ((_, row),) = session.rows(final=True)
        target.finish()
    names = [each.partition("+")[0].partition(":")[2] for each in row["stack"].split(" < ")]
    assert names[:33] == ["leaf", "plain", *["deep"] * 31]
    assert names[33].startswith("one_round")


def test_a_depth_is_a_constant():
    with started(build("stacks.c", "-O2")) as target:
        with anyprobe.attach(target.pid) as session:
            for depth in (0, 1000):
                with pytest.raises(HandlerError, match="has to be constant") as caught:

                    @session.entry("a.out:leaf")
                    def on_leaf(ctx):
                        emit("at", stack=ctx.ustack(depth))  # noqa: B023

                assert "ctx.ustack(n) with n from 1 to 126" in str(caught.value)
            assert session.snapshot().sites == ()
        target.finish()
