"""The program that forks and calls as it is told (``forks_timed.c``): how it is started, and what it says."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ready(program: str, mode: str, count: int) -> "Iterator[subprocess.Popen[str]]":
    """Run the program up to where it waits to be told to fork."""
    with subprocess.Popen(
        [program, mode + "!", str(count)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process


def fork(process: "subprocess.Popen[str]", count: int) -> list[str]:
    """Tell the program to fork; return what each child says."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return [process.stdout.readline() for _ in range(count)]


def told(text: str) -> dict[int, tuple[int, ...]]:
    """Return what each process says of its calls: how many, and how many slept."""
    found = {}
    for pid, *calls in (map(int, line.split()) for line in text.splitlines() if line != "ready"):
        assert pid not in found
        found[pid] = tuple(calls)
    return found
