"""Types of records, and what becomes of them: rows, order, Arrow, Parquet."""

import numpy as np
import pytest

from anyprobe.core.errors import UsageError
from anyprobe.data.aggregates import records
from anyprobe.data.aggregates.records import Field, Gathering, ParquetWriter, RecordType, as_arrow, rows, rows_by_time

READ = RecordType("read", (Field("fd", "i32"), Field("name", "text", 5), Field("size"), Field("ok", "bool")))


def some(count=3):
    found = np.zeros(count, READ.dtype)
    found["ts"] = range(count)
    found["fd"] = range(-1, count - 1)
    found["name"] = [b"a\xffb", b"x", b""][:count]
    found["size"] = 1 << 40
    return found


def test_fields_are_aligned_and_records_are_whole_words():
    assert READ.offsets == (8, 16, 24, 32, 33)
    assert READ.bytes == READ.dtype.itemsize == 40


@pytest.mark.parametrize(
    "fields",
    [
        (Field("a"), Field("a")),
        (Field("ts"),),
        (Field("a", "u24"),),
        (Field("a", "text", 0),),
        (Field("a", "text", 5000),),
    ],
)
def test_impossible_records_are_refused(fields):
    with pytest.raises(UsageError, match="bad: "):
        RecordType("bad", fields)


def test_rows_have_names_and_texts():
    assert next(rows(some())) == {"ts": 0, "fd": -1, "name": "a\\xffb", "size": 1 << 40, "ok": False}


def test_records_of_several_types_come_by_time():
    reads, other = some(), np.zeros(2, RecordType("x", (Field("n"),)).dtype)
    reads["ts"], other["ts"] = [1, 5, 9], [5, 6]
    found = [(name, row["ts"]) for name, row in rows_by_time({"read": reads, "x": other})]
    assert found == [("read", 1), ("read", 5), ("x", 5), ("x", 6), ("read", 9)]


def test_batches_are_merged_by_time_and_equal_times_keep_their_order():
    first, second = some(), some()
    first["ts"], second["ts"] = [1, 5, 9], [2, 5, 7]
    second["fd"] = 77
    gathering = Gathering(READ.dtype)
    for batch in (first, second):
        gathering.add(batch)
    found = gathering.take()
    assert found["ts"].tolist() == [1, 2, 5, 5, 7, 9]
    assert found["fd"].tolist() == [-1, 77, 0, 77, 77, 1]
    assert not len(gathering.take())
    gathering.add(second[np.arange(3000) % 3])
    assert len(gathering.take()) == 3000
    assert found["ts"].tolist() == [1, 2, 5, 5, 7, 9]


def test_arrow_tables_have_typed_columns():
    arrow = pytest.importorskip("pyarrow", reason="pyarrow is optional and not installed")
    table = as_arrow(some())
    assert table.schema.field("fd").type == arrow.int32()
    assert table.schema.field("name").type == arrow.binary()  # not all are UTF-8
    found = some()
    found["name"] = b"abc"
    assert as_arrow(found).column("name").to_pylist() == ["abc"] * 3


def test_parquet_is_what_was_written(tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is optional and not installed")
    with ParquetWriter(str(tmp_path / "r.parquet")) as writer:
        writer.write(some())
        writer.write(some(1))
    table = parquet.read_table(tmp_path / "r.parquet")
    assert table.column("ts").to_pylist() == [0, 1, 2, 0]
    assert table.column("size").to_pylist() == [1 << 40] * 4


def test_without_pyarrow_the_error_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"anyprobe\[arrow\]"):
        ParquetWriter(str(tmp_path / "x"))
    assert records.TIME == "ts"
