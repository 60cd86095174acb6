"""Of tests with cases by the hundred `make test` runs a fixed part, chosen by their names; the torture has them all."""

import os
import random
from collections.abc import Iterable

import pytest


def left_out(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    """Return the cases that do not run: of each few neighbours, as many as the marker says, all but one.

    The first one's name chooses, so each run is alike, and of rows of parameters all columns are met.
    """
    tests: dict[object, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("sliced"):
            tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    found = []
    for cases in tests.values():
        each = cases[0].get_closest_marker("sliced").args[0]
        for first in range(0, len(cases), each):
            few = cases[first : first + each]
            chosen = random.Random(few[0].nodeid).choice(few)
            found += [case for case in few if case is not chosen]
    return found


def all_are_wanted(config: pytest.Config) -> bool:
    """Return whether no case may be left out: in the torture, and where files or single tests are named."""
    return config.getoption("--torture") or not all(os.path.isdir(each) for each in config.args)
