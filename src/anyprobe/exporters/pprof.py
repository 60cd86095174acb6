"""Profiles for pprof (``go tool pprof``), and for what takes these: Pyroscope, Parca, Grafana, speedscope.

The format is https://github.com/google/pprof/blob/main/proto/profile.proto, compressed by gzip: a message of numbered
fields. A sample is a stack, with how many calls or samples there were, and its own nanoseconds.
"""

import gzip
import struct
from collections.abc import Iterable
from typing import TextIO

from anyprobe.core.printable import printable
from anyprobe.exporters.base import Measurement, Needs
from anyprobe.exporters.stacks import stacks, trees

_SAMPLE_TYPE, _SAMPLE, _MAPPING, _LOCATION, _FUNCTION, _STRING, _DURATION = 1, 2, 3, 4, 5, 6, 10
"""Numbers of the fields of a profile."""


class Pprof:
    """Writes one profile; where processes are told apart, each sample has its process as the label ``process``."""

    name = "pprof"
    needs = Needs.TREE
    holds_warnings = False
    may_repeat = False

    def write(self, found: Measurement, stream: TextIO) -> None:
        """Write the stacks of each tree."""
        stream.flush()
        stream.buffer.write(gzip.compress(profile(found), mtime=0))  # results go to a stream of text over one of bytes
        stream.buffer.flush()


def profile(found: Measurement) -> bytes:
    """Return the profile as a message."""
    texts: dict[str, int] = {"": 0}
    modules: dict[str, int] = {}
    functions: dict[tuple[str, str], int] = {}

    def text(value: str) -> int:
        return texts.setdefault(printable(value), len(texts))

    out = bytearray()
    kinds = ((found.counted, "count"), ("time", "nanoseconds"))
    for kind, unit in kinds[:1] if found.counts else kinds:
        out += part(_SAMPLE_TYPE, number(1, text(kind)) + number(2, text(unit)))
    for process, tree in trees(found):
        label = part(3, number(1, text("process")) + number(2, text(process))) if process else b""
        for calls, own in stacks(tree):
            places = [
                functions.setdefault((call.module, call.function), len(functions) + 1) for call in reversed(calls)
            ]
            out += part(
                _SAMPLE, numbers(1, places) + numbers(2, (own,) if found.counts else (calls[-1].count, own)) + label
            )
    for (module, function), place in functions.items():
        mapping = modules.setdefault(module, len(modules) + 1)
        line = part(4, number(1, place))
        out += part(_LOCATION, number(1, place) + number(2, mapping) + line)
        named = number(2, text(function)) + number(3, text(function)) + number(4, text(module))
        out += part(_FUNCTION, number(1, place) + named)
    for module, mapping in modules.items():  # with functions: names are known already
        out += part(_MAPPING, number(1, mapping) + number(5, text(module)) + number(7, 1))
    for each in texts:
        out += part(_STRING, each.encode())
    out += number(_DURATION, round((found.last or found.together).duration_s * 1e9))
    return bytes(out)


def varint(value: int) -> bytes:
    """Return a number modulo 2**64 in groups of seven bits, the lowest first; all but the last have the highest bit."""
    out, value = bytearray(), value & (1 << 64) - 1
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    """Return a field with a number."""
    return varint(field << 3) + varint(value)


def double(field: int, value: float) -> bytes:
    """Return a field with a floating point number."""
    return varint(field << 3 | 1) + struct.pack("<d", value)


def part(field: int, content: bytes) -> bytes:
    """Return a field with a text or a message."""
    return varint(field << 3 | 2) + varint(len(content)) + content


def numbers(field: int, values: Iterable[int]) -> bytes:
    """Return a field with several numbers."""
    return part(field, b"".join(map(varint, values)))


EXPORTER = Pprof()
