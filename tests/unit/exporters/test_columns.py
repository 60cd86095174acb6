"""Values of calls as columns of Arrow: each is what it was, also beside values of other types."""

import math

import pytest

from anyprobe.exporters.columns import _column

pa = pytest.importorskip("pyarrow", reason="pyarrow is optional and not installed")
LARGE, MOST = (1 << 53) + 1, (1 << 64) - 1
EXACT = (
    ([3, None, -4], "int64"),
    ([MOST, None, 0], "uint64"),
    ([MOST, -1, 1 << 63], "decimal128(20, 0)"),
    ([True, False, None], "bool"),
    ([True, 7], "int64"),
    ([1, 2.5, None], "double"),
    (["a", None], "string"),
    ([None, None], "null"),
    ([], "null"),
)
AS_TEXTS = ([LARGE, 2.5], [2.5, MOST], [True, 0.5], ["a", 1, None], [1 << 63, -1, "x"])


@pytest.mark.parametrize(("values", "kind"), EXACT, ids=str)
def test_values_of_one_kind_are_numbers_as_they_were(values, kind):
    column = _column(values)
    assert (column.to_pylist(), str(column.type)) == (values, kind)


@pytest.mark.parametrize("values", AS_TEXTS, ids=str)
def test_what_no_number_of_one_type_can_hold_is_text(values):
    assert _column(values).to_pylist() == [each if each is None else str(each) for each in values]


def test_no_number_stays_no_number():
    assert math.isnan(_column([1, math.nan]).to_pylist()[1])
