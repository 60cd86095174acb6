"""Reads ``tests/cases/*.case``: blocks of lines under a ``[name]``; ``#`` starts a comment line."""

from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Case:
    name: str
    lines: list[str] = field(default_factory=list)


def read_cases(name: str) -> list[Case]:
    found: list[Case] = []
    for line in (Path(__file__).parents[1] / "cases" / name).read_text().splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if line.startswith("["):
            found.append(Case(line.strip("[]")))
        else:
            found[-1].lines.append(line)
    return found
