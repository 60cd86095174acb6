"""Random sessions on every situation at once: what is armed, when and for how long is chance; results never change."""

import random
import time

import pytest

import anyprobe
from support.driver import started
from support.situations import SITUATIONS

SECONDS = 20.0


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda s: s.name)
def test_random_session(situation):
    """Arm and remove at random for a while."""
    chance = random.Random(situation.name)
    with started(situation.build(), *situation.arguments) as target:
        functions = list(target.go(0).calls)
        specs = [f"{m}:{f}{r}" for f in functions for r in ("", "%return") for m in ("a.out",)]
        specs += ["libc:mem*", "libc:*alloc*", "libc:pthread_*", "libc:sig*%return", "a.out:*"]
        target.run_freely()
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            target.check_alive()
            with anyprobe.attach(target.pid) as session:
                held: list[anyprobe.Probe] = []
                for _ in range(chance.randrange(1, 6)):
                    arm = chance.choice([session.count, session.count, session.time])
                    held += arm(*chance.sample(specs, min(len(specs), chance.randrange(1, 4))))
                    target.check_alive()
                    target.idle(chance.random() * 0.05)
                    if held and chance.random() < 0.5:
                        gone = chance.sample(held, chance.randrange(1, len(held) + 1))
                        session.remove(*gone)
                        held = [probe for probe in held if probe not in gone]
                target.check_alive()
        target.halt()
        target.finish()
