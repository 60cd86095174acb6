"""A mix like pyperformance's, in miniature: told to go, it runs every part and prints CPU seconds by part.

An argument says how many threads beside the one that is told run the parts over and over.
"""

import json
import pickle
import random
import re
import sys
import threading
import time
from collections.abc import Callable


def objects() -> int:
    """Make objects and call methods of theirs (richards, deltablue)."""

    class Task:
        __slots__ = ("links", "state", "work")

        def __init__(self, state: int) -> None:
            self.state, self.work, self.links = state, 0, []

        def step(self, amount: int) -> int:
            self.work += amount
            self.state = (self.state * 5 + 1) % 64
            return self.state

    tasks = [Task(number) for number in range(60)]
    total = 0
    for turn in range(60):
        for task in tasks:
            total += task.step(turn)
    return total


def floats() -> float:
    """Move bodies (nbody)."""
    bodies = [[float(n), n * 0.5, 0.1, 0.0, 0.0, 0.0, 1.0 / (n + 1)] for n in range(5)]
    for _ in range(60):
        for i, a in enumerate(bodies):
            for b in bodies[i + 1 :]:
                dx, dy, dz = a[0] - b[0], a[1] - b[1], a[2] - b[2]
                strength = 0.01 / (dx * dx + dy * dy + dz * dz) ** 1.5
                a[3] -= dx * b[6] * strength
                a[4] -= dy * b[6] * strength
                b[3] += dx * a[6] * strength
                b[5] += dz * a[6] * strength
        for body in bodies:
            body[0] += 0.01 * body[3]
            body[1] += 0.01 * body[4]
    return bodies[0][0]


def integers() -> int:
    """Permute and count (fannkuch), and large integers (pidigits)."""
    most = 0
    order = list(range(7))
    random.seed(7)
    for _ in range(150):
        random.shuffle(order)
        work, flips = order[:], 0
        while work[0]:
            k = work[0] + 1
            work[:k] = work[k - 1 :: -1]
            flips += 1
        most = max(most, flips)
    q, r, k = 1, 0, 1
    for _ in range(150):
        q, r, k = q * k, (2 * q + r) * (2 * k + 1), k + 1
    return most + r % 7


_DOCUMENT = {"rows": [{"id": n, "name": f"row {n}", "values": [n * 0.5, n, None, True]} for n in range(20)]}


def documents() -> int:
    """Write and read documents (json_dumps, json_loads, pickle)."""
    text = ""
    for _ in range(8):
        text = json.dumps(_DOCUMENT)
        json.loads(text)
        pickle.loads(pickle.dumps(_DOCUMENT))  # noqa: S301 - our own
    return len(text)


_TEXT = "the quick brown fox, 12.5 times over <b>lazy</b> dogs at host-7.example.org; " * 12


def strings() -> int:
    """Search, split and join (regex, html, logging)."""
    found = 0
    for _ in range(6):
        found += len(re.findall(r"[a-z]+-\d+\.\w+", _TEXT)) + len(re.sub(r"<[^>]+>", "", _TEXT))
        words = _TEXT.split()
        found += len(" ".join(f"{word.upper():>8}" for word in words))
    return found


def tables() -> int:
    """Fill dictionaries and sets, sort, and go through generators (comprehensions, generators, sorting)."""
    seen: dict[str, int] = {}
    for number in range(600):
        seen[f"key{number % 97}"] = seen.get(f"key{number % 97}", 0) + number
    ordered = sorted(seen.items(), key=lambda pair: -pair[1])
    squares = {n: n * n for n in range(300)}

    def walk(depth: int):  # type: ignore[no-untyped-def]
        if depth:
            yield from walk(depth - 1)
            yield depth
            yield from walk(depth - 1)

    return len(ordered) + sum(squares.values()) + sum(walk(6))


def exceptions() -> int:
    """Raise, catch and unwind; recursion."""

    def fall(n: int) -> int:
        if n == 0:
            raise ValueError(n)
        return fall(n - 1) + 1

    caught = 0
    for _ in range(80):
        try:
            fall(10)
        except ValueError:
            caught += 1
    return caught


PARTS: tuple[Callable[[], object], ...] = (
    objects,
    floats,
    integers,
    documents,
    strings,
    tables,
    exceptions,
)
"""Each takes some milliseconds for as long as nothing is probed."""


def forever() -> None:
    """Run the parts over and over."""
    while True:
        for part in PARTS:
            part()


def main() -> None:
    """For each line of input run every part so many times; print the CPU seconds of each."""
    for part in PARTS:
        part()
    for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 0):
        threading.Thread(target=forever, daemon=True).start()
    print("ready", flush=True)
    for line in sys.stdin:
        seconds = []
        for part in PARTS:
            start = time.process_time()
            for _ in range(int(line)):
                part()
            seconds.append(time.process_time() - start)
        print(" ".join(f"{each:.6f}" for each in seconds), flush=True)


if __name__ == "__main__":
    main()
