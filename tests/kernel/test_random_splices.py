"""Splices at random places of all of the kernel's text: nothing is harmed, and no hit is lost.

Places in twos, of which one always leads to the other, are passed equally often.
"""

import os
import time
from collections import Counter

import pytest

from anyprobe.core.refusal import Reason
from anyprobe.probes.providers.kernel.places.sites import KernelNames
from anyprobe.target.kernel import preemption
from support import checked_work, disturbances, guest_driver, kernel_patches, place_planner
from support.place_planner import Batch

SAMPLE = Batch(seed=28, size=10_000)
"""What every run of the tests has; it is planned while other tests run."""
BATCHES = int(os.environ.get("ANYPROBE_RANDOM_BATCHES", "4"))
FIRST = int(os.environ.get("ANYPROBE_RANDOM_FIRST", "0"))
"""How many batches of the torture, and the first one's number: all together are all places of the kernel."""
SIZE, SEED = 5_000, 28
_STALE = {Reason.FOREIGN_BYTES, Reason.KERNEL_REFUSES, Reason.OVERLAP, Reason.NOT_A_BOUNDARY}
"""What the driver has never to say of a plan."""


@pytest.fixture(scope="module")
def planner():
    """Return who plans beside the guest."""
    with place_planner.asking() as asked:
        yield asked


def armed_and_worked(planner, batch, folder):
    """Splice a batch of places, and work; what is passed equally often has equal counts."""
    began = time.monotonic()
    whole, chosen = planner.spliced(batch, KernelNames())
    armed_at = time.monotonic()
    try:
        checked_work.ping_pong()
        checked_work.files(folder)
        checked_work.echo()
        worked_at = time.monotonic()
        everything = range(len(chosen.sites))
        whole.remove(everything)
        counts, refused = whole.counts(everything), whole.refused
    finally:
        whole.close()
    reasons = Counter(why.reason for why in refused.values())
    pairs = [pair for pair in chosen.pairs if refused.keys().isdisjoint(pair)]
    unequal = [(chosen.sites[one].spec, counts[one], chosen.sites[other].spec, counts[other])
               for one, other in pairs if counts[one] != counts[other]]  # fmt: skip
    print(
        f"{batch}: {len(chosen.sites) - len(refused)} of {len(chosen.sites)} places armed in "
        f"{armed_at - began:.1f} s, removed in {time.monotonic() - worked_at:.1f} s, refused: {dict(reasons)}; "
        f"{sum(counts)} hits at {sum(count > 0 for count in counts)} places, "
        f"{sum(counts[one] > 0 for one, _ in pairs)} of {len(pairs)} pairs hit, unequal: {unequal}"
    )
    assert len(refused) <= len(chosen.sites) // 10
    assert reasons.keys().isdisjoint(_STALE), [why for why in refused.values() if why.reason in _STALE]
    assert sum(count > 0 for count in counts) >= batch.size // 50
    # a task that was preempted between the two when they were armed or taken away has passed one of them alone
    most = 1 if preemption.is_preemptible() else 0
    assert [each for each in unequal if abs(each[1] - each[3]) > most] == []
    assert len(unequal) <= most * len(pairs) // 1000


def test_ten_thousand_places_are_armed_at_once(loaded, planner, folder):
    planner.begin(SAMPLE)
    checked_work.warm_up(folder)
    with kernel_patches.unharmed():
        armed_and_worked(planner, SAMPLE, folder)


@pytest.mark.thorough
@pytest.mark.torture
@pytest.mark.timeout(12 * 3600)
def test_all_places_in_batches_while_the_kernel_changes_its_text(loaded, planner, folder):
    planner.begin()
    live_patch = guest_driver.module("live_patch", os.uname().release)
    with disturbances.going_on(live_patch), checked_work.going_on(folder):  # what flips once has flipped then
        checked_work.warm_up(folder)
    with kernel_patches.unharmed():
        for number in range(FIRST, FIRST + BATCHES):
            with disturbances.going_on(live_patch), checked_work.going_on(folder):
                armed_and_worked(planner, Batch(SEED, SIZE, number), folder)
