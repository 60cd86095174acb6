"""Reading a snapshot: what tests compare with a target's own counts."""

import subprocess
from collections.abc import Callable, Iterable
from typing import Any

import anyprobe


def function_of(spec: str) -> str:
    """Return the function of a canonical spec; a C++ function may have colons in it."""
    return ":".join(spec.split(":")[2:-1])


def sites_of(snapshot: Any, function: str, kind: str) -> list[Any]:
    """Return the sites of ``function`` of one kind (entry or return)."""
    return [site for site in snapshot.sites if site.function == function and site.kind == kind]


def hits(snapshot: Any, function: str, kind: str = "entry") -> int:
    """Return the hits of a function's entry or of all its exits together."""
    return sum(s.hits for s in sites_of(snapshot, function, kind))


def missed(snapshot: Any) -> int:
    """Return how many hits were missed, of whatever site."""
    return int(snapshot.nmissed)


def records(session: Any, target: Any) -> dict[str, list[tuple[Any, ...]]]:
    """Have a target do one round and end; return the fields of the session's records by name, without their times."""
    target.go(1)
    target.finish()
    found = session.records(final=True)
    return {name: [tuple(row)[1:] for row in each.tolist()] for name, each in found.items()}


def timing(snapshot: Any, function: str) -> Any:
    """Return the timing record of a function."""
    (found,) = [f for f in snapshot.functions if f.function == function]
    return found


def strategies(snapshot: Any) -> set[str]:
    """Return the strategies in use."""
    return {str(s.strategy) for s in snapshot.sites if s.strategy}


def refusals(refused: Iterable[tuple[str, Any]]) -> dict[str, str]:
    """Return the reason by function of what was refused."""
    return {function_of(spec): str(refusal.reason) for spec, refusal in refused}


def counts(aggregation: Any) -> dict[Any, int]:
    """Return how often each key of an aggregation was counted."""
    return {key: cell.count for key, cell in aggregation.result().entries.items()}


def total(aggregation: Any) -> Any:
    """Return the cell of an aggregation without keys."""
    return aggregation.result().total


def run_as_unprobed(path: str, place: Callable[[Any], object]) -> tuple[Any, Any]:
    """Run a program with probes; return the snapshot, and what was refused. Its output is as it is without probes."""
    expected = subprocess.run([path], capture_output=True, text=True, check=True).stdout
    output = path + ".out"
    with open(output, "w", encoding="ascii") as stdout, anyprobe.run([path], stdout=stdout) as session:
        place(session)
        session.resume()
        assert session.wait(180) == 0
        snapshot, refused = session.snapshot(), session.refused
    with open(output, encoding="ascii") as lines:
        assert lines.read() == expected
    return snapshot, refused
