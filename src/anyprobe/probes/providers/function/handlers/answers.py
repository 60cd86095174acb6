"""What the thread that serves callbacks writes where threads of the program wait: answers, and places made free."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from anyprobe.splice.codegen.handlers import rendezvous
from anyprobe.target.system import futexes

_LOOK = 0.5
"""Seconds between two looks at which places were left behind."""


class Answers:
    """Writes answers where threads wait for them; belongs to the thread that serves."""

    def __init__(
        self, region: memoryview, places: Sequence[int], locks: "np.ndarray[Any, np.dtype[np.uint32]]"
    ) -> None:
        """Write to places in a region, at these addresses and with these locks."""
        self._region, self._places, self._locks = region, places, locks

    def place(self, number: int) -> memoryview:
        """Return the bytes of a place."""
        start = rendezvous.PLACES + number * rendezvous.PLACE_BYTES
        return self._region[start : start + rendezvous.PLACE_BYTES]

    def write(self, number: int, ticket: int, reply: Sequence[int], held: Sequence[int]) -> None:
        """Write an answer, the ticket last, and wake the thread that waits for it; ``held`` is that of its ``Hit``."""
        words = self.place(number).cast("Q")
        for index, word in enumerate(reply, rendezvous.REPLY // 8):
            words[index] = word
        for index, word in enumerate(held, rendezvous.RATE // 8):
            words[index] = word
        words[rendezvous.CHANGED // 8] = bool(reply)
        words[rendezvous.ANSWERED // 8] = ticket
        self._locks[number] = threading.get_native_id()
        futexes.wake(self._places[number])


class TakenPlaces:
    """Frees places whose holders were killed there."""

    def __init__(self, region: memoryview, count: int) -> None:
        """Look at so many places."""
        start, step = rendezvous.PLACES + rendezvous.HOLDER, rendezvous.PLACE_BYTES // 8
        self._tokens = np.frombuffer(region, np.uint64)[start // 8 :: step][:count]
        self._seen = self._tokens.copy()
        self._since = np.full(count, time.monotonic())
        self._next = 0.0

    def free(self, seconds: float) -> None:
        """Free the places that one holder has had for longer; looks twice a second, however often it is called."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + _LOOK
        tokens = self._tokens.copy()
        self._since[tokens != self._seen] = now
        self._seen = tokens
        self._tokens[(tokens != 0) & (now - self._since > seconds)] = 0
