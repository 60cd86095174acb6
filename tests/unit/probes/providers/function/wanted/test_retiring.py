"""Splices that displace what runs often although flags of theirs are not set: which are found hot, look by look."""

import random
from types import SimpleNamespace

import numpy as np

from anyprobe.probes.providers.function.wanted.retiring import _Mixed


def test_a_unit_is_hot_if_it_was_or_if_a_flag_of_its_own_is_hit_again():
    chance = random.Random(1)
    hooks = [SimpleHook(chance.random() < 0.5) for _ in range(300)]
    numbers = {hook: number for number, hook in enumerate(hooks)}
    units = [SimpleNamespace(hooks=hooks[at : at + 3]) for at in range(0, 300, 3)]
    were_hot = [chance.random() < 0.1 for _ in units]
    mixed = _Mixed([("state", "touched", *each) for each in zip(units, were_hot, strict=True)], numbers)
    for _ in range(5):
        hit = {number for number in range(300) if chance.random() < 0.2}
        expected = [
            unit
            for unit, was_hot in zip(units, were_hot, strict=True)
            if was_hot or any(hook.was_set and numbers[hook] in hit for hook in unit.hooks)
        ]
        assert [unit for _, _, unit in mixed.hot(lambda asked, hit=hit: np.isin(asked, list(hit)))] == expected
        assert 0 < len(expected) < len(units)


def test_of_no_units_none_is_hot():
    assert not [*_Mixed((), {}).hot(lambda asked: np.zeros(len(asked), bool))]


class SimpleHook:
    def __init__(self, was_set):
        self.was_set = was_set
