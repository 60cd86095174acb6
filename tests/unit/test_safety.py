"""docs/safety.md: each rule names tests that exist, and comments cite rules that exist."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RULES = dict(
    re.findall(r"^### (\d+)\. (.*?)(?=^##|\Z)", (ROOT / "docs/safety.md").read_text(), re.MULTILINE | re.DOTALL)
)
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
CITED = re.compile(r"(?:SAFETY|safety\.md, rule|[Ss]afety rule) (\d+)")


@cache
def names_in(path):
    """Return the names of a file's test functions, none where there is no such file."""
    if not (ROOT / path).is_file():
        return frozenset()
    tree = ast.parse((ROOT / path).read_text(), path)
    return frozenset(node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def test_rules_are_numbered_without_gaps():
    assert [int(number) for number in RULES] == list(range(1, len(RULES) + 1))


@pytest.mark.parametrize("number", RULES)
def test_every_rule_names_tests_that_exist(number):
    named = NAMED.findall(RULES[number])
    assert named, "a rule without a test"
    missing = [f"{path}::{name}" for path, name in named if name not in names_in(path)]
    assert not missing


def test_rules_that_are_cited_exist():
    cited = {
        (path.relative_to(ROOT).as_posix(), number)
        for folder in ("src", "tests")
        for path in (ROOT / folder).rglob("*.py")
        for number in CITED.findall(path.read_text())
    }
    assert cited, "the sources cite rules"
    assert not [each for each in cited if each[1] not in RULES]
