"""Chained files: every change of a line is found, and named by the line."""

import json
from threading import Thread

import pytest

from anyprobe.core.errors import UsageError
from anyprobe.data.archives.chain import FIRST, Chain, verify

LINES = 12


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "run.audit")


def made(path, events=LINES - 2, ends=True):
    chain = Chain(path, json.dumps)
    chain.add("begin", {"rules": "some"})
    for number in range(events):
        chain.add("open", {"path": f"/tmp/{number}", "result": number})
    if ends:
        chain.add("end", {"events": events})
    chain.close()
    return chain


def changed(path, change):
    with open(path, "rb") as file:
        lines = file.readlines()
    with open(path, "wb") as file:
        file.writelines(change(lines))


def test_a_whole_file_verifies(path):
    chain = made(path)
    found = verify(path, chain.last_hash)
    assert found.is_whole
    assert (found.lines, found.events, found.last_hash) == (LINES, LINES - 2, chain.last_hash)
    with open(path) as file:
        lines = [json.loads(line) for line in file]
    assert [each["prev"] for each in lines] == [FIRST, *(each["hash"] for each in lines[:-1])]


@pytest.mark.parametrize("number", [1, 2, 7, LINES])
def test_a_changed_line_is_named(path, number):
    made(path)
    at = number - 1
    changed(path, lambda lines: [*lines[:at], lines[at].replace(b'"seq"', b'"seg"', 1), *lines[at + 1 :]])
    assert [each.line for each in verify(path).faults] == [number]
    made_anew = path + "2"
    made(made_anew)
    changed(made_anew, lambda lines: [*lines[:at], lines[at].replace(b"e", b"f", 1), *lines[at + 1 :]])
    found = verify(made_anew)
    assert [each.line for each in found.faults] == [number]
    assert found.lines == number - 1
    assert not found.is_whole


def test_a_line_that_was_made_anew_with_its_hash_is_found_by_the_next(path):
    made(path)
    other = path + "2"
    chain = Chain(other, json.dumps)
    chain.add("begin", {"rules": "some"})
    chain.add("open", {"path": "/another", "result": 0})
    chain.close()
    with open(other, "rb") as file:
        another = file.readlines()[1]
    changed(path, lambda lines: [lines[0], another, *lines[2:]])
    assert [each.line for each in verify(path).faults] == [3]


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda lines: lines[:3] + lines[4:], [4]),  # one is missing
        (lambda lines: lines[1:], [1]),
        (lambda lines: [*lines[:3], lines[4], lines[3], *lines[5:]], [4, 5, 6]),  # two have changed places
        (lambda lines: [*lines[:4], lines[3], *lines[4:]], [5]),  # one stands there twice
        (lambda lines: [*lines[:4], b"\n", *lines[4:]], [5]),
    ],
)
def test_missing_and_moved_lines_are_named(path, change, named):
    made(path)
    changed(path, change)
    assert [each.line for each in verify(path).faults][: len(named)] == named


def test_a_file_that_was_cut_lacks_its_end(path):
    head = made(path).last_hash
    changed(path, lambda lines: lines[:5])
    found = verify(path)
    assert (found.faults, found.open_since, found.lines, found.is_whole) == ((), 1, 5, False)
    assert not verify(path, head).has_head


def test_a_torn_line_is_not_counted(path):
    made(path)
    changed(path, lambda lines: [*lines[:5], lines[5][:40]])
    found = verify(path)
    assert (found.is_torn, found.lines, found.is_whole) == (True, 5, False)
    with pytest.raises(UsageError, match="gone on with"):
        Chain(path, json.dumps)


def test_another_run_is_appended(path):
    first = made(path).last_hash
    second = made(path).last_hash
    found = verify(path, first)
    assert found.is_whole
    assert (found.lines, found.last_hash) == (2 * LINES, second)


def test_a_file_is_written_by_one_at_a_time(path):
    chain = Chain(path, json.dumps)
    with pytest.raises(UsageError, match="another audit"):
        Chain(path, json.dumps)
    chain.close()


def test_what_is_no_audit_is_not_appended_to(path):
    with open(path, "w") as file:
        file.write("root:x:0:0\n")
    with pytest.raises(UsageError, match="no file of an audit"):
        Chain(path, json.dumps)
    with open(path) as file:
        assert file.read() == "root:x:0:0\n"


def test_lines_of_several_threads_follow_one_another(path):
    chain = Chain(str(path), json.dumps)
    threads = [Thread(target=lambda: [chain.add("opened", {"n": n}) for n in range(300)]) for _ in range(4)]
    chain.add("begin", {})
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    chain.add("end", {})
    chain.close()
    assert verify(str(path)).is_whole
    assert verify(str(path)).lines == 1202
