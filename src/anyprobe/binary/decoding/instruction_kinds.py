"""What many instructions are and what they do, found once for all that begin alike.

Both depend on the first bytes of an instruction only, on all but its displacement and its immediate: where these bytes
are the same, the rest of the instruction has the same form. So iced is asked about one of each kind.
"""

from array import array
from collections.abc import Callable
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from iced_x86 import Code, Decoder

from anyprobe.binary.decoding.instruction_masks import shape_number
from anyprobe.isa.decode import constants
from anyprobe.isa.effects import shape_of

if TYPE_CHECKING:
    from iced_x86 import Instruction
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]

_LONGEST = 7
"""How many bytes fit into a number beside the length of the instruction. What begins with more that counts, as hardly
any instruction does, is looked at alone."""
_SUFFIXED = frozenset(value for name, value in constants(Code).items() if name.startswith("D3NOW"))
"""The last byte of these says what they are."""
_KEPT = np.array([(1 << 8 * number) - 1 for number in range(_LONGEST + 1)], np.uint64)
_SPREAD_BITS, _SPREADING = 17, 0x9E3779B97F4A7C15
"""The size of a table, and what to multiply by so that the highest bits of all numbers differ (Fibonacci hashing)."""

_numbers: dict[bytes, int] = {}
"""The kinds, by the bytes that all instructions of one begin with."""
_codes, _masks = array("H"), array("i")
_numbering = Lock()
_said: list[dict[int, int]] = [{} for _ in range(_LONGEST + 1)]
"""By the number of first bytes that are looked at: the kinds by these and the length, -1 where more count."""


def kinds_of(content: bytes, lengths: "NDArray[np.uint8]") -> "Ints":
    """Return the kinds of instructions that lie in ``content`` one after the other."""
    until = np.cumsum(lengths, dtype=np.int64)
    padded = content + bytes(8)
    words = np.ndarray((len(content) + 1,), "<u8", buffer=padded, strides=(1,))[until - lengths]
    found = np.full(len(lengths), -1, np.int64)
    left = np.arange(len(lengths))

    def ask(number: int, most: int) -> int:
        end = int(until[number])
        raw = content[end - int(lengths[number]) : end]
        return _kind(Decoder(64, raw).decode(), raw, most)

    for most in range(1, _LONGEST + 1):
        sizes = lengths[left]
        keys = words[left] & _KEPT[np.minimum(sizes, most)] | sizes.astype(np.uint64) << np.uint64(8 * _LONGEST)
        found[left] = by_example(keys, _said[most], lambda at: ask(int(left[at]), most))  # noqa: B023 - asked at once
        left = left[found[left] < 0]
        if not len(left):
            break
    found[left] = [ask(number, len(content)) for number in left.tolist()]
    return found


def _kind(one: "Instruction", raw: bytes, most: int) -> int:
    """Return the kind of an instruction, -1 if more of its first bytes count."""
    begins = raw if one.code in _SUFFIXED else shape_of(one, raw)
    if len(begins) > most:
        return -1
    # the length is that of all, except for what is cut off
    key = begins + bytes([len(raw)])
    number = _numbers.get(key)
    if number is None:
        masks = shape_number(one, raw)
        with _numbering:  # modules are analysed in several threads: a number is one kind's
            number = _numbers.get(key)
            if number is None:
                _codes.append(one.code)
                _masks.append(masks)
                number = _numbers[key] = len(_codes) - 1
    return number


def codes_of(kinds: "Ints") -> "NDArray[np.uint16]":
    """Return what iced calls instructions of some kinds."""
    with _numbering:  # an array cannot grow while it is read
        codes = np.array(_codes, np.uint16)
    return codes[kinds]


def mask_numbers_of(kinds: "Ints") -> "NDArray[np.int32]":
    """Return what instructions of some kinds do, as numbers in ``instruction_masks.MASKS``."""
    with _numbering:
        masks = np.array(_masks, np.int32)
    return masks[kinds]


def by_example(keys: "NDArray[np.uint64]", said_before: dict[int, int], ask: "Callable[[int], int]") -> "Ints":
    """Return for each item what is said of one item with its key, now or before.

    The keys are spread over a table; one that shares its place there with another is tried again elsewhere. To sort
    them takes several times as long.
    """
    said = np.empty(len(keys), np.int64)
    left, factor = np.arange(len(keys)), _SPREADING
    table = np.zeros(1 << _SPREAD_BITS, np.int64)
    while len(left):
        own = keys[left]
        places = (own * np.uint64(factor) >> np.uint64(64 - _SPREAD_BITS)).astype(np.int64)
        table[places] = left
        examples = table[places]
        same = keys[examples] == own
        asked = np.zeros(len(keys), np.bool_)
        asked[examples] = True
        chosen = np.flatnonzero(asked)
        for number, key in zip(chosen.tolist(), keys[chosen].tolist(), strict=True):
            known = said_before.get(key)
            if known is None:
                known = said_before[key] = ask(number)
            said[number] = known
        said[left[same]] = said[examples[same]]
        left, factor = left[~same], factor * _SPREADING % (1 << 64)
    return said
