"""What is said of functions that are made anew."""

from random import Random
from types import SimpleNamespace

from anyprobe.probes.providers.function.optimising.specialiser import Specialiser, together


def test_no_more_calls_are_said_to_have_all_values_than_must_have():
    assert together([0.9]) == 0.9
    random = Random(1)
    for _ in range(200):
        calls = [[random.random() < likely for likely in (0.95, 0.9, 0.85)] for _ in range(50)]
        shares = [sum(column) / len(calls) for column in zip(*calls, strict=True)]
        assert together(shares) <= sum(map(all, calls)) / len(calls) + 1e-9
    assert together([0.4, 0.4]) == 0.0


def test_functions_that_had_to_stay_are_not_among_those_that_were_made_anew():
    found, moved, stayed = Specialiser.__new__(Specialiser), object(), object()
    found._special = {moved: "of moved", stayed: "of stayed"}
    layout = SimpleNamespace(moved=[moved], refused={}, bytes=0, rebound=lambda: 0)
    assert found._known(layout)["specialised"] == ("of moved",)
