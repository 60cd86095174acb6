"""Descriptions of virtual markers, proven against files: the build, each place, and the instruction that is there."""

import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyprobe.binary.objects.markers import Marker
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.core.refusal import Refusal
from anyprobe.probes.providers.usdt.described import placed_in
from anyprobe.probes.providers.usdt.descriptions import DescribedFile, DescribedMarker

if TYPE_CHECKING:
    from anyprobe.binary.flow.cfg import CodeMap
    from anyprobe.binary.images.image import Image

_FOLDERS = ("/usr/bin", "/usr/sbin", "/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/usr/lib64")


@dataclass(frozen=True, slots=True)
class CheckedMarker:
    """What became of one place of a description in a file."""

    marker: DescribedMarker
    address: int = 0
    instruction: str = ""
    problem: str = ""
    """Why it cannot be there; empty where all holds."""


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """What became of a described file."""

    described: DescribedFile
    path: str
    """The file of this build, empty where there is none."""
    markers: tuple[CheckedMarker, ...]
    others: tuple[str, ...] = ()
    """Files of the name that are other builds, each with its build-id."""

    @property
    def holds(self) -> bool:
        """Whether the file is there and all its places are."""
        return bool(self.path) and not any(each.problem for each in self.markers)


def checked(described: DescribedFile, paths: Sequence[str] = ()) -> CheckedFile:
    """Prove a description against the file of its build, among ``paths`` or where files of its name usually are."""
    from anyprobe.binary.images.image import Image

    others = []
    for path in dict.fromkeys(map(os.path.realpath, paths or _usual(described.name))):
        try:
            image = Image.open(path)
        except UnsupportedTarget as error:
            others.append(str(error))
            continue
        if image.build_id == described.build_id:
            return CheckedFile(described, path, tuple(_checked_in(image, described)))
        others.append(f"{path} has {image.build_id or 'no build-id'}")
    return CheckedFile(described, "", (), tuple(others))


def _usual(name: str) -> Iterator[str]:
    command = shutil.which(name)
    if command:
        yield command
    yield from (path for folder in _FOLDERS if os.path.isfile(path := f"{folder}/{name}"))


def _checked_in(image: "Image", described: DescribedFile) -> Iterator[CheckedMarker]:
    from anyprobe.binary.flow.cfg import CodeMap

    code = CodeMap(image.text(), image.cold_parts)
    for marker, placed in placed_in(image, described.markers):
        yield _seen(code, marker, placed) if isinstance(placed, Marker) else CheckedMarker(marker, problem=placed)


def _seen(code: "CodeMap", marker: DescribedMarker, placed: Marker) -> CheckedMarker:
    address = placed.location
    start = code.layout.start_of(address)
    function = code.function_at(start) if start is not None else None
    if isinstance(function, Refusal):
        return CheckedMarker(marker, address, problem=function.detail)
    if function is None or address >= function.end:
        return CheckedMarker(marker, address, problem=f"no function has {address:#x}")
    index = function.index_of(address)
    if index is None:
        near = ", ".join(f"{each:#x}" for each in function.boundaries_near(address))
        return CheckedMarker(marker, address, problem=f"no instruction starts at {address:#x}; nearest: {near}")
    return CheckedMarker(marker, address, function.insn(index).text)
