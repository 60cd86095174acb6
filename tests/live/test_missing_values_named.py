"""Where a missing value ends handlers it is said which value that was, and where it is written."""

import json

import pytest

from live.test_command_line import anyprobe
from support.driver import build

pytestmark = pytest.mark.live
PROGRAM = """
struct item { int count; struct item *next; };
__attribute__((noipa)) int looked_at(struct item *item) { return item ? item->count : 0; }
int main(void) {
    struct item only = {3, 0};
    for (int i = 0; i < 10; i++) { looked_at(&only); looked_at(0); }
    return 0;
}
"""
SCRIPT = """from anyprobe import Count, Sum, session

total, seen = Sum(), Count()


@session.entry("a.out:looked_at")
def handler(ctx, item):
    seen[1, {key}].add()
    if {condition}:
        total.add(1)
"""


@pytest.fixture(scope="module")
def program():
    return str(build("missing_values.c", text=PROGRAM))


def warnings(tmp_path, *words):
    results = tmp_path / "results.json"
    command, rest = words[: words.index("--")], words[words.index("--") :]
    found = anyprobe(*command, "--json", "-o", str(results), *rest)
    assert found.returncode == 0, found.stderr
    document = json.loads(results.read_text())
    return document["missing"]["abandoned"], document["warnings"]


@pytest.mark.parametrize(
    ("command", "ended", "said"),
    [
        (["hist", "--of", "item.count + 1"], 10, "item.count was missing, which has ended 10 runs of handlers"),
        (["hist", "--of", "item.next.count"], 20, "item.next.count was missing, which has ended 20 runs of handlers"),
        (["hist", "--of=1", "--by=item.count"], 10, "item.count was missing, which has ended 10 runs of handlers"),
        (
            ["hist", "--of", "item.count", "--by", "cpu, item.next.count"],
            20,
            "a missing value has ended 20 runs of handlers: item.count, or item.next.count",
        ),
        (["count", "--when", "item.count > 2"], 10, "item.count was missing, which has ended 10 runs of handlers"),
    ],
    ids=["value", "chain", "key", "several", "condition"],
)
def test_of_a_command(tmp_path, program, command, ended, said):
    name, *options = command
    assert warnings(tmp_path, name, "a.out:looked_at", *options, "--", program) == (ended, [said])


@pytest.mark.parametrize(
    ("key", "condition", "ended", "said"),
    [
        ("2", "item.next.count > 3", 20, "item.next.count ({file}:9) was missing, which has ended 20 runs of handlers"),
        ("item.count", "True", 10, "item.count ({file}:8) was missing, which has ended 10 runs of handlers"),
    ],
)
def test_of_a_script(tmp_path, program, key, condition, ended, said):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(key=key, condition=condition))
    found = warnings(tmp_path, "script", str(script), "--", program)
    assert found == (ended, [said.format(file=script.name)])


def test_nothing_is_said_where_none_was(tmp_path, program):
    results = tmp_path / "results.json"
    command = ["hist", "a.out:looked_at", "--of", "item.count", "--when", "item != 0"]
    found = anyprobe(*command, "--json", "-o", str(results), "--", program)
    assert "missing" not in found.stderr
