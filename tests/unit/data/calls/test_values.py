"""Values with recorded calls: which call has which, what is lost, what is damaged, and conditions on them."""

import random
from dataclasses import replace

import numpy as np
import pytest

from anyprobe.core.errors import UsageError
from anyprobe.data.archives import runs
from anyprobe.data.calls.conditions import condition
from anyprobe.data.calls.recorded import END_BITS, ENTRY, GAP, RETURN, Events
from anyprobe.data.calls.recording import Recording
from anyprobe.data.calls.values import Instant, Values, instants_line


def made(seed, *, lose_events=0.0, lose_values=0.0):
    """Return what two threads do: all events as rows, those that were kept, and the rows of values that were.

    A value is the number of its event.
    """
    numbers = random.Random(seed)
    rows, values = [], []
    lost = {0: 0, 1: 0}
    stacks: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    now = 1000
    for number in range(400):
        thread = numbers.randrange(2)
        stack = stacks[thread]
        if stack and (len(stack) > 4 or numbers.random() < 0.5):
            function, frame = stack.pop()
            end = RETURN
        else:
            function, frame = numbers.randrange(3), 4096 - 16 * len(stack)
            stack.append((function, frame))
            end = ENTRY
        now += numbers.randint(2, 5)
        if numbers.random() < lose_events:
            lost[thread] += 1
        else:
            if lost[thread]:
                rows.append((now, thread, lost[thread] << END_BITS | GAP, frame, None))
                lost[thread] = 0
            rows.append((now, thread, function << END_BITS | end, frame, number))
        if numbers.random() >= lose_values:
            values.append((now - 1, thread, function << END_BITS | end, frame, number))
    for thread, count in lost.items():
        if count:
            rows.append((now + 2, thread, count << END_BITS | GAP, 0, None))
    return rows, values


def events_of(rows):
    times, threads, what, frames = zip(*(each[:4] for each in rows), strict=True)
    return Events(
        np.array(times, np.int64), np.array(threads, np.uint32), np.array(what, np.uint32), np.array(frames, np.uint32)
    )


def values_of(rows, end):
    own = [each for each in rows if each[2] & 3 == end]
    return Values(events_of(own), (np.array([each[4] for each in own]),), np.zeros(len(own), np.uint32))


def written(path, rows, values, *, parts=1):
    with path.open("wb") as file:
        writer = runs.Writer(file, runs.RunInfo("record"))
        writer.put({"with": {"entry": ["number"], "return": ["result"]}})
        writer.put({"functions": [["a.out", name, False] for name in "fgh"]})
        writer.put({"threads": [[7, 7, "main"], [7, 8, "other"]]})
        for part in range(parts):
            for end, name in ((ENTRY, "entry"), (RETURN, "return")):
                found = values_of(values, end)
                chosen = np.arange(len(found.events)) % parts == part
                own = replace(found, events=found.events.part(chosen), columns=(found.columns[0][chosen],),
                              missing=found.missing[chosen])  # fmt: skip
                writer.put({"values": {"at": name, **own.document()}})
        writer.put({"events": events_of(rows).document()})
        writer.put({"instants": instants_line([Instant(5, 1, "usdt:a/b:c", {"arg0": 3, "text": "x"})])})
        writer.put({"left_out": 3})
        writer.put({"end": {"builds": {}}})
    return Recording(str(path))


@pytest.mark.parametrize("seed", range(4))
def test_each_event_has_its_own_value(tmp_path, seed):
    rows, values = made(seed)
    recording = written(tmp_path / "run.aprobe", rows, values, parts=3)
    recording.whole()
    for place, (_, _, what, _, number) in enumerate(rows):
        found = recording.at_entry.at(place) | recording.at_return.at(place)
        assert found == {"number" if what & 3 == ENTRY else "result": number}
    assert recording.instants == [Instant(5, 1, "usdt:a/b:c", {"arg0": 3, "text": "x"})]
    assert recording.left_out == 3


@pytest.mark.parametrize("seed", range(20))
def test_where_events_and_values_are_lost_no_call_has_those_of_another(tmp_path, seed):
    rows, values = made(seed, lose_events=0.2, lose_values=0.2)
    recording = written(tmp_path / "run.aprobe", rows, values)
    recording.whole()
    kept = {each[4] for each in values}
    right = 0
    for place, (*_, number) in enumerate(rows):
        found = {**recording.at_entry.at(place), **recording.at_return.at(place)}
        assert not found or [*found.values()] == [number]
        right += bool(found)
    assert right > len(kept & {each[4] for each in rows}) // 3


def test_damaged_lines_of_values_are_said_and_no_error(tmp_path):
    path = tmp_path / "run.aprobe"
    rows, values = made(1)
    good = values_of(values, ENTRY).document()
    for change in (
        {"columns": []},
        {"columns": [{"type": "<i8", "data": "AAAA"}]},
        {"columns": [{"type": "O", "data": ""}]},
        {"columns": [["x"]]},
        {"missing": {"type": "<u4", "data": "!"}},
        {"count": -1},
        {"at": "middle"},
    ):
        with path.open("wb") as file:
            writer = runs.Writer(file, runs.RunInfo("record"))
            writer.put({"with": {"entry": ["number"], "return": []}})
            writer.put({"functions": [["a.out", name, False] for name in "fgh"], "threads": [[7, 7, "m"], [7, 8, "o"]]})
            writer.put({"values": {"at": "entry", **good, **change}})
            writer.put({"events": events_of(rows).document()})
        recording = Recording(str(path))
        assert len(recording.whole()) == 0
        assert recording.damage, change


def test_conditions_are_what_python_says_where_all_is_known():
    values = {"n": 5, "path": "/tmp/x", "cstr(arg1, 8)": "abc", "part": 0.5}
    for text in (
        "n == 5", "n > 5", "3 < n <= 5", "n & 4 and path", "'tmp' in path", "not n == 5", "n % 2 == 1 or part > 1",
        "-n < -4", "part >= 0.5", "'x' not in path", "n + 1 == 6 and not part > 1",
    ):  # fmt: skip
        expected = bool(eval(text, {}, dict(values)))  # noqa: S307 - the conditions above
        assert bool(condition(text, values)(values)) == expected, text
    assert condition("cstr(arg1,8) == 'abc'", values)(values)


def test_what_is_missing_makes_a_condition_neither_true_nor_false():
    labels = ("n", "m")
    for text, values, wanted in (
        ("n > 3", {"n": None}, None),
        ("not n > 3", {}, None),
        ("n > 3 or m == 1", {"n": None, "m": 1}, True),
        ("n > 3 and m == 1", {"n": None, "m": 2}, False),
        ("n > 3 and m == 1", {"n": None, "m": 1}, None),
        ("n > 'x'", {"n": 3}, None),
        ("n % m == 0", {"n": 3, "m": 0}, None),
        ("'%999999999999d' % n == m", {"n": 3, "m": ""}, None),  # texts are not formatted
        ("'%c' % n == m", {"n": 1 << 40, "m": ""}, None),
    ):
        assert condition(text, labels)(values) is wanted, text


DEEP = ["1+" * 4000 + "1", "not " * 4000 + "1", "(" * 4000 + "n"]


@pytest.mark.parametrize(
    "text",
    ["n >", "len(n)", "__import__('os')", "n.real", "[n]", "lambda: 1", "other > 1", "", *DEEP],
    ids=lambda text: text[:16],
)
def test_what_is_no_condition_is_said_in_a_line(text):
    with pytest.raises(UsageError):
        condition(text, ("n",))
