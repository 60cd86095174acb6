"""Instructions as Hypothesis draws them: prefixes, an opcode of some map, and any operands behind it."""

from hypothesis import strategies as st
from iced_x86 import Decoder

_LONGEST = 15
_byte = st.integers(0, 255)
_prefixes = st.lists(st.sampled_from(b"\x26\x2e\x36\x3e\x64\x65\x66\x67\xf0\xf2\xf3"), max_size=3).map(bytes)
_rex = st.one_of(st.just(b""), st.integers(0x40, 0x4F).map(lambda byte: bytes([byte])))
_legacy = st.tuples(_prefixes, _rex, st.sampled_from((b"", b"\x0f", b"\x0f\x38", b"\x0f\x3a"))).map(b"".join)
_vex = st.one_of(
    _byte.map(lambda byte: bytes([0xC5, byte])),
    st.builds(
        lambda high, number, byte: bytes([0xC4, high << 5 | number, byte]),
        *(st.integers(0, 7), st.integers(1, 3), _byte),
    ),
)
_evex = st.builds(
    lambda high, number, byte, last: bytes([0x62, high << 4 | number, byte | 4, last]),
    *(st.integers(0, 15), st.sampled_from((1, 2, 3, 5, 6)), _byte, _byte),
)


@st.composite
def instructions(draw):
    """Draw the bytes of one instruction: the first one that the decoder knows in what is drawn."""
    drawn = draw(st.one_of(_legacy, st.one_of(_vex, _evex))) + draw(st.binary(min_size=_LONGEST, max_size=_LONGEST))
    for start in range(len(drawn)):
        iced = Decoder(64, drawn[start : start + _LONGEST]).decode()
        if not iced.is_invalid:
            return drawn[start : start + iced.len]
    return b"\x90"
