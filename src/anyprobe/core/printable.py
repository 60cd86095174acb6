r"""Texts of programs as they may reach a terminal: what would move its cursor, or reorder a line, is shown as ``\x1b``.

Names of threads, files and symbols, and whatever is read from memory are the program's: any bytes. All reports and
messages have them through here.
"""

_LETTERS = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}


def printable(text: str, kept: str = "") -> str:
    """Return a text with escapes for control and format characters (those that write from right to left, too).

    ``kept``: characters that stay, such as the line breaks of a message of several lines.
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in kept else _escaped(each) for each in text)


def _escaped(character: str) -> str:
    code = ord(character)
    if 0xDC80 <= code <= 0xDCFF:  # a byte of a name that is no UTF-8
        return f"\\x{code - 0xDC00:02x}"
    if code < 0x100:
        return _LETTERS.get(character) or f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x1_0000 else f"\\U{code:08x}"
