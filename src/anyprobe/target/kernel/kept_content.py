"""What takes long to read of the running kernel, kept on disk: one file of a kind, for one kernel in one state."""

import hashlib
import zlib

from anyprobe.core import kept

_CHECK_BYTES = 4


def _name(kind: str) -> str:
    return f"kernel-{kind}"


def load(kind: str, state: bytes) -> bytes | None:
    """Return what is kept of a kind, None if it was of another state."""
    content, digest = kept.read(_name(kind)), hashlib.sha256(state).digest()
    if content is None or not content.startswith(digest):
        return None
    head = len(digest) + _CHECK_BYTES
    check = int.from_bytes(content[len(digest) : head], "little")
    return content[head:] if zlib.crc32(memoryview(content)[head:]) == check else None


def store(kind: str, state: bytes, content: bytes) -> None:
    """Keep something instead of what was kept of its kind; ``state``: everything that it depends on."""
    check = zlib.crc32(content).to_bytes(_CHECK_BYTES, "little")
    kept.write(_name(kind), hashlib.sha256(state).digest() + check + content)
