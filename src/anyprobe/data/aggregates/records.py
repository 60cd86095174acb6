"""Records as the user declares them and gets them: named, typed fields; rows, NumPy arrays, Arrow and Parquet."""

import heapq
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from anyprobe.core.arrays import unique
from anyprobe.core.errors import UsageError
from anyprobe.data.layouts.keys import NAMED, Names

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
else:
    from anyprobe.core.later import np

TIME = "ts"
"""The first field of every record: when it was emitted."""
RECORD_BYTES_LIMIT = 4096
KEPT_BYTES = 256 << 20
"""More memory is not kept for the next batches."""
_INTEGERS = {"u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64"}
_FLOATS = {"f32", "f64"}


class Field(NamedTuple):
    """One field. ``kind`` is the name of a number type (``u8`` to ``i64``, ``f32``, ``f64``), ``bool`` or ``text``.

    A text is kept in ``size`` bytes at most, cut or padded with zeros. A ``func``, an address of code, a ``stack``,
    the id of one, and a ``gotype`` are numbers that are shown by name.
    """

    name: str
    kind: str = "u64"
    size: int = 8

    @property
    def bytes(self) -> int:
        """Bytes in the record."""
        if self.kind == "text":
            return self.size
        if self.kind in NAMED:
            return 8
        return 1 if self.kind == "bool" else int(self.kind[1:]) // 8

    @property
    def dtype(self) -> str:
        """NumPy's name of the type."""
        if self.kind == "text":
            return f"S{self.size}"
        if self.kind in NAMED:
            return "<u8"
        return "?" if self.kind == "bool" else f"<{self.kind[0]}{self.bytes}"


@dataclass(frozen=True)
class RecordType:
    """What one ``emit(…)`` writes. Each field is aligned by its size, and a record takes whole words."""

    name: str
    fields: tuple[Field, ...]

    def __post_init__(self) -> None:
        """Refuse what no array can hold."""
        names = [field.name for field in self.fields]
        if len({TIME, *names}) != len(names) + 1:
            raise UsageError(f"{self.name}: the fields need different names, and {TIME!r} is the time")
        for field in self.fields:
            if field.kind not in _INTEGERS | _FLOATS | NAMED | {"bool", "text"} or field.bytes < 1:
                raise UsageError(f"{self.name}: {field.name} cannot be a {field.kind} of {field.size} bytes")
        if self.bytes > RECORD_BYTES_LIMIT:
            raise UsageError(f"{self.name}: {self.bytes} bytes are more than the {RECORD_BYTES_LIMIT} of a record")

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The offset of each field in the record, after the time."""
        found, end = [], 8
        for field in self.fields:
            alignment = 8 if field.kind == "text" else field.bytes
            end = (end + alignment - 1) // alignment * alignment
            found.append(end)
            # generated code writes a text as whole words
            end += (field.bytes + 7) // 8 * 8 if field.kind == "text" else field.bytes
        return (*found, end)

    @property
    def bytes(self) -> int:
        """Bytes of one record, its time included."""
        return (self.offsets[-1] + 7) // 8 * 8

    @cached_property
    def dtype(self) -> "np.dtype[np.void]":
        """The type of one element of the arrays: the time, then the fields."""
        return np.dtype(
            {
                "names": [TIME, *(field.name for field in self.fields)],
                "formats": ["<u8", *(field.dtype for field in self.fields)],
                "offsets": [0, *self.offsets[:-1]],
                "itemsize": self.bytes,
            }
        )


if TYPE_CHECKING:
    Records = NDArray[np.void]
else:
    Records = Any


class Gathering:
    """Batches of records that become one array, by time.

    Its memory is used again and again: new memory costs more than the copying.
    """

    def __init__(self, dtype: "np.dtype[np.void]") -> None:
        """Gather records of this type."""
        self._dtype = dtype
        self._plain = f"V{dtype.itemsize}"  # as plain bytes: numpy copies structures field by field
        self._room = np.empty(1024, self._plain)
        self._used = 0

    def add(self, batch: Records) -> Records:
        """Append a copy of a batch and return it, valid until ``take``."""
        end = self._used + len(batch)
        if end > len(self._room):
            room = np.empty(max(2 * len(self._room), end), self._plain)
            room[: self._used] = self._room[: self._used]
            self._room = room
        added = self._room[self._used : end]
        added[:] = batch.view(self._plain)
        self._used = end
        return added.view(self._dtype)

    def take(self) -> Records:
        """Return all batches as one array and begin anew; those of equal time stay in the order in which they came."""
        whole = self._room[: self._used]
        self._used = 0
        times = np.ascontiguousarray(whole.view(self._dtype)[TIME])
        sorted_already = (times[1:] >= times[:-1]).all()
        found = whole.copy() if sorted_already else whole.take(np.argsort(times, kind="stable"))
        if whole.nbytes > KEPT_BYTES:
            self._room = np.empty(1024, self._plain)
        return found.view(self._dtype)


def named(records: Records, kind: RecordType, names: Names) -> Records:
    """Return records with the names of what is shown by name: fields of Python strings in place of numbers."""
    shown = {field.name: field.kind for field in kind.fields if field.kind in NAMED}
    if not shown:
        return records
    assert records.dtype.names is not None
    columns = [(name, "O" if name in shown else records.dtype[name]) for name in records.dtype.names]
    found = np.empty(len(records), np.dtype(columns))
    for name in records.dtype.names:
        if name not in shown:
            found[name] = records[name]
            continue
        numbers = unique(records[name])
        places = np.searchsorted(numbers, records[name])
        texts = np.array([names(shown[name], number) for number in numbers.tolist()], dtype=object)
        found[name] = texts[places]
    return found


def rows(records: Records) -> Iterator[dict[str, Any]]:
    """Return records one by one, texts as strings."""
    assert records.dtype.names is not None
    for values in records.tolist():
        texts = (value.decode(errors="backslashreplace") if isinstance(value, bytes) else value for value in values)
        yield dict(zip(records.dtype.names, texts, strict=True))


def rows_by_time(batches: Mapping[str, Records]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the records of several types one by one, with the names of their types, in the order of time."""
    streams = [zip(itertools.repeat(name), rows(batch)) for name, batch in batches.items()]
    return heapq.merge(*streams, key=lambda item: item[1][TIME])


def _arrow() -> Any:  # noqa: ANN401 - a module
    try:
        import pyarrow as pa
    except ImportError:
        raise UsageError("Arrow and Parquet need pyarrow: pip install 'anyprobe[arrow]'") from None
    return pa


def as_arrow(records: Records) -> "pa.Table":
    """Return records as an Arrow table."""
    arrow = _arrow()
    names = records.dtype.names or ()
    columns = []
    for name in names:
        column = np.ascontiguousarray(records[name])
        if column.dtype.kind == "S":
            raw = arrow.array(column.tolist(), arrow.binary())
            try:
                columns.append(raw.cast(arrow.string()))
            except arrow.ArrowInvalid:  # not UTF-8
                columns.append(raw)
        else:
            columns.append(arrow.array(column))
    return arrow.Table.from_arrays(columns, names=list(names))


class ParquetWriter:
    """Writes batches of records to one Parquet file; a context manager."""

    def __init__(self, path: str) -> None:
        """Write to ``path``, which is made with the first batch."""
        self._path = path
        self._writer: Any = None
        _arrow()

    def write(self, records: Records) -> None:
        """Append records."""
        import pyarrow.parquet

        table = as_arrow(records)
        if self._writer is None:
            # dictionaries are tried first and given up for numbers that hardly repeat, which costs as much as writing
            self._writer = pyarrow.parquet.ParquetWriter(self._path, table.schema, use_dictionary=False)
        self._writer.write_table(table)

    def close(self) -> None:
        """Finish the file."""
        if self._writer is not None:
            self._writer.close()

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Finish the file."""
        self.close()
