"""The kernel's KUnit tests of kprobes and fprobe, under their names, for programs."""

import pytest

import anyprobe
from anyprobe import Count, CSource, Hist, Max, Sum, emit, u64
from anyprobe.kprobes import (
    Jprobe,
    Kprobe,
    Kretprobe,
    disable_kprobe,
    register_jprobe,
    register_kprobe,
    register_kprobes,
    register_kretprobe,
    register_kretprobes,
    regs_return_value,
    unregister_kprobe,
    unregister_kprobes,
    unregister_kretprobe,
    unregister_kretprobes,
)
from support.results import total

pytestmark = pytest.mark.live


def test_test_kprobe(target, session):
    """The pre handler sees the argument, the post handler has run; after unregistering neither runs."""
    preempted, posts = Sum("argument"), Count("posts")

    def kp_pre_handler(p, regs):
        preempted.add(regs.di)
        return 0

    def kp_post_handler(p, regs, flags):
        posts.add()

    kp = Kprobe(symbol_name="chosen", pre_handler=kp_pre_handler, post_handler=kp_post_handler)
    assert register_kprobe(kp) == 0
    target.go(1)
    unregister_kprobe(kp)
    target.go(1)
    target.finish()
    assert (total(preempted).count, total(preempted).sum, total(posts).count) == (100, sum(range(100)), 100)


def test_test_kprobes(target, session):
    """Two in one batch; each has run."""
    pres, posts = Count("pres", by=("at",)), Count("posts", by=("at",))

    def pre(p, regs):
        pres[p.addr].add()
        return 0

    def post(p, regs, flags):
        posts[p.addr].add()

    kps = [Kprobe(symbol_name=name, pre_handler=pre, post_handler=post) for name in ("chosen", "recursive")]
    assert register_kprobes(kps) == 0
    where = [kp.addr for kp in kps]
    target.go(1)
    unregister_kprobes(kps)
    assert [kp.addr for kp in kps] == [None, None]
    target.go(1)
    target.finish()
    for counts in (pres, posts):
        assert {key[0]: cell.count for key, cell in counts.result().entries.items()} == dict(
            zip(where, (100, 11), strict=True)
        )


def test_test_kretprobe(target, session):
    """The return handler has the value; the entry handler has run before it."""
    entered, values = Count("entered"), Max("values")

    def entry_handler(ri, regs):
        entered.add()
        return 0

    def return_handler(ri, regs):
        values.add(regs_return_value(regs))
        return 0

    rp = Kretprobe(Kprobe(symbol_name="recursive"), return_handler, entry_handler)
    assert register_kretprobe(rp) == 0
    target.go(1)
    unregister_kretprobe(rp)
    target.go(1)
    target.finish()
    assert (total(entered).count, total(values).count, total(values).max) == (11, 11, 55)


def test_test_kretprobes(target, session):
    """Two in one batch, each with its function's values."""
    values = Sum("values", by=("which",))

    def return_handler(ri, regs):
        values[1].add(regs_return_value(regs))

    def return_handler2(ri, regs):
        values[2].add(regs_return_value(regs))

    rps = [
        Kretprobe(Kprobe(symbol_name="chosen"), return_handler),
        Kretprobe(Kprobe(symbol_name="recursive"), return_handler2),
    ]
    assert register_kretprobes(rps) == 0
    target.go(1)
    unregister_kretprobes(rps)
    target.go(1)
    target.finish()
    sums = {key[0]: cell.sum for key, cell in values.result().entries.items()}
    assert sums == {1: 8 + sum(n + 108 for n in range(1, 100)), 2: sum(n * (n + 1) // 2 for n in range(11))}


@pytest.mark.parametrize("maxactive", [0, 8])
def test_test_stacktrace_on_kretprobe_nested(target, session, maxactive):
    """An unwinder finds the true callers inside functions with return probes, and where they return."""

    def quiet(ri, regs):
        return 0

    names = ("asked", "caller_of", "recursive")
    rps = [Kretprobe(Kprobe(symbol_name=name), quiet, maxactive=maxactive) for name in names]
    assert register_kretprobes(rps) == 0

    @session.entry("a.out:asked")
    def inside(ctx):
        emit("inside", stack=u64(ctx.ustack(8)))

    @session.ret("a.out:asked")
    def leaving(ctx):
        emit("leaving", stack=u64(ctx.ustack(8)))

    @session.entry("a.out:recursive")
    def deep(ctx):
        emit("deep", stack=u64(ctx.ustack(16)))

    target.go(1)
    target.finish()
    rows = session.records(final=True)

    def functions(name):
        return [[function_at(session, at) for at in stack_of(session, row)[1:]] for row in rows[name]]

    def function_at(session, address):
        loaded = session.objects.at(address)
        found = loaded and loaded.image.functions.containing(address - 1 - loaded.bias)
        return found.name if found else "?"

    ((first, *_),) = [functions("inside")]
    assert first[:3] == ["caller_of", "one_round", "main"]
    assert functions("leaving")[0] == first
    assert "?" not in first
    deepest = max(functions("deep"), key=len)
    assert deepest[:11] == ["recursive"] * 10 + ["one_round"]
    assert "?" not in deepest


def stack_of(session, row):
    return session.handling._stacks.addresses(int(row["stack"]))


def test_test_fprobe_entry_and_syms(target, session):
    """Several functions with one handler each way; entry and exit see the same call."""
    entries, exits = Count("entries", by=("function",)), Count("exits", by=("function",))

    def fprobe(name):
        def entry(ri, regs):
            entries[ri.rp.addr].add()
            ri.data.argument = regs.di
            return 0

        def leaving(ri, regs):
            if ri.ret_addr != 0:
                exits[ri.rp.addr].add()

        return Kretprobe(Kprobe(symbol_name=name), leaving, entry)

    rps = [fprobe(name) for name in ("chosen", "recursive", "asked")]
    assert register_kretprobes(rps) == 0
    target.go(1)
    unregister_kretprobes(rps)
    target.go(1)
    target.finish()
    for seen in (entries, exits):
        assert sorted(cell.count for cell in seen.result().entries.values()) == [1, 11, 100]


def test_test_fprobe_data(target, session):
    """What an entry handler stores is what the exit handler of this very call finds, at every depth; zero at first."""
    differing, seen = Count("differing"), Count("seen")

    def entry(ri, regs):
        ri.data.argument = regs.di
        if regs.di > 5:
            ri.data.large = 1
        return 0

    def leaving(ri, regs):
        seen.add()
        if regs_return_value(regs) * 2 != ri.data.argument * (ri.data.argument + 1):
            differing.add()
        if (ri.data.large == 1) != (ri.data.argument > 5):
            differing.add()

    assert register_kretprobe(Kretprobe(Kprobe(symbol_name="recursive"), leaving, entry, data_size=16)) == 0
    target.go(5)
    target.finish()
    assert (total(seen).count, total(differing).count) == (55, 0)


def test_test_fprobe_nest(target, session):
    """A probed function calls another one, and itself."""

    def entry(ri, regs):
        emit("order", what=1, n=regs.di)
        return 0

    def leaving(ri, regs):
        emit("order", what=2, n=u64(regs_return_value(regs)))

    assert register_kretprobe(Kretprobe(Kprobe(symbol_name="recursive"), leaving, entry)) == 0
    target.go(1)
    target.finish()
    rows = session.records(final=True)["order"]
    assert rows["what"].tolist() == [1] * 11 + [2] * 11
    assert rows["n"].tolist() == [*range(10, -1, -1), *(n * (n + 1) // 2 for n in range(11))]


def test_test_fprobe_skip(target, session):
    """An entry handler that returns something else than 0 skips the exit handler of this call only."""
    entries, exits = Count("entries"), Count("exits")

    def entry(ri, regs):
        entries.add()
        return 1 if regs.di % 2 == 0 else 0

    def leaving(ri, regs):
        exits.add()

    rp = Kretprobe(Kprobe(symbol_name="chosen"), leaving, entry)
    assert register_kretprobe(rp) == 0
    target.go(1)
    target.finish()
    assert (total(entries).count, total(exits).count, rp.nmissed) == (100, 50, 0)


def test_test_kprobe_missed(target, session):
    """Handlers call a probed function: none runs there, and each of these hits is missed.

    One that only counts would run: that needs no guard.
    """
    (called,), _ = session.resolve("a.out:other")
    ran = Count("ran", by=("n",))

    def pre(p, regs):
        ran[regs.di].add()
        return 0

    calling = f"int handler(struct anyprobe_ctx *ctx) {{ ((long (*)(long)) {called.address:#x}ul)(1); return 0; }}"
    missed = Kprobe(symbol_name="other", pre_handler=pre)
    kp = Kprobe(symbol_name="asked", pre_handler=CSource(calling), post_handler=CSource(calling))
    assert register_kprobes([kp, missed]) == 0, kp.error
    target.go(1)
    assert (kp.hits, kp.nmissed, missed.nmissed) == (1, 0, 2)
    unregister_kprobe(kp)
    target.go(1)
    target.finish()
    assert missed.nmissed == 2
    assert missed.hits == sum(cell.count for cell in ran.result().entries.values()) > 0


def test_jprobes_and_kretprobes_are_missed_likewise(target, session):
    """What they do has to be called: what only counts runs in handlers, too."""
    (called,), _ = session.resolve("a.out:other")
    calling = f"int handler(struct anyprobe_ctx *ctx) {{ ((long (*)(long)) {called.address:#x}ul)(1); return 0; }}"
    entered, values = Hist("entered"), Hist("values")

    def jumped(n: u64):
        entered.add(n)

    def entry(ri, regs):
        entered.add(regs.di)
        return 0

    def leaving(ri, regs):
        values.add(regs_return_value(regs))

    jp = Jprobe(Kprobe("other"), jumped)
    rps = [Kretprobe(Kprobe("other"), leaving, entry, maxactive=maxactive) for maxactive in (0, 3)]
    assert register_jprobe(jp) == register_kretprobes(rps) == 0
    assert register_kprobe(Kprobe("asked", pre_handler=CSource(calling))) == 0
    target.go(3)
    target.finish()
    assert [jp.nmissed, *(rp.nmissed for rp in rps)] == [3, 3, 3]
    assert [jp.kp.hits, *(rp.kp.hits for rp in rps)] == [15, 15, 15]
    assert (total(entered).count, total(values).count) == (45, 30)


def test_a_disabled_one_misses_nothing(target):
    """As in ``test_kprobe_missed``: what is not armed is not missed either."""
    with anyprobe.attach(target.pid):
        kp = Kprobe(symbol_name="chosen")
        assert register_kprobe(kp) == disable_kprobe(kp) == 0
        target.go(1)
        assert (kp.hits, kp.nmissed) == (0, 0)
        target.finish()
