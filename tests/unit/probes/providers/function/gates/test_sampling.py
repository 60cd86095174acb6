"""Which executions are followed where they come faster than probes can be placed, by a queue that is played through."""

from collections.abc import Sequence

from anyprobe.probes.providers.function.gates.sampling import Sample

PATIENCE, PLACES = 10.0, 256
TAKEN, PASSED = 0.02, 0.0005


def played(arrivals: Sequence[float], taken: float = TAKEN) -> tuple[list[bool], int, float]:
    """Serve executions one after the other; return which were taken, how many waited and how long at the most."""
    sample, now, most, longest = Sample(PATIENCE, PLACES, 0.0), 0.0, 0, 0.0
    found: list[bool] = []
    for number, came in enumerate(arrivals):
        now = max(now, came)
        waiting = sum(1 for each in arrivals[number + 1 : number + 2 + PLACES * 2] if each <= now)
        most, longest = max(most, waiting), max(longest, now - came)
        takes = sample.takes(waiting, now)
        spent = taken if takes else PASSED
        now += spent
        sample.note(spent, taken=takes)
        found.append(takes)
    return found, most, longest


def test_all_are_taken_that_can_be_served_in_time():
    assert all(played([number / 40 for number in range(2000)])[0])  # 40 a second, of 50
    assert all(played([0.0] * 170)[0])  # a burst that fits
    assert all(played([number * 0.4 for number in range(100)], taken=0.39)[0])


def test_one_in_k_is_taken_by_chance_where_they_come_too_fast():
    for rate in (100, 200, 500):
        found, most, longest = played([number / rate for number in range(60 * rate)])
        assert most < PLACES, rate
        assert longest < PATIENCE, rate
        share = sum(found) / len(found)
        served = (1 - PASSED * rate) / TAKEN / rate  # what there is time for
        assert 0.5 * served < share < 1.1 * served, rate
        later = found[5 * rate :]  # each tenth of them has its share
        parts = [later[at : at + len(later) // 10] for at in range(0, len(later) - 9, len(later) // 10)]
        shares = [sum(part) / len(part) for part in parts[:10]]
        assert max(shares) < 2 * min(shares), rate
        assert len({tuple(part[:40]) for part in parts}) > 5  # and not the same ones each time


def test_all_are_taken_again_when_they_come_slowly():
    fast, slow = [number / 200 for number in range(4000)], [20 + 0.5 + number / 10 for number in range(300)]
    found, _, _ = played([*fast, *slow])
    assert not all(found[:4000])
    assert all(found[-200:])
