r"""Names in double quotes, for specs: whatever stands between them is a name, and nothing else.

A backslash stands before a double quote or a backslash that belongs to the name; ``\n``, ``\t`` and ``\xNN`` are
bytes, as a name that is not UTF-8 has them.
"""

import re
from functools import lru_cache

QUOTE = '"'
_PLAIN_MODULE = re.compile(r"[\w./+~,=@#^-]+")
_RESERVED = re.compile(
    r"pid\d*|usdt|k?probe|kretprobe|fentry|fexit|(?:raw)?tracepoint|syscall|kernel|u|ur|u(?:ret)?probe|-"
)
_BYTES = re.compile(rb'\\(?:x([0-9a-fA-F]{2})|([nt"\\]))')
_LETTERS = {b"n": b"\n", b"t": b"\t", b'"': b'"', b"\\": b"\\"}
_ENDS = re.compile(r'"((?:[^"\\]|\\.)*)"')


def quoted(name: str) -> str:
    """Return a name in quotes, as a spec may have it."""
    shown = []
    for character in name:
        if character in '"\\':
            shown.append("\\" + character)
        elif character == "\n":
            shown.append("\\n")
        elif character == "\t":
            shown.append("\\t")
        elif character.isprintable():
            shown.append(character)
        else:
            shown += [f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape")]
    return QUOTE + "".join(shown) + QUOTE


def unquoted(body: str) -> str:
    """Return the name that what stands between two quotes means."""
    raw = body.encode("utf-8", "surrogateescape")
    return _BYTES.sub(_byte, raw).decode("utf-8", "surrogateescape")


def _byte(found: re.Match[bytes]) -> bytes:
    return bytes.fromhex(found[1].decode()) if found[1] else _LETTERS[found[2]]


def quoted_at(text: str, at: int) -> re.Match[str] | None:
    """Return what stands in quotes from ``at`` on: the match's first group is the text between them."""
    return _ENDS.match(text, at)


@lru_cache(maxsize=256)
def shown_module(name: str) -> str:
    """Return a module's name as a spec may have it: in quotes where it would be read as something else without."""
    is_plain = _PLAIN_MODULE.fullmatch(name) and name.isprintable() and not _RESERVED.fullmatch(name)
    return name if is_plain or name == "[vdso]" else quoted(name)
