"""``-fsplit-stack``: calls of ``__morestack``, which goes on one byte after its return address, on another stack.

After such a call stands a ``ret``, to which control comes when the function has returned on the other stack. It is no
second return, and what follows it is entered though nothing says so. No other call has constants in both ``r10`` and
``r11``.
"""

import re
from collections.abc import Iterable

from anyprobe.core.address import AddressRange
from anyprobe.core.memory import Memory, MemoryFault

_LIMIT = b"\x25\x70\0\0\0"
_LOOKS = tuple(b"\x64" + opcode + _LIMIT for opcode in (b"\x48\x3b\x24", b"\x4c\x3b\x1c", b"\x48\x89\x04"))
"""``cmp rsp, fs:0x70`` and ``cmp r11, fs:0x70`` of functions, and ``mov fs:0x70, rax`` of ``__morestack``."""


def _constant(opcode: bytes, modrm: bytes, cleared: bytes) -> bytes:
    """Return a pattern for what sets one of the two registers: 32 bits, 64 bits, sign-extended, zero."""
    wide = b"\x49" + opcode + b".{8}"
    return b"(?:\x41" + opcode + b".{4}|" + wide + b"|\x49\xc7" + modrm + b".{4}|[\x45\x4d]\x31" + cleared + b")"


_R10, _R11 = _constant(b"\xba", b"\xc2", b"\xd2"), _constant(b"\xbb", b"\xc3", b"\xdb")
_NEAR = b"(?:" + _R10 + _R11 + b"|" + _R11 + _R10 + b")\xe8.{4}\xc3"
_FAR = _R10 + b"\x41\xff\xd3\xc3"
"""``call r11``, of the large code model."""
_CALLS = re.compile(b"(?s:" + _NEAR + b"|" + _FAR + b")")


def resumed_places(memory: Memory, ranges: Iterable[AddressRange]) -> list[int]:
    """Return where functions go on when ``__morestack`` has given them another stack: after the ``ret``."""
    found: list[int] = []
    looks = False
    for area in ranges:
        try:
            content = memory.read(area.start, len(area))
        except MemoryFault:
            continue
        looks = looks or any(look in content for look in _LOOKS)
        found += [area.start + call.end() for call in _CALLS.finditer(content)] if looks else []
    return found
