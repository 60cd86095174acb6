"""Words that make a reader guess, in the sources: as many as there are, and never more."""

import re
from functools import cache
from pathlib import Path

import pytest

import anyprobe

SOURCES = sorted(Path(anyprobe.__file__).parent.rglob("*.py"))
BUDGETS = {
    # after; what is "left behind" is English
    r"(?<!left )(?<!leave )(?<!leaves )(?<!leaving )\bbehind\b": 13,
    r"\bin front of\b": 3,
    r"\b(nobody|somebody|whoever|who waits)\b": 6,
    r"\bours\b": 4,
    r"\b(see_\w+)\b": 0,
    r"\b\w*(?<!ad)dress(ed|ing)?(_\w+)?\b(?<!address)": 0,
    r'^(class |def |\s)*"""(Of|The same|Those) ': 1,
}
"""How often each pattern may be in names, docstrings, comments and texts. It is lowered when some are gone."""


@cache
def words():
    """Return each line of the sources with its place."""
    return [
        (f"{path.name}:{number}", line)
        for path in SOURCES
        for number, line in enumerate(path.read_text().splitlines(), 1)
    ]


@pytest.mark.parametrize("pattern", BUDGETS)
def test_words_that_make_a_reader_guess_become_fewer(pattern):
    found = [f"{place}: {line.strip()}" for place, line in words() if re.search(pattern, line, re.IGNORECASE)]
    assert len(found) <= BUDGETS[pattern], "\n".join(found)
