"""Compiled handlers in running programs: what they see, what they count, and that the program does not notice."""

import subprocess
import sys
import tempfile
import textwrap

import pytest

import anyprobe
from anyprobe import Count, HandlerError, Hist, Map, Sum, cstr, emit, f32, f64, i8, i16, i32, i64, ptr, u8, u64
from anyprobe.handlers.compile_cache import native_code
from anyprobe.probes.providers.function.handlers import handling
from anyprobe.probes.specs.spec import parsed
from anyprobe.splice.codegen.handlers.call import PATIENCE
from support.driver import build, started, wait_until
from support.results import counts
from support.situations import REGISTERS

pytestmark = pytest.mark.live
OPTIONS = ("-O2", "-pthread")
THREADS = 4
"""That the program has."""


@pytest.fixture
def target():
    with started(build("handled.c", *OPTIONS)) as running:
        yield running


def test_a_parameter_is_compared_and_counted(target):
    large, sizes = Count("large"), Hist("sizes")
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:sized")
        def on_sized(size: u64):
            if size >= 900:
                large.add()
            sizes.add(size)

        target.go(10)
        snapshot = session.snapshot()
        (site,) = snapshot.sites
        assert (site.hits, site.nmissed) == (40_000, 0)
        assert counts(large) == {(): 4000}
        cell = sizes.result().total
        assert (cell.count, cell.sum, cell.min, cell.max) == (40_000, 40 * 499_500, 0, 999)
        assert snapshot.as_json()["aggregations"]["sizes"]["count"] == 40_000
    target.go(2)
    target.finish()
    assert sizes.result().total.count == 40_000


def test_parameters_of_every_kind(target):
    sums, by_key = Sum("sums", by=("which",)), Count("by key", by=("a", "b", "c", "d", "e", "f", "g", "h", "i", "j"))
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:ten")
        def on_ten(a: i8, b: i16, c: i32, d: i64, e: u8, f: i32, g: i64, h: i32, i: i16, j: i8):
            by_key.add(key=(a, b, c, d, e, f, g, h, i, j))

        @session.entry("a.out:floats")
        def on_floats(a: i32, b: f64, c: f32, d: i64):
            sums.add(a, key=(0,))
            sums.add(i64(b * 100), key=(1,))
            sums.add(i64(c * 100), key=(2,))
            sums.add(d, key=(3,))

        target.go(3)
        target.finish()
    assert counts(by_key) == {(-1, -2, -3, -4, 200, 6, -7, 8, -9, 10): 3}
    assert {key: cell.sum for key, cell in sums.result().entries.items()} == {(0,): -3, (1,): 750, (2,): 75, (3,): 12}


def test_return_values_and_threads(target):
    results, tids = Sum("results"), Count("tids", by=("tid",))
    with anyprobe.attach(target.pid) as session:

        @session.ret("a.out:sized")
        def on_return(ctx):
            results.add(ctx.retval)
            tids[ctx.tid].add()

        target.go(5)
        target.finish()
    assert results.result().total.sum == 5 * 4 * 2 * 499_500
    assert sorted(counts(tids).values()) == [1000] * 20


def test_calls_have_data_of_their_own(target):
    depths, seconds = Hist("depths"), Hist("ns")
    with anyprobe.attach(target.pid) as session:

        @session.call("a.out:deep")
        def on_deep(ctx, n: i64):
            ctx.data.n = n
            ctx.data.t0 = ctx.now

        @on_deep.ret
        def on_deep_done(ctx):
            depths.add(ctx.data.n)
            seconds.add(ctx.now - ctx.data.t0)

        target.go(7)
        target.finish()
        assert session.handling.misses() == {"fault": 0, "abandoned": 0, "division": 0}
    cell = depths.result().total
    assert (cell.count, cell.sum, cell.min, cell.max) == (7 * 21, 7 * 210, 0, 20)
    assert session.snapshot().aggregation("depths").total == cell  # a closed session is asked what it has counted
    with pytest.raises(anyprobe.UsageError, match="detached"):
        session.remove(*session.probes)
    assert seconds.result().total.count == 7 * 21
    assert 0 < seconds.result().total.max < 1_000_000_000


def test_both_ends_of_calls_are_placed_in_one_change(target):
    """The program calls all the time: only calls under way at that moment are seen at one end alone."""
    begun, ended = Count("begun"), Count("ended")

    def on_sized(ctx, size: u64):
        ctx.data.size = size
        begun.add()

    def on_sized_done(ctx):
        if ctx.data.size >= 0:
            ended.add()

    with anyprobe.attach(target.pid) as session:
        target.run_freely()
        session.handling.place_call(parsed(["a.out:sized"]), on_sized, on_sized_done)
        wait_until(lambda: session.snapshot().hits > 0, "it runs on with its probes")
        target.halt()
        target.go(3)
        entry, *exits = session.snapshot().sites
        assert entry.hits > 3 * 4000
        returns = sum(each.hits for each in exits)
        assert abs(entry.hits - returns) <= THREADS
        assert counts(begun) == {(): entry.hits}
        assert returns - THREADS <= counts(ended)[()] <= entry.hits
    target.finish()


def test_bad_pointers_are_missing(target):
    names = Count("names", by=("name",))
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:named")
        def on_named(name: ptr):
            text = cstr(name, 32)
            if text is not None:
                names[text].add()

        target.go(4)
        assert session.misses()["fault"] == 8
        target.finish()
    assert counts(names) == {("hello",): 4}


def test_records_come_out_in_order(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:deep")
        def on_deep(ctx, n: i64):
            emit("deep", n=i32(n), tid=ctx.tid)

        target.go(2)
        ((name, _, rows),) = session.handling.records(final=True)
        target.finish()
    assert name == "deep"
    assert rows["n"].tolist() == [*range(20, -1, -1)] * 2
    assert set(rows["tid"].tolist()) == {target.pid}


def test_maps_carry_from_one_handler_to_another(target):
    started_at, late = Map("started"), Hist("late")
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:sized")
        def on_entry(ctx, size: u64):
            started_at[ctx.tid] = size

        @session.ret("a.out:sized")
        def on_return(ctx):
            size = started_at[ctx.tid]
            if size is not None:
                late.add(size)

        target.go(3)
        target.finish()
    assert late.result().total.sum == 3 * 4 * 499_500


def test_a_hit_inside_a_handler_is_missed_and_counted():
    total = Sum("total")
    with started(build("handled.c", *OPTIONS), "timer") as target, anyprobe.attach(target.pid) as session:

        @session.entry("a.out:sized")
        def on_sized(size: u64):
            value = size
            for i in range(500):
                value = value * 3 + i
            total.add(value & 1)

        for _ in range(50):  # until a signal has come in the middle of a handler
            own = target.go(20)
            (site,) = session.snapshot().sites
            if site.nmissed:
                break
        assert site.hits + site.nmissed == own.calls["sized"]
        assert total.result().total.count == site.hits
        assert site.nmissed > 0
        target.go(1)


def test_results_are_changed_and_come_back():
    with started(build("handled.c", *OPTIONS), "changed") as target:
        with anyprobe.attach(target.pid, unsafe=True) as session:

            @session.ret("a.out:answers")
            def on_answers(ctx):
                ctx.retval = 41

            target.go(5)
        with pytest.raises(AssertionError, match="answers"):
            target.go(1)


def test_what_does_not_compile_touches_nothing(target):
    with anyprobe.attach(target.pid) as session:
        with pytest.raises(HandlerError, match="unsafe=True"):

            @session.ret("a.out:answers")
            def on_answers(ctx):
                ctx.retval = 41

        with pytest.raises(HandlerError, match="no return value here"):

            @session.entry("a.out:answers")
            def on_entry(ctx):
                emit(value=ctx.retval)

        assert not session.splicing.holdings.arenas
    target.go(1)
    target.finish()


def test_all_state_is_equal_behind_handlers(run_target):
    """The program compares registers, flags, vector state and red zone behind probed functions and unprobed copies."""
    target = run_target(REGISTERS.source)
    calls = target.go(1).calls
    # whether a jump through a pointer hands flags on is a matter of counters at exits, not of handlers
    returning = [name for name in REGISTERS.functions if name in calls and name != "jump_through_pointer"]
    seen, names = Hist("seen"), Count("names", by=("tid", "text"))
    with anyprobe.attach(target.pid) as session:

        @session.entry(*(f"a.out:{name}" for name in REGISTERS.functions if name in calls))
        def on_entry(ctx, a: i32, p: ptr[u8], c: u64, d: f64):
            total = f64(a) * 0.5 + d
            seen.add(i64(total) + i64(ctx.now % 7))
            byte = p[c & 7]
            if byte is None:
                byte = 0
            names.add(key=(ctx.tid, ctx.regs.r12 & byte & 1))
            emit("state", a=a, x=f32(total), cpu=ctx.cpu)

        @session.ret(*(f"a.out:{name}" for name in returning))
        def on_return(ctx):
            seen.add(i64(ctx.retval & 0xFFFF))

        before = sum(target.counts.calls.values())
        counts = target.go(max(REGISTERS.rounds, 128))
        snapshot = session.snapshot()
        hits = sum(site.hits for site in snapshot.sites if site.kind == "entry")
        assert hits == sum(counts.calls.values()) - before
        assert sum(site.nmissed for site in snapshot.sites) == 0
    target.go(10)
    target.finish()


def test_fork_children_run_handlers_too(run_target):
    target = run_target("forks.c")
    seen, pids = Sum("seen"), Count("tids", by=("tid",))
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:forked")
        def on_forked(ctx, x: i64):
            seen.add(x)
            pids.add(key=(ctx.tid,))

        target.go(5)
        (site,) = session.snapshot().sites
        assert site.hits == 5 * 1000
        assert seen.result().total.sum == 5 * 2 * sum(range(500))
        assert sorted(counts(pids).values()) == [500] * 5 + [2500]
        target.finish()


def test_several_handlers_and_counters_share_a_site(target):
    first, second = Count("first"), Count("second")
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:deep")
        def on_first(n: i64):
            first.add()

        @session.entry("a.out:deep")
        def on_second(n: i64):
            if n > 10:
                second.add()

        session.count("a.out:deep")
        target.go(3)
        assert [site.hits for site in session.snapshot().sites] == [63, 63, 63]
    assert (counts(first), counts(second)) == ({(): 63}, {(): 30})


def test_handlers_of_a_site_run_in_the_order_in_which_they_were_given(target):
    place, trail = Map("place", by=("thread",)), Count("trail", by=("order",))

    def step(number):
        def on_deep(ctx):
            place[ctx.tid] = place.get(ctx.tid, 0) * 10 + number

        return on_deep

    def at_the_end(ctx):
        trail[place.get(ctx.tid, 0)].add()
        place[ctx.tid] = u64(0)

    with anyprobe.attach(target.pid) as session:
        first, second, _ = (session.entry("a.out:deep")(step(number)) for number in (1, 2, 3))
        last = session.entry("a.out:deep")(at_the_end)
        target.go(1)
        assert counts(trail) == {(123,): 21}
        session.remove(*session.probes_of(second))
        target.go(1)
        assert counts(trail) == {(123,): 21, (13,): 21}
        session.enable(*session.probes_of(second))
        session.remove(*session.probes_of(first))
        target.go(1)
        assert counts(trail) == {(123,): 21, (13,): 21, (23,): 21}
        session.remove(*session.probes_of(last))
        session.entry("a.out:deep")(step(4))
        session.entry("a.out:deep")(at_the_end)
        target.go(1)
        assert counts(trail) == {(123,): 21, (13,): 21, (23,): 21, (234,): 21}


def test_what_a_killed_controller_left_is_removed(target):
    code = f"""
        import os, signal, sys
        import anyprobe
        from anyprobe import Hist, u64
        sizes = Hist("sizes", by=("n",))
        session = anyprobe.attach({target.pid})
        def on_sized(size: u64):
            sizes.add(size, key=(size,))
        session.entry("a.out:sized")(on_sized)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    path = target_script(textwrap.dedent(code))
    assert subprocess.run([sys.executable, path]).returncode == -9
    target.go(3)
    assert "memfd:anyprobe" in maps_of(target)
    assert subprocess.run([sys.executable, "-m", "anyprobe", "detach", "-p", str(target.pid)]).returncode == 0
    assert "memfd:anyprobe" not in maps_of(target)
    target.go(3)
    target.finish()


def target_script(text):
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(text)
    return file.name


def maps_of(target):
    with open(f"/proc/{target.pid}/maps") as file:
        return file.read()


def test_programs_started_with_handlers_are_seen_from_the_beginning():
    sizes = Hist("sizes")
    with anyprobe.run(["/bin/ls", "/"], stdout=subprocess.DEVNULL) as session:

        @session.entry("libc:malloc")
        def on_malloc(size: u64):
            sizes.add(size)

        session.resume()
        session.wait(180)
        hits = sum(site.hits for site in session.snapshot().sites)
        assert sizes.result().total.count == hits > 0


def test_conditions_and_removal(target):
    large, small = Count("large"), Count("small")
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:sized", when=lambda size: size >= 900)
        def on_large(size: u64):
            large.add()

        @session.entry("a.out:sized", when=lambda ctx, size: size < 10 and ctx.tid != 0)
        def on_small(size: u64):
            small.add()

        target.go(2)
        session.remove(*session.probes_of(on_large))
        target.go(1)
        session.enable(*session.probes_of(on_large))
        target.go(1)
    assert (counts(large), counts(small)) == ({(): 3 * 400}, {(): 4 * 40})


def test_handlers_before_an_instruction(target):
    seen = Hist("rdi")
    with anyprobe.attach(target.pid) as session:

        @session.at("a.out:sized+0x0")
        def on_first(ctx):
            seen.add(ctx.regs.rdi)

        with pytest.raises(HandlerError, match="the parameters are gone here"):

            @session.at("a.out:sized+0x0")
            def on_instruction(size: u64):
                seen.add(size)

        target.go(1)
    assert seen.result().total.sum == 4 * 499_500


def test_a_handler_that_is_left_by_a_jump_ends_counting_for_a_while_only():
    answers, sizes = Count("answers"), Sum("sizes")
    with started(build("handled.c", *OPTIONS), "jumping") as target, anyprobe.attach(target.pid) as session:

        @session.entry("a.out:answers")
        def on_answers(ctx):
            value = ctx.regs.rsp
            for i in range(2000):
                value = value * 3 + i
            if value != 5:
                answers.add()

        @session.entry("a.out:sized")
        def on_sized(size: u64):
            sizes.add(size)

        target.go(3)
        site = next(site for site in session.snapshot().sites if site.function == "sized")
        assert site.hits + site.nmissed == 3 * 200_000
        assert sizes.result().total.count == site.hits >= 3 * (200_000 - PATIENCE)
        assert counts(answers)


def test_a_handler_is_compiled_once_for_all_its_sites(target, monkeypatch):
    compiled = []

    def compile_it(*arguments, **options):
        compiled.append(arguments)
        return native_code(*arguments, **options)

    monkeypatch.setattr(handling, "native_code", compile_it)
    calls = Count("calls", by=("func",))
    with anyprobe.attach(target.pid) as session:

        @session.entry("libc:*")
        def on_any(ctx):
            calls.add(key=(ctx.func,))

        target.go(2)
        snapshot = session.snapshot()
        assert len(snapshot.sites) > 2000
        assert len(compiled) == 1
        assert sum(counts(calls).values()) == sum(site.hits for site in snapshot.sites) > 0
    target.finish()
