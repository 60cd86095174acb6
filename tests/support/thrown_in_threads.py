"""Random sessions on a program whose threads throw, interrupted by timers: results, counts and memory are right."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from random import Random
from typing import Any

import anyprobe
from anyprobe.probes.providers.function.outside import leftover
from support.changes import patiently
from support.driver import build, started, wait_until
from support.image import Image

MICROSECONDS = "300"
"""Between two signals of each of the threads."""
OWN = ("tiny", "chosen", "looped", "thrower", "passer", "rethrower", "catcher", "again", "carried", "kept_quiet")
CALLERS = ("passer", "rethrower", "catcher", "again", "carried", "kept_quiet")
THROWING = ("__cxa_throw", "__cxa_rethrow")
STEADY = ("one_threads_round", "_Unwind_RaiseException", "_Unwind_Resume", "_Unwind_Resume_or_Rethrow", "__cxa_")
"""Beginnings of the names of functions that handlers do not call: they do the same in each round."""
RESTS = ("", "%return", "%insn", "%block", "%call")
LIBRARIES = ("libstdc++:__cxa_*", "libgcc_s:_Unwind_*", "libgcc_s:*", "libstdc++:__gxx_personality_v0",
             "libstdc++:_ZSt*exception*", "libc:malloc", "libc:free", "libc:mem*", "libc:_dl_find_object")  # fmt: skip

Place = tuple[str, str, int, str]
"""Function, kind, offset, and the probe."""


def a_spec(chance: Random) -> str:
    """Return what to count, by chance."""
    kind = chance.random()
    if kind < 0.4:
        rest = chance.choice(RESTS)
        return f"a.out:{chance.choice(CALLERS if rest == '%call' else OWN)}{rest}"
    if kind < 0.55:
        return f"a.out:*{chance.choice(RESTS)}"
    return f"{chance.choice(LIBRARIES[:3] if kind < 0.8 else LIBRARIES)}{chance.choice(RESTS[:-1])}"


class Thrown:
    """A run of the program, and what is known of a round: hits by function, kind and offset."""

    def __init__(self, target, chance, per_round):
        self.target, self.chance, self.per_round = target, chance, per_round
        self.rounds = self.compared = 0

    def random_session(self, steps, live):
        """Arm and remove at random while the program runs; between the steps compare what is counted."""
        before = Image.of(self.target.pid)
        self_time = self.chance.random() < 0.5
        session = patiently(anyprobe.attach, self.target.pid, live=live, self_time=self_time)
        held = []
        try:
            for _ in range(steps):
                self.target.run_freely()
                for _ in range(self.chance.randrange(1, 4)):
                    self.change(session, held)
                    self.target.check_alive()
                    self.target.idle(self.chance.random() * 0.02)
                self.target.halt()
                self.compare(session)
            ends_running = self.chance.random() < 0.5
            if ends_running:
                self.target.run_freely()
        finally:
            patiently(session.close)
        if ends_running:
            self.target.halt()
        self.expect_restored(before, session.warnings)
        self.target.go(1)

    def expect_restored(self, before, warnings):
        """Compare memory with what it was; what was said not to be quiet while threads ran is, now that they sleep."""
        if any("is not quiet yet" in text for text in warnings):
            print("  ", *warnings, flush=True)
            assert Image.of(self.target.pid).text == before.text
            wait_until(lambda: not leftover.remove(self.target.pid).not_quiet, "sleeping threads have left the patches")
        before.assert_restored(self.target.pid)

    def change(self, session, held):
        """Remove some probes, or add some."""
        if held and self.chance.random() < 0.45:
            gone = self.chance.sample(held, self.chance.randrange(1, len(held) + 1))
            print("   remove", *(probe.spec for probe in gone), flush=True)
            held[:] = [probe for probe in held if probe not in gone]
            patiently(session.remove, *gone)
        elif self.chance.random() < 0.3:
            name = f"a.out:{self.chance.choice(OWN)}"
            print("   time", name, flush=True)
            held += patiently(session.time, name)
        else:
            specs = sorted({a_spec(self.chance) for _ in range(self.chance.randrange(1, 4))})
            print("   count", *specs, flush=True)
            held += patiently(session.count, *specs)

    def compare(self, session):
        """Run rounds; compare hits with the program's own counts, and with those of earlier rounds."""
        rounds = self.chance.randrange(1, 4)
        hits, times, before = counted(session), timed(session), self.target.counts
        calls, returns = Counter(before.calls), Counter(before.returns)
        now = self.target.go(rounds)
        calls, returns = Counter(now.calls) - calls, Counter(now.returns) - returns
        left: dict[tuple[str, str], int] = Counter()
        wrong = []
        for (place, number), (_, earlier) in zip(counted(session), hits, strict=True):
            function, kind, offset, spec = place
            grown = number - earlier
            if kind == "return":
                left[function, spec] += grown
            elif offset == 0 and function in OWN + THROWING and grown != calls[function]:
                wrong.append(f"{spec}, {function}: {grown}, called {calls[function]} times")
            if function in OWN or function.startswith(STEADY):
                known = self.per_round.setdefault((function, kind == "return", offset), grown / rounds)
                self.compared += 1
                if grown != known * rounds:
                    wrong.append(f"{spec}, {function}+{offset:#x}: {grown} in {rounds} rounds, earlier {known} in one")
        for earlier, later in zip(times, timed(session), strict=True):
            if not later["armed"]:
                continue
            ended, thrown = (later[word] - earlier[word] for word in ("ended", "thrown"))
            function = later["function"]
            if ended != returns[function]:
                wrong.append(f"time {function}: {ended} ended, returned {returns[function]} times")
            if later["nested"] and thrown != calls[function] - returns[function]:
                wrong.append(f"time {function}: {thrown} left, {calls[function]} calls, {returns[function]} returns")
        for (function, spec), number in left.items():
            if function in OWN and number != returns[function]:
                wrong.append(f"{spec}, {function}: left {number} times, returned {returns[function]} times")
        assert not wrong, "\n".join(wrong[:20])


def counted(session) -> list[tuple[Place, int]]:
    """Return the hits of what is armed, each probe by itself."""
    probes = Counter()
    found = []
    for site in session.snapshot().sites:
        if site.armed:
            place = site.function, site.kind, site.offset, site.spec
            probes[place] += 1  # the same spec may have been asked for again
            found.append(((*place[:3], f"{site.spec} {probes[place]}"), site.hits))
    return found


def timed(session) -> list[dict[str, Any]]:
    """Return for each timed function how many calls have returned, and how many are under way or were left."""
    return [
        {
            "function": each.function,
            "ended": each.count + each.tail_exits + each.learning,
            "thrown": each.left + each.in_flight,
            "nested": each.nested is not None,
            "armed": any(place.armed for place in each.places),
        }
        for each in session.snapshot().functions
    ]


HOLDING_UP = """
import os, random, signal, sys, time
pid, chance, ended = int(sys.argv[1]), random.Random(int(sys.argv[2])), []
signal.signal(signal.SIGTERM, lambda *_: ended.append(True))
while not ended:
    time.sleep(chance.random() ** 2 * 0.1)
    if not ended:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.005 + chance.random() ** 2 * 0.08)
        os.kill(pid, signal.SIGCONT)
"""


@contextmanager
def held_up(seed: int) -> Iterator[None]:
    """Have this process stopped for moments at random, as a busy machine does: what it does takes long, now and then.

    Threads are stopped until signals are due, threads that wait for us go on alone, an ``int3`` stands for long.
    """
    with subprocess.Popen([sys.executable, "-c", HOLDING_UP, str(os.getpid()), str(seed)]) as process:
        try:
            yield
        finally:
            process.terminate()


def check_session(seed, per_round, options=(), steps=4, live=None, busy=False):
    """Have one program go through a random session; ``per_round`` keeps what is found of a round for the next ones."""
    chance = Random(seed)
    with (
        held_up(seed) if busy else nullcontext(),
        started(build("thrown_in_threads.cpp", *options), MICROSECONDS) as target,
    ):
        run = Thrown(target, chance, per_round)
        run.random_session(steps, chance.random() < 0.5 if live is None else live)
        counts = target.finish()
    assert counts.returns["look_back"] > 0
    return run.compared
