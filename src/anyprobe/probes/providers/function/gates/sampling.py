"""Which executions are followed where they come faster than probes can be placed: a sample that chance chooses."""

import math
import random

_HIGH, _LOW = 0.7, 0.2
"""Shares of what a queue can hold: from the one on a sample is taken, below the other all again, if these can be."""
_FULL = 0.8
"""The share of the time that may be spent on executions while a sample is taken."""
_WINDOW = 0.5
"""Seconds over which is counted how many come, and less in the beginning."""
_MOST = 1000
_WEIGHT = 0.2
"""The weight of the newest in the mean of what executions have taken."""


class Sample:
    """Chooses from the executions of one program, which wait for their turn.

    All are taken while they can be served in time. Otherwise it is one in ``one_in``, by chance: a choice by order
    would go along with an order of the program's.
    """

    def __init__(self, patience: float, places: int, now: float) -> None:
        """Take all. ``patience``: seconds that a thread waits; ``places``: how many can wait at once."""
        self._patience, self._places = patience, places
        self._chance = random.Random()  # noqa: S311 - no secret
        self._decided = self._arrived = 0
        self._since, self._rate, self._began = now, 0.0, now
        self._seconds = {True: 0.0, False: 0.0}
        """What has been spent on one that was taken, and on one that was not."""
        self._chooses = False
        self.one_in = 1
        """How many come for each that is taken now."""

    def takes(self, waiting: int, now: float) -> bool:
        """Return whether an execution is followed, with so many waiting after it."""
        self._decided += 1
        arrived, passed = self._decided + waiting, now - self._since
        if passed >= _WINDOW or self._since == self._began:
            self._rate = (arrived - self._arrived) / max(passed, _WINDOW / 10)
        if passed >= _WINDOW:
            self._since, self._arrived = now, arrived
        taken = self._seconds[True]
        held, wanted = max(waiting * taken / self._patience, waiting / self._places), self._wanted()
        if held > _HIGH:
            self._chooses = True
        elif held < _LOW and wanted == 1:
            self._chooses = False
        self.one_in = wanted if self._chooses else 1
        return self.one_in == 1 or self._chance.randrange(self.one_in) == 0

    def _wanted(self) -> int:
        """Return of how many one can be taken at the rate at which they come."""
        if not self._rate:
            return 1
        room = _FULL / self._rate - self._seconds[False]
        return min(max(math.ceil(self._seconds[True] / room), 1), _MOST) if room > 0 else _MOST

    def note(self, seconds: float, *, taken: bool) -> None:
        """Note what has been spent on one."""
        before = self._seconds[taken]
        self._seconds[taken] = before + _WEIGHT * (seconds - before) if before else seconds
