"""LEB128 numbers, as unwinding tables and debug information have them (DWARF 5, section 7.6)."""


def read_uleb(content: bytes, at: int) -> tuple[int, int]:
    """Return an unsigned number and the offset after it."""
    value = shift = 0
    while True:
        byte = content[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def read_sleb(content: bytes, at: int) -> tuple[int, int]:
    """Return a signed number and the offset after it."""
    value, after = read_uleb(content, at)
    return (value - (1 << 7 * (after - at)) if content[after - 1] & 0x40 else value), after
