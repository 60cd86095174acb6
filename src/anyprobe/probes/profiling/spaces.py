"""What processes have mapped at the moment of each sample, as the kernel's records and ``/proc`` tell it."""

import ctypes
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from anyprobe.binary.images.image import Image
from anyprobe.binary.images.modules import VDSO, LoadedObject, ProcessFiles, loaded_objects
from anyprobe.binary.unwind.rules import END, NONE, go_rule
from anyprobe.core.errors import TargetError, UnsupportedTarget
from anyprobe.core.mapping import MappingLike
from anyprobe.core.memory import MemoryFault
from anyprobe.probes.stacks.interpreter import Function
from anyprobe.probes.stacks.unwinding import Code, Frame
from anyprobe.target.process.called_name import called_name
from anyprobe.target.system import gateway, procfs
from anyprobe.target.system.memory import ReadableMemory

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import Placed

ENTRY_BYTES = 64
"""So much code at the beginning of a program or a loader needs no rules, as nothing has called it."""
_LONGEST_CALL = 7
_CALL = re.compile(
    rb"(?s:\xe8.{4}|\xff(?:[\xd0-\xd7]|[\x50-\x53\x55-\x57].|\x54..|[\x90-\x93\x95-\x97\x15].{4}|\x94.{5}))"
)
"""A call by a displacement, through a register, or through memory; prefixes may come first."""
_FRAME_IS_MADE = (b"\x55\x48\x89\xe5", b"\x55\x48\x8b\xec")
"""``push rbp; mov rbp, rsp``."""
_ENDBR, _RET = b"\xf3\x0f\x1e\xfa", b"\xc3"
Place = tuple[LoadedObject | Function | int | str, int]
"""An object, or the process whose code is in no file, or the kernel; and an address: of an object the link-time one.

A function of Python has none.
"""


@dataclass
class SampledFiles:
    """The files of sampled processes: as one of them, or this one, sees them."""

    files: ProcessFiles

    @classmethod
    def of(cls, pid: int) -> "SampledFiles":
        """Return those that a process sees: by the same paths as this one where it can, as it may end."""
        own = os.getpid()
        with suppress(OSError):
            spaces = {os.readlink(f"/proc/{each}/ns/mnt") for each in (pid, own)}
            if len(spaces) == 1 and os.path.samefile(f"/proc/{pid}/root", "/"):
                return cls(ProcessFiles(own))
        return cls(ProcessFiles(pid))

    def open(self, mapping: MappingLike) -> Image:
        """Return the image of the file that is mapped; of the vdso that of this process, which is the same."""
        if mapping.path != VDSO:
            return self.files.open(mapping)
        try:
            own = next(each for each in procfs.read_mappings(os.getpid()) if each.path == VDSO)
        except (OSError, StopIteration):
            raise UnsupportedTarget("the vdso cannot be read") from None
        return Image.from_bytes(VDSO, ctypes.string_at(own.start, own.end - own.start))


@dataclass(eq=False)
class Space(Code):
    """The code of one process, from one execution to the next."""

    pid: int
    files: SampledFiles
    exe: str = ""
    called: str = ""
    mappings: list[procfs.Mapping] = field(default_factory=list)
    _objects: list[LoadedObject] | None = None
    _placed: "Placed" = field(default_factory=dict)
    _rules: dict[int, int | None] = field(default_factory=dict)
    _places: dict[int, Place] = field(default_factory=dict)
    _returns: dict[int, bool] = field(default_factory=dict)
    generation: int = 1
    _looked: bool = False
    """Whether ``/proc`` has been read since the kernel told of a change: it is in vain again."""

    @classmethod
    def of_running(cls, pid: int, files: SampledFiles) -> "Space":
        """Return what a process has mapped now; nothing of one that has ended."""
        found = cls(pid, files)
        with suppress(OSError):
            found.exe = gateway.readlink(f"/proc/{procfs.voice(pid)}/exe")
            found.called = called_name(pid, found.exe)
            found.mappings = procfs.read_mappings(pid)
            found._looked = True
        return found

    def forked(self, pid: int) -> "Space":
        """Return what a child has: the same, and what is found out about it, until either maps something else."""
        return replace(self, pid=pid, generation=1)

    def add(self, mapping: procfs.Mapping) -> None:
        """Take note of what has been mapped, in place of what was there."""
        if not self.exe:  # the program comes first
            self.exe = mapping.path
        kept = [each for each in self.mappings if each.end <= mapping.start or mapping.end <= each.start]
        self.mappings = sorted((*kept, mapping), key=lambda each: each.start)
        self._changed()

    def _changed(self) -> None:
        self._objects = None
        self._rules, self._places, self._returns = {}, {}, {}
        self._looked = False

    @property
    def objects(self) -> list[LoadedObject]:
        """The objects with code."""
        if self._objects is None:
            self._objects = loaded_objects(
                self.mappings, files=self.files, executable=self.exe, called=self.called, placed=self._placed
            )
        return self._objects

    def holder(self, at: int) -> LoadedObject | None:
        """Return the object whose code an address lies in."""
        for loaded in self.objects:
            if at in loaded:
                return loaded
        return None

    def is_code(self, at: int) -> bool:
        """Return whether something is mapped executable at an address."""
        return any(each.start <= at < each.end and each.executable for each in self.mappings)

    def rule(self, at: int) -> int | None:
        """Return the unwinding rule of an instruction, ``NONE`` where there is none; None where there is no code."""
        try:
            return self._rules[at]
        except KeyError:
            rule = self._rules[at] = self._rule(at)
            return rule

    def _rule(self, at: int) -> int | None:
        loaded = self.holder(at)
        if loaded is None and not self.is_code(at):
            self._look()
            loaded = self.holder(at)
        if loaded is None:
            return NONE if self.is_code(at) else None
        try:
            image, address = loaded.image, at - loaded.bias
            rule = image.few_unwind_rules.at(address - image.lowest_address)
            if rule != NONE:
                return rule
            if 0 <= address - image.entry < ENTRY_BYTES:
                return END
            return NONE if image.go_functions is None else go_rule(image.go_functions, address)
        except TargetError:
            return NONE

    def place(self, at: int) -> Place:
        """Return what an address is in, and where there."""
        found = self._places.get(at)
        if found is None:
            loaded = self.holder(at)
            if loaded is None:  # which its children do not share
                return self.pid, at
            try:
                found = loaded, at - loaded.bias
            except TargetError:  # its file cannot be read
                found = loaded, at
            self._places[at] = found
        return found

    def _look(self) -> None:
        """Read what is mapped now: what was before it was sampled is not told, nor what code is made of data."""
        if self._looked:
            return
        with suppress(OSError):
            found = procfs.read_mappings(self.pid)
            if found and gateway.readlink(f"/proc/{procfs.voice(self.pid)}/exe") == self.exe:
                self.mappings = found
                self._changed()
        self._looked = True

    def begins(self, pc: int) -> bool:
        """Return whether a function begins here, or after its ``endbr64``."""
        start = self.start_of(pc)
        return start is not None and pc - start in (0, 4)

    def start_of(self, pc: int) -> int | None:
        """Return where the function begins that an address lies in; None where none is known."""
        loaded = self.holder(pc)
        with suppress(TargetError):
            function = None if loaded is None else loaded.image.known_functions.containing(pc - loaded.bias)
            if function is not None and loaded is not None:
                return function.start + loaded.bias
        return None

    def has_frame(self, frame: Frame, *, innermost: bool) -> bool:
        """Return whether the function has surely set its frame pointer; of one that has called it is taken to have."""
        loaded = self.holder(frame.pc)
        if loaded is not None and loaded.image.go_functions is not None:  # whose tables would have said so
            return False
        if not innermost:
            return True
        start = self.start_of(frame.pc)
        if start is None:  # compilers that work at run time set it
            return loaded is None
        try:
            begin = self.code(start, 8).removeprefix(_ENDBR)
            after = start + 8 - len(begin) + len(_FRAME_IS_MADE[0])
            return begin.startswith(_FRAME_IS_MADE) and frame.pc >= after and self.code(frame.pc, 1) != _RET
        except (MemoryFault, TargetError):
            return False

    def is_return(self, pc: int) -> bool:
        """Return whether a call comes before an address."""
        found = self._returns.get(pc)
        if found is None:
            try:
                before = self.code(pc - _LONGEST_CALL, _LONGEST_CALL)
                found = any(_CALL.fullmatch(before, at) for at in range(_LONGEST_CALL - 1))
            except (MemoryFault, TargetError):
                found = False
            self._returns[pc] = found
        return found

    def code(self, address: int, size: int) -> bytes:
        """Return instructions: those of the file, or, of what is in none, those that are there now."""
        loaded = self.holder(address)
        if loaded is not None:
            return loaded.image.read(address - loaded.bias, size)
        try:
            memory = ReadableMemory(self.pid)
        except OSError as error:
            raise MemoryFault(address, size) from error
        try:
            return memory.read(address, size)
        finally:
            memory.close()


class Spaces:
    """The spaces of all sampled processes, and the names of their threads."""

    def __init__(self, pids: Iterable[int]) -> None:
        """Begin with what some processes have now."""
        self._files: SampledFiles | None = None
        self._spaces: dict[int, Space] = {}
        self._names: dict[int, str] = {}
        for pid in pids:
            self.of(pid)

    def of(self, pid: int) -> Space:
        """Return the space of a process."""
        found = self._spaces.get(pid)
        if found is None:
            if self._files is None:
                self._files = SampledFiles.of(pid)
            found = self._spaces[pid] = Space.of_running(pid, self._files)
        return found

    def name(self, pid: int, tid: int) -> str:
        """Return the name of a thread as it was last told."""
        found = self._names.get(tid)
        if found is None:
            with suppress(OSError):
                found = procfs.read_stat(pid, tid).comm
            found = self._names[tid] = found or ""
        return found

    def fork(self, parent: int, pid: int, tid: int, made_by: int) -> None:
        """Take note of a thread, or a process, that another one has made."""
        self._names[tid] = self.name(parent, made_by)
        if pid not in self._spaces:
            self._spaces[pid] = self.of(parent).forked(pid)

    def rename(self, pid: int, tid: int, name: str, *, executed: bool) -> None:
        """Take note of a thread's new name; ``executed``: that of the program that it executes."""
        self._names[tid] = name
        if executed:
            before = self.of(pid)
            self._spaces[pid] = Space(pid, before.files, generation=before.generation + 1)
