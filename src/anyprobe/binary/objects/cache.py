"""What was read or computed from an object, kept on disk by build-id; losing it costs only time.

Each entry is one file: a line of JSON (format, build-id, kind, the caller's values, the arrays' types) and the raw
arrays after it. Nothing in it is executed or unpickled; whatever does not fit its own description is treated as absent.
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

from anyprobe.core import kept

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
_BUILD_ID = re.compile(r"[0-9a-f]{8,128}")

Arrays = Mapping[str, NDArray[Any]]


def load(build_id: str | None, kind: str, *, version: int = 0) -> tuple[dict[str, Any], dict[str, NDArray[Any]]] | None:
    """Return the values and arrays stored for an object, ``None`` if there are none that can be trusted.

    ``version`` is the caller's: entries of another version of ``kind`` are absent.
    """
    name = _name(build_id, kind)
    content = None if name is None else kept.read(name)
    if content is None:
        return None
    try:
        return _unpack(content, str(build_id), kind, version)
    except (ValueError, KeyError, TypeError, RecursionError):
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
    name = _name(build_id, kind)
    if name is None:
        return
    content = _pack(str(build_id), kind, version, values or {}, arrays or {})
    if len(content) > SIZE_LIMIT // 4 or not kept.write(name, content):
        return
    folder = kept.directory()
    _sizes[folder] = _sizes.get(folder, SIZE_LIMIT) + len(content)
    if _sizes[folder] > SIZE_LIMIT:
        with contextlib.suppress(OSError):
            _sizes[folder] = _shrink(folder)


def _name(build_id: str | None, kind: str) -> str | None:
    """Return the file of an entry; objects without a build-id are not cached, their content has no name."""
    if not build_id or not _BUILD_ID.fullmatch(build_id):
        return None
    return f"{build_id}-{kind}.v{FORMAT}"


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
    """Remove entries of earlier formats; where there is too much, those that were not used for longest.

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
