"""Handlers that change what the program computes, on demand only; everything is as it was once they are gone."""

import errno
import os
import subprocess

import pytest

import anyprobe
from anyprobe import Count, HandlerError, Map, cstr, f64, i64, ptr, u32, u64
from support.driver import build, started, wait_until

pytestmark = pytest.mark.live
CHANGED = ("nulls", "refused", "replacements", "doubled", "stepped_over", "written", "thirds", "dumps")
"""What the program counts when it is not left alone."""


@pytest.fixture
def target():
    with started(build("interfered.c")) as running:
        yield running


def changes(target, rounds=2):
    """Run the program; return how much of what it does has changed on the way, by its own account."""
    before = dict(target.counts.calls)
    after = target.go(rounds).calls
    return {name: after[name] - before.get(name, 0) for name in after}


def unchanged(target):
    """Run the program; see that everything works as the program alone does it."""
    found = changes(target)
    return not any(found[name] for name in CHANGED)


def test_every_hundredth_malloc_fails(target):
    numbers, failed = Map("numbers"), Count("failed")
    with anyprobe.attach(target.pid, unsafe=True) as session:

        @session.entry("libc:malloc", when=lambda size: size <= 250)
        def on_malloc(ctx, size: u64):
            number = numbers.get(ctx.tid, 0) + 1
            numbers[ctx.tid] = number % 100
            if number == 100:
                failed.add()
                ctx.skip(0, errno=errno.ENOMEM)

        found = changes(target)
        assert found["nulls"] == failed.result().total.count
        assert 4 * 2 * 2 <= found["nulls"] <= 4 * 2 * 3
    assert unchanged(target)
    target.finish()


@pytest.mark.parametrize("live", [False, True], ids=["stop", "live"])
def test_open_fails_with_errno(target, live):
    with anyprobe.attach(target.pid, unsafe=True, live=live) as session:

        @session.entry("libc:open")
        def on_open(ctx):
            ctx.skip(-1, errno=errno.EMFILE)

        found = changes(target)
        assert found["refused"] == found["opens"] == 2000
        hits = [site.hits for site in session.snapshot().sites]
        assert sum(hits) == 2000
    assert unchanged(target)
    target.finish()


def test_errno_is_seen_and_changed_at_returns(target):
    seen = Count("errno", by=("errno",))
    with anyprobe.attach(target.pid, unsafe=True) as session:

        @session.ret("libc:open")
        def on_open(ctx):
            seen[ctx.errno].add()
            if ctx.retval >= 0:
                ctx.retval = -1
                ctx.errno = errno.EMFILE

        assert changes(target)["refused"] == 2000
    assert seen.result().entries[0,].count == 2000
    assert unchanged(target)
    target.finish()


def test_a_function_is_sent_to_another(target):
    with anyprobe.attach(target.pid, unsafe=True) as session:
        ((site,), _) = session.resolve("a.out:replacement")
        start = site.address
        end = start + site.function.size

        @session.entry("a.out:original")
        def on_original(ctx):
            if not start <= u64(ctx.caller) < end:
                ctx.ip = start

        found = changes(target)
        assert found["replacements"] == found["originals"] == 200
    assert unchanged(target)
    target.finish()


def test_a_function_is_replaced_by_one_that_calls_it(target):
    with anyprobe.attach(target.pid, unsafe=True) as session:
        (probe,) = session.replace("a.out:original", "a.out:replacement")
        found = changes(target)
        assert found["replacements"] == found["originals"] == 200
        assert [place.hook.armed for place in probe.places] == [True]
        session.remove(probe)
        assert unchanged(target)
        with pytest.raises(anyprobe.UnsupportedTarget, match="for ever"):
            session.replace("a.out:original", "a.out:chained")
        with pytest.raises(anyprobe.SpecError, match="one function"):
            session.replace("a.out:original", "a.out:*")
    with anyprobe.attach(target.pid) as session, pytest.raises(anyprobe.UsageError, match="unsafe=True"):
        session.replace("a.out:original", "a.out:replacement")
    assert unchanged(target)
    target.finish()


def test_what_the_replaced_function_ignores_is_passed_on(target):
    with anyprobe.attach(target.pid, unsafe=True) as session:
        session.replace("a.out:ignoring", "a.out:third")
        session.count("a.out:ignoring")
        assert changes(target)["thirds"] == 200
        assert [site.hits for site in session.snapshot().sites] == [200, 200]
    assert unchanged(target)
    target.finish()


def test_parameters_are_seen_that_the_function_ignores(target):
    thirds = Count("thirds", by=("c",))
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:ignoring")

        @session.entry("a.out:ignoring")
        def on_ignoring(a: i64, b: i64, c: i64):
            thirds[c].add()

        changes(target)
    assert {key: cell.count for key, cell in thirds.result().entries.items()} == {(5000,): 200}


def whole_numbers(ctx):
    ctx.ip = DUMP.address


def with_floats(ctx):
    if f64(ctx.regs.rdi) * 0.5 != 1.5:
        ctx.ip = DUMP.address


def with_texts(ctx):
    text = cstr(ptr(ctx.regs.rsp), 100)
    if text is not None or ctx.errno >= 0:
        ctx.ip = DUMP.address


class DUMP:
    """Where the program says what its registers are."""

    address = 0


@pytest.mark.parametrize("handler", [whole_numbers, with_floats, with_texts])
@pytest.mark.parametrize("counted", [False, True])
def test_registers_and_flags_arrive_as_they_were(target, handler, counted):
    with anyprobe.attach(target.pid, unsafe=True) as session:
        ((site,), _) = session.resolve("a.out:dump")
        DUMP.address = site.address
        session.entry("a.out:hollow")(handler)
        if counted:
            session.count("a.out:hollow", "a.out:set_and_call%insn", "a.out:dump%insn")
        assert changes(target)["dumps"] == 200
    assert unchanged(target)
    target.finish()


def test_a_call_is_sent_elsewhere_before_it_is_made(target):
    """The call in question is spliced by changing where it leads, so the return address has been pushed by then."""
    with anyprobe.attach(target.pid, unsafe=True) as session:
        (calls,) = session.count("a.out:set_and_call%call")
        (place,) = calls.places
        session.remove(calls)
        offset, after = place.offset, place.address + 5

        @session.at(f"a.out:set_and_call+{offset}")
        def on_call(ctx):
            ctx.ip = after

        assert {each.strategy for each in session.snapshot().sites if each.armed} == {"retarget"}
        session.count("a.out:hollow")
        changes(target)
        assert [each.hits for each in session.snapshot().sites] == [0, 200, 0]
    assert unchanged(target)
    target.finish()


def test_arguments_and_memory_are_changed(target):
    with anyprobe.attach(target.pid, unsafe=True) as session:

        @session.entry("a.out:doubled")
        def on_doubled(ctx, n: i64):
            ctx.regs.rdi = n + 1

        @session.entry("a.out:configured")
        def on_configured(where: ptr[u32]):
            where[0] = 6

        found = changes(target)
        assert found["doubled"] == found["written"] == 200

        @session.ret("a.out:configured")
        def on_configured_done(ctx):
            ctx.retval = 5

        assert changes(target)["written"] == 0


def test_an_instruction_is_left_out(target):
    with anyprobe.attach(target.pid, unsafe=True) as session:
        ((site,), _) = session.resolve("a.out:step")
        after = site.address + 14

        @session.at("a.out:step+8")
        def on_step(ctx):
            ctx.regs.rip = after

        found = changes(target)
        assert found["stepped_over"] == found["steps"] == 200
    assert unchanged(target)
    target.finish()


@pytest.mark.parametrize("offset", [0, 4, 8, 14])
def test_instructions_are_left_out_that_are_shorter_than_a_jump(target, offset):
    size = {0: 4, 4: 4, 8: 6, 14: 2}[offset]
    with anyprobe.attach(target.pid, unsafe=True) as session:

        @session.at(f"a.out:step+{offset}")
        def on_step(ctx):
            ctx.ip = ctx.ip + size

        assert not session.refused
        found = changes(target)
        assert found["stepped_over"] == (0 if offset == 14 else 200)
    assert unchanged(target)
    target.finish()


def test_what_a_handler_leads_to_is_not_overwritten_later(target):
    with anyprobe.attach(target.pid, unsafe=True) as session:
        ((site,), _) = session.resolve("a.out:step")
        after = site.address + 8

        @session.entry("a.out:step")
        def on_step(ctx, n: i64):
            ctx.regs.rax = n + 101
            ctx.ip = after

        session.count("a.out:step%insn")
        changes(target)
        assert {site.offset: site.hits for site in session.snapshot().sites if site.kind != "entry"} == {
            0: 200, 4: 0, 8: 200, 14: 200, 16: 200,
        }, "who is sent away has come"  # fmt: skip
    assert unchanged(target)
    target.finish()


def test_what_has_made_room_for_a_probe_is_not_led_to(target):
    with anyprobe.attach(target.pid, unsafe=True) as session:
        session.entry("a.out:doubled")(looking)
        within = next(
            splice.address + 1 for state in session.engine.modules[0].functions.values() for splice in state.splices
        )

        def on_original(ctx):
            ctx.ip = within

        with pytest.raises(anyprobe.UnsupportedTarget, match="made room"):
            session.entry("a.out:original")(on_original)
    target.finish()


@pytest.mark.parametrize("strategy", ["auto", "trap"])
def test_data_of_skipped_calls_is_given_up(target, strategy):
    seen = Count("seen")
    with anyprobe.attach(target.pid, unsafe=True, strategy=strategy) as session:

        @session.call("a.out:original")
        def on_original(ctx, a: i64):
            ctx.data.a = a
            if a & 1:
                ctx.skip(-a)

        @on_original.ret
        def on_original_done(ctx):
            if ctx.data.a is not None:
                seen.add()

        found = changes(target)
        assert found["originals"] == 100
        assert seen.result().total.count == 100
    assert unchanged(target)
    target.finish()


def skip_odd(ctx, a: i64):
    if a & 1:
        ctx.skip(-a)


@pytest.mark.parametrize("timed_first", [False, True])
@pytest.mark.parametrize("returns", ["exits", "trampoline"])
def test_what_is_skipped_is_not_timed(target, timed_first, returns):
    with anyprobe.attach(target.pid, unsafe=True, returns=returns) as session:
        if timed_first:
            session.time("a.out:original")
        session.entry("a.out:original")(skip_odd)
        if not timed_first:
            session.time("a.out:original")
        found = changes(target)
        assert found["originals"] == 100
        (timing,) = session.snapshot().functions
        assert (timing.count, timing.in_flight, timing.unmatched, timing.nmissed) == (100, 0, 0, 0)
    assert unchanged(target)
    target.finish()


def fail_at_times(ctx, size: u64):
    if size & 7 == 3 and size < 250:
        ctx.skip(0, errno=errno.ENOMEM)


def always_fail(ctx):
    ctx.skip(-1, errno=errno.EMFILE)


@pytest.mark.parametrize("live", [False, True], ids=["stop", "live"])
def test_it_comes_and_goes_while_threads_run(target, live):
    target.run_freely()
    for _ in range(12):
        with anyprobe.attach(target.pid, unsafe=True, live=live) as session:
            session.entry("libc:malloc")(fail_at_times)
            session.entry("libc:open")(always_fail)
            session.replace("a.out:original", "a.out:replacement")
            wait_until(lambda: session.snapshot().hits > 3000, "hits")
    seen = target.halt().calls
    assert min(seen["nulls"], seen["refused"], seen["replacements"]) > 0
    assert unchanged(target)
    target.finish()


def test_it_is_refused_where_it_was_not_asked_for(target):
    with anyprobe.attach(target.pid) as session:
        for source in (skipping, redirecting, failing):
            with pytest.raises(HandlerError, match="unsafe=True"):
                session.entry("a.out:original")(source)
        assert not session.splicing.holdings.arenas
    with anyprobe.attach(target.pid, unsafe=True) as session:
        for place in (session.at("a.out:step+4"), session.ret("a.out:step")):
            with pytest.raises(HandlerError, match="only where it is entered"):
                place(skipping)
        with pytest.raises(HandlerError, match=r"ctx\.skip\(value\)"):
            session.entry("a.out:original")(returning)
        assert not session.splicing.holdings.arenas


def looking(ctx):
    pass


def skipping(ctx):
    ctx.skip(1)


def redirecting(ctx):
    ctx.ip = 1


def failing(ctx):
    ctx.errno = 1


def returning(ctx):
    ctx.retval = 1


def test_a_program_that_is_started_fails_from_the_first_call_on(tmp_path):
    said = tmp_path / "said"
    with (
        said.open("w") as stderr,
        anyprobe.run(["/bin/cat", "/proc/version"], stdout=subprocess.DEVNULL, stderr=stderr, unsafe=True) as session,
    ):

        @session.entry("libc:open", "libc:open64")
        def on_open(ctx, path: ptr):
            if ctx.errno >= 0 and cstr(path, 16) == "/proc/version":
                ctx.skip(-1, errno=errno.EMFILE)

        session.resume()
        assert os.waitstatus_to_exitcode(session.wait(180)) == 1
    assert "Too many open files" in said.read_text()
