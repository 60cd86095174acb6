"""Fork children are counted, and told apart: by pid in snapshots, documents and tables."""

import json
import subprocess
import sys
from collections import Counter

import pytest

import anyprobe
from anyprobe.data.archives import archive

pytestmark = pytest.mark.live


def told(text):
    """Return what each process says of its own calls."""
    return {int(pid): int(calls) for pid, calls in map(str.split, text.splitlines())}


def run_counted(compiled, tmp_path, *arguments):
    """Run the program under the command; return what it says and what was found."""
    results = tmp_path / "results"
    command = [sys.executable, "-m", "anyprobe", "count", "a.out:work", *arguments, "-o", results]
    outcome = subprocess.run(
        [*command, "--", compiled("forks_many.c", "-pthread"), "6"], stdout=subprocess.PIPE, text=True, timeout=180
    )
    assert outcome.returncode == 0
    return told(outcome.stdout), results.read_text()


def test_each_process_has_what_it_says(compiled, tmp_path):
    """Children, children's children, and threads of children; their sum is what there was without telling apart."""
    program = compiled("forks_many.c", "-pthread")
    with open(tmp_path / "said", "w") as said, anyprobe.run([str(program), "6"], stdout=said) as session:
        session.count("a.out:work")
        session.resume()
        session.wait(180)
        snapshot = session.snapshot()
    calls = told((tmp_path / "said").read_text())
    assert len(calls) == 10
    found = Counter()
    for process, hits in snapshot.by_process.items():
        found[process.pid] += sum(hits.values())
    assert found == Counter(calls)
    assert snapshot.hits == sum(calls.values())
    assert archive.load(archive.dump(snapshot)).by_process == snapshot.by_process


def test_documents_name_processes(compiled, tmp_path):
    calls, text = run_counted(compiled, tmp_path, "--by", "pid", "--json")
    document = json.loads(text)
    (site,) = document["sites"]
    assert {int(pid): hits for pid, hits in site["by_pid"].items()} == calls
    assert {each["pid"] for each in document["processes"]} == set(calls)
    assert {each["generation"] for each in document["processes"]} == {1}


def test_the_table_has_a_row_for_each(compiled, tmp_path):
    calls, text = run_counted(compiled, tmp_path, "--by", "pid")
    rows = [line.split() for line in text.splitlines() if line.split()[3:4] == ["work"]]
    assert {int(row[1]): int(row[0]) for row in rows} == calls
    assert "not told apart" not in text


def test_where_children_are_not_told_apart_that_is_said(compiled, tmp_path):
    """In the table and in the document: a program that makes tasks itself has no thread slots."""
    results = tmp_path / "results"
    program = compiled("makes_tasks.c")

    def counted(*arguments):
        command = [sys.executable, "-m", "anyprobe", "count", "a.out:work", "--by", "pid", *arguments, "-o", results]
        assert subprocess.run([*command, "--", program, "raw"], stdout=subprocess.DEVNULL, timeout=180).returncode == 0
        return results.read_text()

    text = counted()
    assert "fork children are not told apart in work: their hits are in their parent's rows" in text
    (site,) = json.loads(counted("--json"))["sites"]
    assert (site["undivided"], list(site["by_pid"].values())) == (True, [50])


def test_programs_that_are_executed_are_processes_of_their_own(compiled, tmp_path):
    """The generations of one process are told apart in the document."""
    results = tmp_path / "results"
    program = compiled("executes.c")
    command = [sys.executable, "-m", "anyprobe", "count", "a.out:work", "--by", "pid", "--json", "-o", results]
    outcome = subprocess.run([*command, "--", program, "here", "execv", "2"], timeout=180, check=False)
    assert outcome.returncode == 0
    document = json.loads(results.read_text())
    assert [each["generation"] for each in document["processes"]] == [1, 2, 3]
    assert len({each["pid"] for each in document["processes"]}) == 1
    assert list(document["sites"][0]["by_pid"].values()) == [30]


@pytest.mark.parametrize("children", ["count", "ignore"])
@pytest.mark.parametrize(("number", "told"), [(6, 0), (600, 1)])
def test_more_children_than_can_be_told_apart_are_spoken_of(compiled, children, number, told):
    """There are blocks for five hundred; what further ones count stands in the program's row."""
    program = str(compiled("forks_many.c", "-pthread"))
    with anyprobe.run([program, str(number)], stdout=subprocess.DEVNULL, children=children) as session:
        session.count("a.out:work")
        session.resume()
        assert session.wait(100) == 0
        warnings = session.snapshot().warnings
    assert sum("too many fork children" in each for each in warnings) == told
