"""Any number of probes that follow calls, at one function and in any order: each sees every call."""

import random

import pytest

import anyprobe
from anyprobe import Count
from anyprobe.kprobes import TRAMPOLINE, Kprobe, Kretprobe, register_kretprobe
from support.results import total

pytestmark = pytest.mark.live

DEPTH, ROUNDS = 10, 30
KINDS = ("time", "call", "ret", "kretprobe", "kretprobe 11", "trampoline", "count")


class Probes:
    """Probes at one function, and what each of them should have seen of its calls."""

    def __init__(self, session, function):
        self.session, self.function, self.spec = session, function, f"a.out:{function}"
        self.counts = {}

    def add(self, kind):
        number = len(self.counts)
        seen = Count(f"{kind} {number}")
        getattr(self, kind.partition(" ")[0])(seen, *map(int, kind.split()[1:]))
        self.counts[f"{kind} {number}"] = seen

    def time(self, _):
        self.session.time(self.spec)

    def count(self, _):
        self.session.count(f"{self.spec}%return")

    def call(self, seen):
        @self.session.call(self.spec)
        def entered(ctx):
            ctx.data.seen = 1

        @entered.ret
        def left(ctx):
            seen.add(key=ctx.data.seen)

    def ret(self, seen):
        @self.session.ret(self.spec)
        def left(ctx):
            seen.add(key=1)

    def kretprobe(self, seen, maxactive=0, flags=0):
        def handler(ri, regs):
            seen.add(key=ri.data.seen)

        def entry(ri, regs):
            ri.data.seen = 1
            return 0

        probe = Kretprobe(
            Kprobe(symbol_name=self.function, flags=flags), handler, entry_handler=entry, maxactive=maxactive
        )
        assert register_kretprobe(probe) == 0

    def trampoline(self, seen):
        self.kretprobe(seen, flags=TRAMPOLINE)


@pytest.mark.parametrize("seed", range(4))
def test_each_sees_every_call(run_target, seed):
    chance = random.Random(seed)
    order = [chance.choice(KINDS) for _ in range(6)]
    order += [kind for kind in ("time", "time") if order.count(kind) < 2]
    chance.shuffle(order)
    target = run_target("descends.c")
    with anyprobe.attach(target.pid) as session:
        probes = Probes(session, "deep")
        for kind in order:
            probes.add(kind)
        calls = target.go(ROUNDS).calls["deep"]
        snapshot = session.snapshot()
        assert calls == DEPTH * ROUNDS
        assert not snapshot.refused
        assert [(f.count, f.nmissed, f.unmatched) for f in snapshot.functions] == [(calls, 0, 0)] * order.count("time")
        assert sum(site.hits for site in snapshot.sites if site.kind == "return") % calls == 0
        seen = {name: total(count).count for name, count in probes.counts.items() if name[:2] not in ("ti", "co")}
        assert seen == dict.fromkeys(seen, calls), order
    target.finish()


@pytest.mark.parametrize("maxactive", [3, 4, 7])
def test_calls_left_by_longjmp_give_their_room_back(run_target, maxactive):
    target = run_target("descends.c")
    with anyprobe.attach(target.pid, maxactive=maxactive) as session:
        for _ in range(3):
            session.time("a.out:leaper")
        returns = target.go(300).returns["leaper"]
        found = [(f.count, f.nmissed, f.unmatched) for f in session.snapshot().functions]
        assert found == [(returns, 0, 0)] * 3
    target.finish()


@pytest.mark.parametrize("maxactive", [1, 2, 9, 19, 20, 21])
def test_calls_without_room_are_missed_at_both_ends(run_target, maxactive):
    target = run_target("descends.c")
    with anyprobe.attach(target.pid, maxactive=maxactive) as session:
        session.time("a.out:deep")
        session.time("a.out:deep")
        calls = target.go(ROUNDS).calls["deep"]
        timings = session.snapshot().functions
        assert [f.count + f.nmissed for f in timings] == [calls] * 2
        assert [f.unmatched for f in timings] == [f.nmissed for f in timings]
        assert sum(f.count for f in timings) == ROUNDS * min(maxactive, 2 * DEPTH)
    target.finish()
