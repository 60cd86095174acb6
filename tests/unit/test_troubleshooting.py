"""The page of symptoms knows every reason for which something is refused."""

import re
from pathlib import Path

import pytest

from anyprobe.core.refusal import Reason

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "troubleshooting.md").read_text()


@pytest.mark.parametrize("reason", Reason)
def test_each_reason_has_advice(reason):
    rows = [line for line in PAGE.splitlines() if f"`{reason.value}`" in line.partition(" | ")[0]]
    assert len(rows) == 1
    _, _, means, advice, _ = rows[0].split("|")
    assert means.strip()
    assert advice.strip()


def test_no_reason_is_made_up():
    section = PAGE.partition("## A site is refused")[2].partition("## ")[0]
    named = {
        name for line in section.splitlines() if line.startswith("| `")
        for name in re.findall(r"`([^`]+)`", line.split("|")[1])
    }  # fmt: skip
    assert named == {reason.value for reason in Reason}


@pytest.mark.parametrize("page", ["../README.md", "limits.md", "counting.md"])
def test_it_is_linked(page):
    assert "troubleshooting.md" in (DOCS / page).read_text()
