"""Which return points are known before any call is seen: those of the functions with the fewest callers."""

import random

import pytest

from anyprobe.probes.providers.function.timing import return_points
from anyprobe.probes.providers.function.timing.return_points import fewest_points


def all_looked_at(followed, most):
    """Return the same as ``fewest_points``, with the callers of all functions looked at."""
    pairs = []
    for name in sorted(followed, key=lambda name: len(followed[name])):
        if len(pairs) + len(followed[name]) <= most:
            pairs += [(name, point) for point in followed[name]]
    return pairs


@pytest.mark.parametrize("most", [0, 1, 7, 40, 10_000])
@pytest.mark.parametrize("seed", range(20))
def test_callers_of_functions_with_many_calls_are_not_looked_at(monkeypatch, seed, most):
    """What looks like calls may be fewer than there are: functions that jump here have callers, too."""
    chosen = random.Random(seed)
    followed = {name: {name << 8 | at: True for at in range(chosen.randrange(12))} for name in range(60)}
    seen = {name: max(len(points) - chosen.choice([0, 0, 0, 3]), 0) for name, points in followed.items()}
    looked = []

    def points_known(name):
        looked.append(name)
        return followed[name]

    monkeypatch.setattr(return_points, "points_known", points_known)
    monkeypatch.setattr(return_points, "_calls_seen", seen.__getitem__)
    found = fewest_points(list(followed), most)
    assert found == all_looked_at(followed, most)
    last = max((len(followed[name]) for name, _ in found), default=0)
    assert all(seen[name] <= last + 1 for name in looked)
    assert len(looked) == len(set(looked))
