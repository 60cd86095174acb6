"""What takes long to read of the running kernel, kept on disk: one file of a kind, for one kernel in one state.

It may have two parts. The second is for what is seldom asked for; it is read only then. Checks are CRCs, for
which no library of hashes is loaded.
"""

import struct
from typing import NamedTuple
from zlib import crc32

from anyprobe.core import kept

_HEAD = struct.Struct("<IIIIQ")


class _Places(NamedTuple):
    """What a file begins with; the state is after it, then come both parts."""

    check: int
    """Checksum of what follows here, and of the state."""
    first: int
    """Length of the first part."""
    second: int
    state_bytes: int
    second_at: int
    """Where the second part begins."""

    @property
    def first_at(self) -> int:
        """Where the first part begins."""
        return _HEAD.size + self.state_bytes

    def checked(self, state: bytes) -> "_Places":
        """Return it with the right check."""
        return self._replace(check=crc32(_HEAD.pack(*self._replace(check=0)) + state))


def _name(kind: str) -> str:
    return f"kernel-{kind}"


def load(kind: str, state: bytes) -> memoryview | None:
    """Return what is kept of a kind, None if it was of another state."""
    places = _places(kind, state)
    return places and _part(kind, places.first_at, places.second_at - places.first_at, places.first)


def load_second(kind: str, state: bytes) -> memoryview | None:
    """Return the second part of what is kept of a kind, None if it was of another state."""
    places = _places(kind, state)
    return places and _part(kind, places.second_at, None, places.second)


def _places(kind: str, state: bytes) -> _Places | None:
    """Return where both parts are; None if there is nothing of this state."""
    head = kept.read(_name(kind), 0, _HEAD.size + len(state)) or b""
    if len(head) < _HEAD.size or head[_HEAD.size :] != state:
        return None
    places = _Places(*_HEAD.unpack_from(head))
    return places if places == places.checked(state) and places.state_bytes == len(state) else None


def _part(kind: str, start: int, size: int | None, check: int) -> memoryview | None:
    content = kept.read(_name(kind), start, size)
    return memoryview(content) if content is not None and crc32(content) == check else None


def store(kind: str, state: bytes, content: bytes | memoryview, second: bytes = b"") -> None:
    """Keep something instead of what was kept of its kind; ``state``: everything that it depends on."""
    places = _Places(0, crc32(content), crc32(second), len(state), _HEAD.size + len(state) + len(content))
    kept.write(_name(kind), b"".join([_HEAD.pack(*places.checked(state)), state, content, second]))
