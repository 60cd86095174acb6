"""Records as lines and documents, and lines of traces, without a process."""

import io
import json

import numpy as np
import pytest

from anyprobe.cli.events.tracing import Trace, Traced
from anyprobe.cli.handlers import records
from anyprobe.cli.handlers.handlerplaces import Ends, HandlerPlace
from anyprobe.data.aggregates.records import Field, RecordType
from anyprobe.probes.specs.spec import parse
from anyprobe.reports.records import line
from anyprobe.reports.trace import value


class Session:
    """Has emitted some records."""

    has_listeners = False

    def __init__(self, pid, batches, dropped=None):
        self.pid, self.batches, self.probes = pid, batches, []
        self.handling, self._dropped = self, dropped or {}

    def records(self, **_):
        batches, self.batches = self.batches, []
        return iter(batches)

    def dropped(self):
        return self._dropped


def batch(name, form="", **columns):
    kinds = {
        each: Field(each, "text", 8) if isinstance(column[0], bytes) else Field(each)
        for each, column in columns.items()
    }
    kinds.pop("ts")
    made = np.zeros(len(columns["ts"]), RecordType(name, tuple(kinds.values())).dtype)
    for each, column in columns.items():
        made[each] = column
    return name, form, made


def test_text_in_the_order_of_time_over_records_and_sessions():
    first = Session(1, [batch("a", "a {n}", ts=[10, 30], n=[1, 3]), batch("b", ts=[20], n=[2])])
    second = Session(2, [batch("a", "A {n}\n", ts=[15], n=[9])])
    stream = io.StringIO()
    assert records.TextRecords().look([first, second], stream) == 4
    assert stream.getvalue() == "a 1\nA 9\nb n=2\na 3\n"


def test_what_moves_the_cursor_is_escaped():
    assert line("x", "<{t}>", {"ts": 1, "t": "\x1b[2J\n"}) == "<\\x1b[2J\\n>"
    assert value("a\tb") == '"a\\tb"'


def test_documents_have_records_by_name_once(monkeypatch):
    monkeypatch.setattr(records, "DOCUMENT_LIMIT", 3)
    kept = records.KeptRecords()
    kept.look([Session(1, [batch("a", "t {n}", ts=[1, 2, 3, 4, 5], n=[1, 2, 3, 4, 5])])], io.StringIO())
    document = kept.document()
    assert [row["n"] for row in document["records"]["a"]] == [1, 2, 3]
    assert document["records"]["a"][0]["text"] == "t 1"
    assert document["records_left_out"] == {"a": 2}
    assert kept.document() == {}


@pytest.mark.parametrize(
    ("given", "shown"), [(None, "?"), (True, "True"), (1.5, "1.5"), (-7, "-7"), (1 << 40, "0x10000000000")]
)
def test_values(given, shown):
    assert value(given) == shown


def trace(session, *, as_json, **settings):
    made = Trace(as_json=as_json, **settings)
    place = HandlerPlace(parse("libc:read"), Ends.ENTRY)
    fields = ("tid", "cpu", "ip", "parameter0", "parameter1")
    made._traced[session] = {"hit 0": Traced(place, fields[3:], ("fd", "buf"), fields, True)}
    return made


def hits(count):
    columns = {each: [3] * count for each in ("tid", "cpu", "ip", "parameter0", "parameter1")}
    return batch("hit 0", ts=range(count), **columns, missing=[1 << 4] * count)


def test_lines_of_a_trace_end_when_there_are_enough():
    stream, session = io.StringIO(), Session(1, [hits(5)])
    made = trace(session, as_json=True, most=2)
    made.look([session], stream)
    found = [json.loads(each) for each in stream.getvalue().splitlines()]
    assert [each["args"] for each in found] == [{"fd": 3, "buf": None}] * 2
    assert made.enough


def test_what_was_dropped_is_told_once(capsys):
    session = Session(1, [hits(1)], {"hit 0": {"ring full": 1200}})
    made = trace(session, as_json=False)
    for _ in range(3):
        made.look([session], io.StringIO(), final=True)
    assert capsys.readouterr().err == "anyprobe: 1,200 hits have no line: they came faster than they could be shown\n"
