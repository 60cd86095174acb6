"""What was read or computed from an object, kept on disk by build-id; losing it costs only time.

Each entry is one file: a line of JSON (format, build-id, kind, the caller's values, the arrays' types) and the raw
arrays after it. Nothing in it is executed or unpickled. It is written aside and renamed, so a reader sees all of it or
nothing; whatever does not fit its own description is treated as absent.
"""

import contextlib
import json
import os
import re
import zlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

FORMAT = 2
"""Entries of earlier formats are removed: handlers of format 1 were kept by less than they depend on."""
SIZE_LIMIT = 256 << 20
_SPARE = 8
"""Which part of the limit is left free where entries had to go."""
_MAGIC = b"anyprobe-cache\n"
_KINDS = frozenset("biuf")
_EARLIER = re.compile(r".+\.v(\d+)")
_sizes: dict[str, int] = {}
"""What folders hold at most, after what this process has written there: to look at thousands of entries takes long."""
_NAME = re.compile(r"[0-9a-f]{8,128}")

Arrays = Mapping[str, NDArray[Any]]


def directory() -> str:
    """Return the folder of the cache: ``$XDG_CACHE_HOME/anyprobe``, ``~/.cache/anyprobe``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "anyprobe")


def load(build_id: str | None, kind: str, *, version: int = 0) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
    """Return the values and arrays stored for an object, ``None`` if there are none that can be trusted.

    ``version`` is the caller's: entries of another version of ``kind`` are absent.
    """
    path = _path(build_id, kind)
    if path is None:
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        with open(descriptor, "rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None  # another user wrote it
            content = file.read()
        return _unpack(content, str(build_id), kind, version)
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def store(
    build_id: str | None,
    kind: str,
    values: Mapping[str, Any] | None = None,
    arrays: Arrays | None = None,
    *,
    version: int = 0,
) -> None:
    """Keep JSON values and arrays for an object; does nothing where the cache cannot be written."""
    path = _path(build_id, kind)
    if path is None:
        return
    content = _pack(str(build_id), kind, version, values or {}, arrays or {})
    if len(content) > SIZE_LIMIT // 4:
        return
    folder = os.path.dirname(path)
    temporary = ""
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        aside = os.path.join(folder, f".new-{os.getpid()}-{os.urandom(8).hex()}")
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        temporary = aside
        with open(descriptor, "wb") as file:
            file.write(content)
        os.rename(temporary, path)
        _sizes[folder] = _sizes.get(folder, SIZE_LIMIT) + len(content)
        if _sizes[folder] > SIZE_LIMIT:
            _sizes[folder] = _shrink(folder)
    except OSError:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _path(build_id: str | None, kind: str) -> str | None:
    """Return the file of an entry; objects without a build-id are not cached, their content has no name."""
    if not build_id or not _NAME.fullmatch(build_id):
        return None
    return os.path.join(directory(), f"{build_id}-{kind}.v{FORMAT}")


def _pack(build_id: str, kind: str, version: int, values: Mapping[str, Any], arrays: Arrays) -> bytes:
    flat = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    body = b"".join(array.tobytes() for array in flat.values())
    head = {
        "format": FORMAT,
        "build_id": build_id,
        "kind": kind,
        "version": version,
        "values": dict(values),
        "arrays": [[name, array.dtype.str, list(array.shape)] for name, array in flat.items()],
        "checksum": zlib.crc32(body),
    }
    return _MAGIC + json.dumps(head).encode() + b"\n" + body


def _unpack(content: bytes, build_id: str, kind: str, version: int) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the parts of an entry; raise ``ValueError`` if anything contradicts its head."""
    end = content.index(b"\n", len(_MAGIC))
    head = json.loads(content[len(_MAGIC) : end])
    own = (head["format"], head["build_id"], head["kind"], head["version"])
    if not content.startswith(_MAGIC) or own != (FORMAT, build_id, kind, version):
        raise ValueError("another entry")
    at = end + 1
    if zlib.crc32(memoryview(content)[at:]) != head["checksum"]:
        raise ValueError("damaged")
    arrays: dict[str, NDArray[Any]] = {}
    for name, code, shape in head["arrays"]:
        dtype = np.dtype(code)
        count = int(np.prod(shape, dtype=np.int64))
        if dtype.kind not in _KINDS or count < 0:
            raise ValueError("not numbers")
        arrays[name] = np.frombuffer(content, dtype, count, at).reshape(shape)
        at += count * dtype.itemsize
    if at != len(content) or not isinstance(head["values"], dict):
        raise ValueError("trailing bytes")
    return head["values"], arrays


def _shrink(folder: str) -> int:
    """Remove entries of earlier formats; where there is too much, those that were not written for longest.

    Return how many bytes there are then: some less than the limit, or the next entry would have all looked at again.
    """
    entries: list[tuple[float, int, str]] = []
    with os.scandir(folder) as listing:
        for each in listing:
            found = _EARLIER.fullmatch(each.name)
            if found is not None and int(found[1]) < FORMAT:
                with contextlib.suppress(OSError):
                    os.unlink(each.path)
                continue
            status = each.stat(follow_symlinks=False)
            entries.append((status.st_mtime, status.st_size, each.path))
    total = sum(size for _, size, _ in entries)
    enough = total if total <= SIZE_LIMIT else SIZE_LIMIT - SIZE_LIMIT // _SPARE
    for _, size, path in sorted(entries):
        if total <= enough:
            break
        with contextlib.suppress(OSError):
            os.unlink(path)
        total -= size
    return total
