"""Which object is where in a process, from its mappings given as plain values."""

import fnmatch
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from anyprobe.binary.images.image import DEBUG_ROOTS, Image
from anyprobe.binary.objects.elf import ElfFile, Segment
from anyprobe.core.address import AddressRange, page_floor
from anyprobe.core.errors import TargetError, UnsupportedTarget
from anyprobe.core.mapping import MappingLike
from anyprobe.core.memory import Memory, MemoryFault

DELETED = " (deleted)"
VDSO = "[vdso]"


class ObjectFiles(Protocol):
    """How the file of a mapping is reached."""

    def open(self, mapping: MappingLike) -> Image:
        """Return the image of the file that is mapped, or raise a typed error that says what to do."""
        ...


@dataclass(frozen=True)
class LocalFiles:
    """Files opened by the paths that the mappings have, without any check: for tests and our own process."""

    debug_roots: Sequence[str] = DEBUG_ROOTS

    def open(self, mapping: MappingLike) -> Image:
        """Open the mapping's path."""
        return Image.open(mapping.path, debug_roots=self.debug_roots)


@dataclass(frozen=True)
class ProcessFiles:
    """The files of one process: in its own root directory, and those that were deleted or replaced meanwhile.

    Needs no more than permission to look into ``/proc/PID``. Deleted files are opened through ``map_files`` (needs
    CAP_CHECKPOINT_RESTORE or root) or, for the executable, through ``exe``.
    """

    pid: int
    memory: Memory | None = None
    """The target's memory: needed for the vdso, and to recognise a file whose inode the maps do not tell truly."""
    debug_roots: Sequence[str] = DEBUG_ROOTS
    images: dict[tuple[object, ...], Image] = field(default_factory=dict, repr=False, compare=False)
    """What was opened: libraries that come and go are read once, if their files have not changed."""

    @property
    def root(self) -> str:
        """The target's root directory as we can reach it."""
        return f"/proc/{self.pid}/root"

    def open(self, mapping: MappingLike) -> Image:
        """Return the image of the very file that is mapped."""
        if mapping.path == VDSO:
            return self._vdso(mapping)
        path = mapping.path.removesuffix(DELETED)
        name = os.path.basename(path)
        deleted = path != mapping.path
        for outside in () if deleted else self._ways_to_path(path):
            if self._is_mapped_file(outside, mapping):
                return self._opened(outside, name)
        for way in self._ways_to_deleted(mapping):
            try:
                return self._read(way, name)
            except UnsupportedTarget as error:
                if "cannot be read" not in str(error):
                    raise
        happened = "was replaced on disk" if os.path.exists(self.root + path) else "was deleted"
        raise UnsupportedTarget(
            f"{path} {happened} since process {self.pid} mapped it, and the mapped file cannot be opened: run as root "
            f"(it is read through /proc/{self.pid}/map_files then), or restart the program"
        )

    def expected(self, path: str) -> Image:
        """Return the image of a file that the process may map: the one that ``open`` returns if it has not changed."""
        return self._opened(self._ways_to_path(path)[0], os.path.basename(path))

    def _opened(self, path: str, name: str) -> Image:
        with suppress(OSError):
            status = os.stat(path)
            identity = status.st_size, status.st_mtime_ns, status.st_ctime_ns
            seen = path.removeprefix(self.root)
            key = seen, name, self._view(), tuple(self.debug_roots), status.st_dev, status.st_ino, *identity
            shared = {} if _shared is None else _shared
            known = self.images.get(key) or shared.get(key) or self._read(path, name)
            known.root = self._prefix()  # the process by whose root it was opened may have ended
            if known.elf.identity == identity:  # else it was replaced just now
                known = self.images[key] = shared.setdefault(key, known)  # what another thread has opened meanwhile
            return known
        return self._read(path, name)  # which says what is wrong

    def _read(self, path: str, name: str) -> Image:
        return Image.open(path, debug_roots=self.debug_roots, root=self._prefix(), name=name)

    def _ways_to_path(self, path: str) -> list[str]:
        """Return where a path of the target may be for us: by the same path, or through its root.

        The memory map of a process that has changed its root has paths as they are from here.
        """
        return [path, self.root + path] if self._sees_as_we_do() else [self.root + path, path]

    def _sees_as_we_do(self) -> bool:
        """Return whether the target has our root directory, in our mount namespace."""
        try:
            spaces = {os.readlink(f"/proc/{each}/ns/mnt") for each in (self.pid, "self")}
            return len(spaces) == 1 and os.path.samefile(self.root, "/")
        except OSError:
            return False

    def _view(self) -> tuple[object, ...]:
        """Return what processes have in common for which the same paths mean the same files."""
        root = os.stat(self.root)
        return os.readlink(f"/proc/{self.pid}/ns/mnt"), root.st_dev, root.st_ino

    def _prefix(self) -> str:
        return "" if self._sees_as_we_do() else self.root

    def _is_mapped_file(self, outside: str, mapping: MappingLike) -> bool:
        """Return whether the file at a path is the mapped one: by inode, else by the headers in memory.

        Overlay file systems show another inode in the maps than ``stat`` does, and some file systems another device;
        then the bytes decide. By our own path, seen as the target sees it, the inode alone will do.
        """
        try:
            status = os.stat(outside)
            device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
            if status.st_ino == mapping.inode and (device == mapping.device or self._sees_as_we_do()):
                return True
        except PermissionError:
            return True  # let opening it say so
        except OSError:
            return False
        return self.memory is not None and mapping.offset == 0 and self._same_headers(outside, mapping)

    def _same_headers(self, outside: str, mapping: MappingLike) -> bool:
        """Return whether file and memory agree in the first page, which holds the headers and the build-id."""
        if self.memory is None:
            return False
        try:
            elf = ElfFile.open(outside)
            size = min(4096, elf.size, mapping.end - mapping.start)
            return elf.build_id is not None and elf.content[:size] == self.memory.read(mapping.start, size)
        except (UnsupportedTarget, MemoryFault):
            return False

    def _ways_to_deleted(self, mapping: MappingLike) -> list[str]:
        """Return paths that lead to a file without a name."""
        ways = [f"/proc/{self.pid}/map_files/{mapping.start:x}-{mapping.end:x}"]
        try:
            if os.stat(f"/proc/{self.pid}/exe").st_ino == mapping.inode:
                ways.append(f"/proc/{self.pid}/exe")
        except OSError:
            pass
        return ways

    def _vdso(self, mapping: MappingLike) -> Image:
        if self.memory is None:
            raise UnsupportedTarget("the vdso has no file, and the target's memory was not given")
        try:
            content = self.memory.read(mapping.start, mapping.end - mapping.start)
        except MemoryFault as error:
            raise UnsupportedTarget(f"the vdso cannot be read: {error}") from error
        return Image.from_bytes("[vdso]", content)


_shared: dict[tuple[object, ...], Image] | None = None
"""The images that processes share, by the files' identities; ``None``: each has its own."""

_sharers = 0


@contextmanager
def images_shared() -> Iterator[None]:
    """Have all processes that map one file share what is known of it, within a ``with`` block."""
    global _shared, _sharers  # noqa: PLW0603 - files are the same for all
    _shared = {} if _shared is None else _shared
    _sharers += 1
    try:
        yield
    finally:
        _sharers -= 1
        if not _sharers:
            _shared = None


@dataclass(eq=False)
class LoadedObject:
    """An object in a process: its file, where it was placed, and the runtime ranges of its code."""

    path: str
    mappings: tuple[MappingLike, ...]
    """All mappings of the file that belong to this placement, ascending."""
    text: tuple[AddressRange, ...]
    """The runtime ranges that are mapped executable."""
    files: ObjectFiles = field(repr=False)
    is_executable: bool = False
    """Whether this is the program itself, ``a.out`` in specs."""
    was_given_program: bool = False
    """Whether it is a dynamic loader that was executed by itself, with the program as an argument."""
    called: str = ""
    """The name of the link to the file by which the program was started."""
    bias_hint: int | None = None
    is_part: bool = False
    """Whether it is a second copy of some of the file's code: JIT compilers map what they call closer to their own."""
    _image: Image | None = field(default=None, repr=False)
    _error: TargetError | None = field(default=None, repr=False)

    @property
    def name(self) -> str:
        """The name that is shown: the one that was used to start it, else the file's."""
        return self.called or self.file_name

    @cached_property
    def file_name(self) -> str:
        """The name of the file."""
        return os.path.basename(self.path) if not self.path.startswith("[") else self.path

    @property
    def first(self) -> MappingLike:
        """The lowest of its mappings."""
        return self.mappings[0]

    @property
    def image(self) -> Image:
        """The object's file, opened when first asked for; the same typed error each time if that is impossible."""
        if self._error is not None:
            raise self._error
        if self._image is None:
            try:
                self._image = self.files.open(self.first)
            except TargetError as error:
                self._error = error
                raise
        return self._image

    @cached_property
    def bias(self) -> int:
        """What to add to a link-time address to have the runtime address."""
        if self.bias_hint is not None:
            return self.bias_hint
        code = next((each for each in self.mappings if "x" in each.perms), self.first)
        bias = bias_of(self.image.segments, code)
        if bias is None:
            raise UnsupportedTarget(f"{self.path}: its mappings do not fit its program headers")
        return bias

    def runtime(self, vaddr: int) -> int:
        """Return the runtime address of a link-time address."""
        return vaddr + self.bias

    def link_time(self, address: int) -> int:
        """Return the link-time address of a runtime address."""
        return address - self.bias

    def __contains__(self, address: object) -> bool:
        """Return whether a runtime address lies in the object's code."""
        return any(address in each for each in self.text)

    def lacks(self, vaddr: int) -> bool:
        """Return whether it is a part of the file that has no code at a link-time address."""
        return self.is_part and self.runtime(vaddr) not in self

    def matches(self, module: str, *, literal: bool = False) -> bool:
        """Return whether a spec's module part means this object; ``literal``: it is a name, and no glob."""
        if literal:
            return module == self.path if "/" in module else module in (*module_names(self.name), self.file_name)
        found = module_matches(module, self.file_name, self.path, is_executable=self.is_executable)
        return found or (self.called != "" and module_matches(module, self.called, self.path))


def module_matches(module: str, name: str, path: str = "", *, is_executable: bool = False) -> bool:
    """Return whether ``module`` (``libc``, ``libc.so``, ``libc.so.6``, ``a.out``, a path, a glob) means a file."""
    if not module or module == "*":
        return True
    if module == "a.out" and is_executable:
        return True
    if "/" in module:
        path = path.removesuffix(DELETED)
        return path == module or fnmatch.fnmatchcase(path, module)
    # a name may look like a glob: [vdso]
    return any(each == module or fnmatch.fnmatchcase(each, module) for each in module_names(name))


def module_names(name: str) -> tuple[str, ...]:
    """Return the names under which a file may be asked for: the whole one first, then with less of the version."""
    name = name.removesuffix(DELETED)
    names = [name]
    if name == VDSO:
        names += ["vdso", "linux-vdso", "linux-vdso.so.1"]
    head, so, version = name.partition(".so")
    if so and (not version or version.startswith(".")):
        while version:
            version = version.rpartition(".")[0]
            names.append(head + so + version)
        names.append(head)
        short = re.sub(r"-\d[\d.]*$", "", head)  # libc-2.31.so is libc too
        names += [short + so, short] if short != head else []
    return tuple(dict.fromkeys(names))


Placed = dict[tuple[str, int], tuple[list[MappingLike], list[LoadedObject]]]
"""The objects that were found in the mappings of each file, by path and inode."""


def loaded_objects(
    mappings: Iterable[MappingLike], *, files: ObjectFiles | None = None, executable: str = "", called: str = "",
    placed: Placed | None = None,
) -> list[LoadedObject]:  # fmt: skip
    """Return the objects with code in a process, ascending by address.

    ``executable`` is the path of the program (what ``/proc/PID/exe`` links to); without it, the first object that is
    a program counts. ``called`` is the name that it was started by. A file that is loaded several times (``dlmopen``)
    is several objects. ``placed``: what was found the last time, which stays where the same is mapped, and is brought
    up to date.
    """
    files = files or LocalFiles()
    before, placed = ({}, {}) if placed is None else (dict(placed), placed)
    placed.clear()
    by_file: dict[tuple[str, int], list[MappingLike]] = {}
    for mapping in mappings:
        if mapping.path == VDSO or (mapping.path.startswith("/") and mapping.inode):
            by_file.setdefault((mapping.path, mapping.inode), []).append(mapping)
    found: list[LoadedObject] = []
    for key, group in by_file.items():
        known = before.get(key)
        if known is not None and known[0] == group:
            placed[key] = known
            found += known[1]
        elif any("x" in each.perms for each in group):
            objects = _placements(key[0], group, files)
            if all(each.bias_hint is not None for each in objects):  # else the file could not be read yet
                placed[key] = group, objects
            found += objects
    starts = [each.mappings[0].start for each in found]
    found = [found[number] for number in sorted(range(len(found)), key=starts.__getitem__)]
    _mark_executable(found, executable.removesuffix(DELETED))
    for each in found:
        if each.is_executable and called != each.file_name:
            each.called = called
    return found


def _mark_executable(found: Sequence[LoadedObject], executable: str) -> None:
    """Mark the program among the objects."""
    for each in found:
        if executable:
            each.is_executable = each.path.removesuffix(DELETED) == executable
            continue
        try:
            if each.image.is_program and not each.name.startswith(("ld-", "ld.so", "lib")):
                each.is_executable = True
                return
        except TargetError:
            continue


def _placements(path: str, group: list[MappingLike], files: ObjectFiles) -> list[LoadedObject]:
    """Split the mappings of one file by where they were placed."""
    group = sorted(group, key=lambda each: each.start)
    whole = LoadedObject(path, tuple(group), _text_of(group), files)
    try:
        image = whole.image
    except TargetError:
        return [whole]  # what is wrong with the file is said when it is wanted
    by_bias: dict[int, list[MappingLike]] = {}
    for mapping in group:
        for bias in _biases_of(image.segments, mapping):
            by_bias.setdefault(bias, []).append(mapping)
    objects = [
        LoadedObject(path, tuple(each), _text_of(each), files, bias_hint=bias, _image=image)
        for bias, each in by_bias.items()
        if any(bias_of(image.segments, one) == bias for one in each if "x" in one.perms)
    ]
    size = max((_bytes_of(each.text) for each in objects), default=0)
    for each in objects:
        each.is_part = _bytes_of(each.text) < size
    return objects or [whole]


def _bytes_of(areas: Iterable[AddressRange]) -> int:
    return sum(map(len, areas))


def _text_of(group: Iterable[MappingLike]) -> tuple[AddressRange, ...]:
    return tuple(AddressRange(each.start, each.end) for each in group if "x" in each.perms)


def bias_of(segments: Sequence[Segment], mapping: MappingLike) -> int | None:
    """Return the load bias that an executable mapping implies."""
    biases = _biases_of([each for each in segments if each.executable], mapping)
    return biases[0] if biases else None


def _biases_of(segments: Iterable[Segment], mapping: MappingLike) -> list[int]:
    """Return every bias under which a mapping shows a part of some loaded segment."""
    found: list[int] = []
    for each in segments:
        low = page_floor(each.offset)
        if each.kind == 1 and low <= mapping.offset < each.offset + each.filesz:
            bias = mapping.start - (page_floor(each.vaddr) + mapping.offset - low)
            if bias not in found:
                found.append(bias)
    return found
