import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anyprobe.core.errors import UsageError
from anyprobe.data.layouts.keys import UNKEYED, KeyPart, KeyShape

SHAPE = KeyShape((KeyPart("signed"), KeyPart("string", 2), KeyPart("unsigned"), KeyPart("string", 1)))


def decoded(*keys):
    rows = np.array([SHAPE.encode(key) for key in keys], np.uint64).reshape(len(keys), SHAPE.words)
    found = SHAPE.decode(rows)
    assert found == [SHAPE.key_of(row.tobytes()) for row in rows]
    return found


@settings(deadline=None)
@given(
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=16),
    st.integers(0, (1 << 64) - 1),
)
def test_keys_come_back(number, text, other):
    assert decoded((number, text, other, text[:8]), (0, "", 1, "x")) == [
        (number, text, other, text[:8]),
        (0, "", 1, "x"),
    ]


def test_texts_are_cut_at_their_bound_and_at_a_nul():
    assert decoded((1, "x" * 20, 2, "a\0b")) == [(1, "x" * 16, 2, "a")]


def test_what_is_not_utf8_can_be_told_apart():
    raw, shape = b"\xff\xfea\0\0\0\0\0", KeyShape((KeyPart("string", 1),))
    assert shape.decode(np.frombuffer(raw, np.uint64).reshape(1, 1)) == [("\\xff\\xfea",)]
    assert shape.key_of(raw) == ("\\xff\\xfea",)


@pytest.mark.parametrize("names", [None, lambda kind, number: f"{kind} {number}"])
def test_one_row_is_decoded_as_many_are(names):
    shape = KeyShape((KeyPart("stack"), KeyPart("func"), KeyPart("address"), KeyPart("signed")))
    words = np.array([[5, 6, 7, (1 << 64) - 8]], np.uint64)
    (many,) = shape.decode(words, names)
    one = shape.key_of(words.tobytes(), names)
    assert one == many
    assert list(map(str, one)) == list(map(str, many))


def test_a_key_has_its_limit():
    assert UNKEYED.words == 0
    assert KeyShape((KeyPart("string", 15), KeyPart())).words == 16
    with pytest.raises(UsageError, match="136 bytes is longer than the 128"):
        KeyShape((KeyPart("string", 16), KeyPart()))
