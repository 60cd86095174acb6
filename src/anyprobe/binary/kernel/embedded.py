"""A kernel's own listing of its symbols (``kallsyms``), read from its file: most ``vmlinux`` files have no other.

The names are compressed by tokens, of which there is one for each byte. The token of a character that names contain is
the character, so the digits stand in a row in the table of tokens: by them it is found. The offsets into it follow, and
the markers, which say where each 256th name begins, lie before it; before these lie the names and their number. The
addresses are before that, or after the tokens since Linux 6.4.
"""

import mmap
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anyprobe.binary.kernel.addresses import LOWEST

Content = bytes | mmap.mmap
_DIGITS = b"\x000\x001\x002\x003\x004\x005\x006\x007\x008\x009\x00"
_TOKENS, _GROUP, _FEWEST = 256, 256, 8
_LONG, _LONGEST_TOKEN = 0x80, 128
_FAR = 16 << 20
"""The names and all between them and the tokens take no more bytes."""
_MOST_BYTES = 300 * _GROUP
"""A group of names takes no more."""


def embedded_listing(content: Content) -> bytes:
    """Return the symbols in a file's content, as ``/proc/kallsyms`` would list them; nothing if there are none."""
    found = _find(content)
    if found is None:
        return b""
    addresses = _addresses(content, found)
    if addresses is None:
        return b""
    lines = zip(addresses.tolist(), found.names(content), strict=True)
    return "".join(f"{address:016x} {name[:1]} {name[1:]}\n" for address, name in lines).encode()


@dataclass(frozen=True, slots=True)
class _Places:
    """Where the parts are: the number of the names, the names, and what follows the tokens."""

    number_at: int
    count: int
    tokens: tuple[str, ...]
    after: int

    def names(self, content: Content) -> Iterator[str]:
        """Yield the names in the order of their addresses, each with the letter of its kind before it."""
        at, tokens = self.number_at + 8, self.tokens
        for _ in range(self.count):
            size, at = _size_at(content, at)
            yield "".join([tokens[each] for each in content[at : at + size]])
            at += size


def _size_at(content: Content, at: int) -> tuple[int, int]:
    """Return how many tokens a name has, and where they begin."""
    size = content[at]
    return (size, at + 1) if size < _LONG else (size & ~_LONG | content[at + 1] << 7, at + 2)


def _find(content: Content) -> _Places | None:
    at = content.find(_DIGITS)
    while at >= 0:
        found = _at_tokens(content, at + 1)
        if found is not None:
            return found
        at = content.find(_DIGITS, at + 1)
    return None


def _at_tokens(content: Content, digit: int) -> _Places | None:
    """Return the places if the token of ``0`` stands at ``digit``."""
    second = digit
    for _ in range(ord("0") - 1):
        second = content.rfind(b"\0", 0, second - 1) + 1
    end, tokens = second, [""]
    for _ in range(_TOKENS - 1):
        after = content.find(b"\0", end)
        tokens.append(content[end:after].decode("latin-1"))
        end = after + 1
    for start in range(second - 1 & ~7, max(second - _LONGEST_TOKEN, 0), -8):  # before it may stand anything
        tokens[0] = content[start : second - 1].decode("latin-1")
        offsets = np.cumsum([0, *(len(each) + 1 for each in tokens[:-1])]).astype("<u2").tobytes()
        index = content.find(offsets, end, end + len(offsets) + 8)
        number_at = _number_before(content, start) if index >= 0 else None
        if number_at is not None:
            return _Places(*number_at, tuple(tokens), index + len(offsets))
    return None


def _number_before(content: Content, tokens_at: int) -> tuple[int, int] | None:
    """Return where the number of the names stands, and it, from where the table of tokens begins."""
    low = max(tokens_at - _FAR, 0) & ~3
    words = np.frombuffer(content, "<u4", (tokens_at - low) // 4, low).astype(np.int64)
    steps = np.diff(words)
    ends = np.flatnonzero((steps <= 0) | (steps > _MOST_BYTES))  # after which no group of names follows
    ends = np.append(ends, len(steps))
    for run in np.argsort(-np.diff(ends), kind="stable").tolist():
        first, last = int(ends[run]) + 1, int(ends[run + 1])
        if last - first < _FEWEST:
            break
        if words[first] == 0:
            found = _number_at(content, low + 4 * first, words[first : last + 1])
            if found is not None:
                return found
    return None


def _number_at(content: Content, markers_at: int, markers: NDArray[np.int64]) -> tuple[int, int] | None:
    """Return where the number of the names stands, and it, if these are the markers."""
    groups, second = len(markers), int(markers[1])
    begin = markers_at - int(markers[-1]) & ~7
    for place in range(begin, max(begin - _MOST_BYTES, 0), -8):
        count, above = struct.unpack_from("<II", content, place)
        if not above and (groups - 1) * _GROUP < count <= groups * _GROUP and _is_group(content, place + 8, second):
            return place, count
    return None


def _is_group(content: Content, at: int, size: int) -> bool:
    """Return whether a group of names has so many bytes."""
    end = at + size
    for _ in range(_GROUP):
        length, at = _size_at(content, at)
        at += length
        if at > end:
            return False
    return at == end


def _addresses(content: Content, places: _Places) -> "NDArray[np.uint64] | None":
    """Return the addresses of all names: distances from a base, or those of data that each processor has."""
    bytes_of_all = 4 * places.count + 7 & ~7
    after = places.after + 7 & ~7
    before = places.number_at - 8
    for offsets_at, base_at in ((before - bytes_of_all, before), (after, after + bytes_of_all)):
        if offsets_at < 0 or base_at + 8 > len(content):
            continue
        (base,) = struct.unpack_from("<Q", content, base_at)
        if base < LOWEST:
            continue
        offsets = np.frombuffer(content, "<i4", places.count, offsets_at).astype(np.int64)
        relative = np.where(offsets < 0, -1 - offsets, 0).astype(np.uint64) + np.uint64(base)
        if np.any(offsets < 0):
            return np.where(offsets < 0, relative, offsets.astype(np.uint64))
        return offsets.astype(np.uint64) + np.uint64(base)
    return None
