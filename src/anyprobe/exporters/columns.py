"""Recorded calls as a table for Arrow, Parquet, pandas, polars or DuckDB: a row for each call, by pyarrow."""

from typing import Any, TextIO

from anyprobe.core.errors import UsageError
from anyprobe.data.calls.matching import UNKNOWN
from anyprobe.data.calls.recording import Recording
from anyprobe.data.calls.timeline import Calls, values_of

_EXACT = 1 << 53
"""Up to here a floating point number holds each whole one."""


def write(recording: Recording, calls: Calls, form: str, stream: TextIO) -> None:
    """Write the calls as a file of a format: ``arrow`` (its file format, also called Feather 2) or ``parquet``."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise UsageError("Arrow and Parquet need pyarrow: pip install 'anyprobe[arrow]'") from None
    table = table_of(recording, calls)
    stream.flush()
    if form == "parquet":
        pq.write_table(table, stream.buffer)
    else:
        with pa.ipc.new_file(stream.buffer, table.schema) as writer:
            writer.write_table(table)
    stream.buffer.flush()


def table_of(recording: Recording, calls: Calls) -> Any:  # noqa: ANN401 - a table of pyarrow
    """Return the calls as a table: a column for each of what is known of them, and one for each label of values."""
    import pyarrow as pa

    threads, functions = recording.threads, recording.functions

    def named(numbers: Any, names: list[str]) -> Any:  # noqa: ANN401 - arrays
        return pa.DictionaryArray.from_arrays(pa.array(numbers), pa.array(names, pa.string()))

    def known(times: Any) -> Any:  # noqa: ANN401 - arrays
        return pa.array(times, mask=times <= UNKNOWN)

    columns = {
        "ts_ns": known(calls.begins),
        "duration_ns": known(calls.durations),
        "gone_by_ns": known(calls.gone),
        "pid": pa.array([each.pid for each in threads], pa.int32()).take(pa.array(calls.threads)),
        "tid": pa.array([each.tid for each in threads], pa.int32()).take(pa.array(calls.threads)),
        "thread": named(calls.threads, [each.name for each in threads]),
        "depth": pa.array(calls.depths),
        "module": named(calls.functions, [each.module for each in functions]),
        "function": named(calls.functions, [each.name for each in functions]),
    }
    values = values_of(recording, calls) or []
    for label in (*recording.at_entry.labels, *recording.at_return.labels):
        given = [each.get(label) for each in values]
        columns[f"{label} (value)" if label in columns else label] = _column(given)
    return pa.table(columns)


def _column(values: list[Any]) -> Any:  # noqa: ANN401 - an array of pyarrow
    """Return values of calls as one column, none of them rounded; functions may have values of different types."""
    import pyarrow as pa

    kinds = {type(each) for each in values if each is not None}
    if kinds == {bool, int}:
        values, kinds = [each if each is None else int(each) for each in values], {int}
    if kinds == {int}:
        least, most = (choose(each for each in values if each is not None) for choose in (min, max))
        whole = pa.int64() if most < 1 << 63 else pa.uint64() if least >= 0 else pa.decimal128(20)
        return pa.array(values, whole)
    if kinds == {int, float} and all(abs(each) <= _EXACT for each in values if isinstance(each, int)):
        return pa.array(values, pa.float64())
    if len(kinds) > 1:
        values = [each if each is None else str(each) for each in values]
    return pa.array(values)
