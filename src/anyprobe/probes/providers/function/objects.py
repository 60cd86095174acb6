"""The objects of a live process as engine modules: their code, their bias, and why some must not be touched."""

import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from threading import RLock
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.images.ifunc import IfuncSlots
from anyprobe.binary.images.modules import VDSO, LoadedObject, ObjectFiles, Placed, ProcessFiles, loaded_objects
from anyprobe.core.errors import TargetError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.journal.installed import parts_of
from anyprobe.journal.memfds import MEMFD_PATH
from anyprobe.probes.providers.function.load_order import LOADERS, first_bias
from anyprobe.splice.edits import Module
from anyprobe.splice.plan.entry_plans import EntryPlans
from anyprobe.target.base import RunningProcess
from anyprobe.target.system import procfs
from anyprobe.target.system.procfs import Mapping

if TYPE_CHECKING:
    from anyprobe.binary.images.image import Image

_GLIBC = "libc.so.6"
_STATIC, _TUNABLES = "__libc_setup_tls", b"\0GLIBC_TUNABLES\0"
"""What static programs with glibc have: a function, and a name that they look for in their environment."""
_MUSL = ("ld-musl", "libc.musl", "libc.so")
"""How musl's one library is called, by its path or what that links to; glibc's is looked for before."""
_CLONES = frozenset({"clone", "__clone", "__clone2"})
_CLONE_CALLERS = ("__clone_internal", "clone_internal", "__spawni", "clone", "__clone")
"""What calls ``clone`` in the C library, by how their names begin; ``__clone3`` is among them."""
_OPEN_IN_LIBC = (*_CLONE_CALLERS, "syscall", "__nptl_setxid", "__syscall_cancel", "__thread_gscope_wait")
"""What makes system calls in it of which the code does not tell which: what is told ``syscall`` is known otherwise."""
_SYSCALL = b"\x0f\x05"
"""What threads wait at; not ``int 0x80``, whose numbers are others."""

_known: "WeakKeyDictionary[Image, tuple[CodeMap, EntryPlans]]" = WeakKeyDictionary()
"""What all processes that share an image share with it."""
_reading: "WeakKeyDictionary[Image, RLock]" = WeakKeyDictionary()
"""What a thread holds that finds this out first."""


class ObjectTable:
    """What is loaded in a process now; refreshed when asked, keeping the analysis of what stayed."""

    def __init__(self, process: RunningProcess, files: ObjectFiles | None = None) -> None:
        """Read the objects of a process; ``files`` opens what is mapped, in the process's own root if not given."""
        self._process, self._given = process, files
        self._own = ProcessFiles(procfs.voice(process.pid), memory=process.mem)
        self._modules: dict[tuple[str, int, int], Module] = {}
        self._refusals: dict[LoadedObject, Refusal | None] = {}
        self._left: dict[LoadedObject, str] = {}
        """The objects that are left alone, and why."""
        self._chosen: WeakKeyDictionary[LoadedObject, dict[int, list[int]]] = WeakKeyDictionary()
        """What functions that choose others (IFUNC) were seen to return, by their run-time addresses."""
        self.objects: list[LoadedObject] = []
        self._placed: Placed = {}
        self.refresh()

    def refresh(self) -> None:
        """Read what is loaded now."""
        voice = procfs.voice(self._process.pid)
        if voice != self._own.pid:  # the thread that spoke for the process has ended
            self._own = replace(self._own, pid=voice)
            self._placed.clear()
        mappings = [m for m in self._process.mappings() if m.path != MEMFD_PATH]
        process = self._process
        files = self._given or self._own
        found = loaded_objects(
            mappings, files=files, executable=process.exe, called=process.called, placed=self._placed
        )
        loaders = [each for each in found if each.is_executable and (self.is_loader(each) or self.is_musl(each))]
        if not {id(each) for each in found} <= {id(each) for each in self.objects}:
            known = {_key(o): o for o in self.objects}
            found = [known.get(_key(o), o) for o in found]
        self.objects = found
        if loaders:
            self._see_program(loaders)
        self._refusals.clear()
        for name in ("ifunc_slots", "_permanent"):
            self.__dict__.pop(name, None)

    def _see_program(self, loaders: Sequence[LoadedObject]) -> None:
        """Have the program be the executable where its loader was executed by itself; there is none before that has it.

        It is the first in the loader's list.
        """
        for each in self.objects:
            each.was_given_program = _key(each) in map(_key, loaders)
            each.is_executable = False
        bias = first_bias(self.objects, self._process.mem)
        for each in self.objects:
            each.is_executable = not each.was_given_program and each.name != VDSO and each.bias == bias

    def files_of(self, process: RunningProcess) -> ObjectFiles | None:
        """Return what opens the files of a fork child, which are read once for both."""
        return self._given or replace(self._own, pid=procfs.voice(process.pid), memory=process.mem)

    def leave(self, objects: Iterable[LoadedObject], why: str) -> None:
        """Refuse the text of some objects."""
        self._left |= dict.fromkeys(objects, why)

    @cached_property
    def ifunc_slots(self) -> IfuncSlots:
        """The reader of resolved IFUNCs."""
        seen = {at: found for each in self.objects for at, found in self._chosen.get(each, {}).items()}
        return IfuncSlots(self._process.mem, self.objects, seen)

    def note_choice(self, resolver: int, chosen: int) -> LoadedObject | None:
        """Take note of what a function (IFUNC) has chosen; return the object, None if it is not known or not new."""
        loaded = self.at(resolver)
        if loaded is None or chosen in self._chosen.get(loaded, {}).get(resolver, ()):
            return None
        self._chosen.setdefault(loaded, {}).setdefault(resolver, []).append(chosen)
        self.__dict__.pop("ifunc_slots", None)
        return loaded

    def libc(self) -> LoadedObject | None:
        """Return the glibc of a dynamic program, or the program itself where it is statically linked with glibc."""
        for loaded in self.objects:
            if loaded.name == _GLIBC:
                return loaded
        return next((o for o in self.objects if o.is_executable and _is_static_glibc(o)), None)

    def c_library(self) -> LoadedObject | None:
        """Return the C library, glibc or musl: of a static program the program itself."""
        found = self.libc() or next((each for each in self.objects if each.name.startswith(_MUSL)), None)
        if found is not None or any(map(self.is_loader, self.objects)):
            return found
        return next((each for each in self.objects if each.is_executable), None)

    def own_calls(self, numbers: Sequence[int]) -> "Iterator[tuple[LoadedObject, int, int]]":
        """Yield where code makes some system calls itself: the object, the address in it, and the number.

        Objects that cannot be read have none, as far as is known.
        """
        for loaded in self.objects:
            with suppress(TargetError):
                found = loaded.image.own_calls if loaded.name != VDSO else []
                yield from ((loaded, at, number) for at, number in found if number in numbers)

    def has_no_names(self) -> bool:
        """Return whether the C library is in a static program that has been stripped."""
        libc = self.libc()
        return libc is not None and libc.is_executable and not libc.image.functions.lookup(_STATIC)

    def has_thread_slots(self, *, watched: bool = False) -> bool:
        """Return whether every thread pointer belongs to one task: glibc makes all threads and nothing else does.

        A program that calls ``clone`` itself can make tasks that share a thread pointer, or have none; ``watched``: it
        is seen when it calls that of the C library.
        """
        libc = self.libc()
        if libc is None:
            return False
        if libc.is_executable and self._calls_clone(libc, only_itself=watched):
            return False
        if any(
            (not watched and imports(loaded, _CLONES)) or _makes_tasks(loaded, itself=watched)
            for loaded in self._others(libc)
        ):
            return False
        return all(watched and loaded.image.elf.read(at, 2) == _SYSCALL for loaded, at in self.open_calls())

    def open_calls(self) -> "list[tuple[LoadedObject, int]]":
        """Return the instructions outside of the C library that may make a task, and do not tell of what kind."""
        libc = self.libc()
        if libc is None:
            return []
        found = [(each, at) for each in self._others(libc) for at in each.image.open_calls.tolist()]
        if libc.is_executable:
            functions = libc.image.functions
            found.extend(
                (libc, at) for at in libc.image.open_calls.tolist()
                if (function := functions.containing(at)) is None or not function.name.startswith(_OPEN_IN_LIBC)
            )  # fmt: skip
        return found

    def _others(self, libc: LoadedObject) -> list[LoadedObject]:
        """Return the objects that are neither the C library nor of it; a copy of it is like it."""
        others = (each for each in self.objects if each.name != VDSO and not self.is_loader(each))
        return [each for each in others if each.first.inode != libc.first.inode]

    def makes_tasks_by_number(self) -> bool:
        """Return whether an object makes tasks by the C library's ``syscall``."""
        return any(
            _makes_tasks(loaded) and not _makes_tasks(loaded, itself=True)
            for loaded in self.objects
            if loaded.name != VDSO and not self.is_loader(loaded)
        )

    def may_lock_memory(self) -> bool:
        """Return whether an object that is loaded calls ``mlockall``, by which all is in memory that is mapped."""
        libc = self.libc()
        others = [each for each in self.objects if each.name != VDSO and not self.is_loader(each) and each is not libc]
        return any(imports(loaded, ("mlockall",)) for loaded in others)

    def goroutine_number_at(self) -> int | None:
        """Return where ``runtime.g`` has the goroutine's number, 0 if that is not known; None: there is no Go code."""
        for loaded in self.objects:
            with suppress(TargetError):  # it cannot be read
                if loaded.name != VDSO and loaded.image.is_go:
                    known = loaded.image.text().go_functions
                    return 0 if known is None else known.number_at or 0
        return None

    def reads_thread_word(self, offset: int) -> bool:
        """Return whether the C library reads a word of the thread's control block by ``mov r32, fs:[offset]``."""
        libc = self.libc()
        if libc is None:
            return False
        wanted = re.compile(rb"\x64\x8b[\x04\x0c\x14\x1c\x24\x2c\x34\x3c]\x25" + re.escape(struct.pack("<i", offset)))
        ranges = libc.image.code_ranges
        return any(wanted.search(libc.image.read(each.start, each.end - each.start)) for each in ranges)

    def has_shadow_stacks(self) -> bool:
        """Return whether the program's first thread runs on a shadow stack."""
        return self._process.has_shadow_stacks()

    def _calls_clone(self, loaded: LoadedObject, *, only_itself: bool) -> bool:
        """Return whether a static program's own code calls ``clone``, takes its address, or makes the system call.

        ``only_itself``: only whether it does the last.
        """
        functions, code = loaded.image.functions, self.module(loaded).code
        for at in _task_makers(loaded, itself=only_itself):
            maker = functions.containing(at)
            if maker is None or not maker.name.startswith(_CLONE_CALLERS):
                return True
        for name in () if only_itself else ("clone", "__clone"):
            for function in functions.lookup(name):
                for _, source, _ in code.entries.references.into(function.start, function.start + 1):
                    caller = functions.containing(source)
                    if caller is None or not caller.name.startswith(_CLONE_CALLERS):
                        return True
        return False

    def loader(self) -> LoadedObject | None:
        """Return the dynamic loader, with musl its one library; ``None`` in a static program."""
        found = next((each for each in self.objects if self.is_loader(each)), None)
        return found or next((each for each in self.objects if self.is_musl(each) and not each.is_executable), None)

    def come_by_musl(self) -> bool:
        """Return whether musl has yet to map libraries that a program is linked with, and will tell when it has."""
        loader = self.loader()
        executable = next((each for each in self.objects if each.is_executable), None)
        if loader is None or not self.is_musl(loader):
            return False
        if executable is None:
            return loader.was_given_program
        return any(not name.startswith(_MUSL) for name in executable.image.elf.needed)

    def is_permanent(self, loaded: LoadedObject) -> bool:
        """Return whether the loader never unloads an object: the program, itself, and what is loaded with these.

        musl's unloads nothing.
        """
        if loaded.is_executable or loaded.name == VDSO or self.is_loader(loaded) or loaded in self._permanent:
            return True
        loader = self.loader()
        return loader is not None and self.is_musl(loader)

    @cached_property
    def _permanent(self) -> list[LoadedObject]:
        found = [each for each in self.objects if each.is_executable]
        for loaded in found:
            try:
                needed = loaded.image.elf.needed
            except TargetError:
                continue
            for name in needed:
                called = [each for each in self.objects if name in (each.name, soname(each))]
                if len(called) == 1 and called[0] not in found:  # else one may be in a namespace of its own (dlmopen)
                    found += called
        return found

    def is_musl(self, loaded: LoadedObject) -> bool:
        """Return whether an object is musl, as a library."""
        return loaded.name.startswith(_MUSL) and loaded.name != _GLIBC

    def is_loader(self, loaded: LoadedObject) -> bool:
        """Return whether an object is the dynamic loader."""
        if loaded.file_name.startswith(LOADERS) or loaded.was_given_program:
            return True
        return loaded.is_executable and soname(loaded).startswith(LOADERS)  # a copy of another name

    def at(self, address: int) -> LoadedObject | None:
        """Return the object that an address lies in."""
        for loaded in self.objects:
            if any(mapping.start <= address < mapping.end for mapping in loaded.mappings):
                return loaded
        return None

    def holding(self, address: int) -> LoadedObject | None:
        """Return the object that an address lies in, its data that no file has (``.bss``) included."""
        found = self.at(address)
        if found is not None:
            return found
        for loaded in self.objects:
            with suppress(TargetError):  # its file cannot be read
                if any(0 <= address - loaded.bias - each.vaddr < each.memsz for each in loaded.image.elf.loads):
                    return loaded
        return None

    def module(self, loaded: LoadedObject) -> Module:
        """Return the engine's module of an object."""
        key = _key(loaded)
        module = self._modules.get(key)
        if module is None:
            first, last = loaded.mappings[0], loaded.mappings[-1]
            code, plans = _analysed(loaded.image)
            module = self._modules[key] = Module(loaded.name, code, loaded.bias, first.start, last.end)
            module.parts = parts_of(m for m in loaded.mappings if isinstance(m, Mapping))
            module.plans = plans
            for area, reason in code.text.forbidden:
                if reason == Reason.TEXT_RELOCATION.value:  # no pun may depend on these bytes either
                    module.claims.written.add_range(area.start, area.end)
        module.note_writable(mapping for mapping in loaded.mappings if isinstance(mapping, Mapping))
        return module

    def code_of(self, path: str) -> "tuple[Image, CodeMap] | None":
        """Return what an earlier session has found out about a file that the process may map; nothing if none has."""
        image = self._own.expected(path)
        if not image.is_kept:
            return None
        _ = image.moves_thread_pointer, image.segments
        return image, _analysed(image)[0]

    def refusal(self, loaded: LoadedObject) -> Refusal | None:
        """Return why the object's text must not be spliced at all."""
        if loaded in self._left:
            return Refusal(Reason.FOREIGN_BYTES, loaded.first.start, self._left[loaded])
        if loaded not in self._refusals:
            self._refusals[loaded] = _shared_text(loaded)
        return self._refusals[loaded]


def _analysed(image: "Image") -> "tuple[CodeMap, EntryPlans]":
    found = _known.get(image)
    if found is None:
        with _reading.setdefault(image, RLock()):  # others of the same file wait, which takes a second: it is read once
            found = _known.get(image)
            if found is None:
                code = CodeMap(image.text(), image.cold_parts)
                found = _known[image] = code, EntryPlans(code.text, image.build_id)
    return found


def _shared_text(loaded: LoadedObject) -> Refusal | None:
    for mapping in loaded.mappings:
        if isinstance(mapping, Mapping) and mapping.executable and not mapping.private:
            detail = "the text is a shared mapping: a write would change it for everybody"
            return Refusal(Reason.SHARED_TEXT, mapping.start, detail)
    return None


def _key(loaded: LoadedObject) -> tuple[str, int, int]:
    """Return what tells an object from any other, one of the same name at the same place included."""
    return loaded.path, loaded.first.start, loaded.first.inode


def soname(loaded: LoadedObject) -> str:
    """Return the name that an object gives itself; nothing where it has none or cannot be read."""
    try:
        return loaded.image.elf.soname
    except TargetError:
        return ""


def imports(loaded: LoadedObject, names: Iterable[str]) -> bool:
    """Return whether an object calls one of some functions of others; one that cannot be read may."""
    try:
        table = loaded.image.dynamic_table
    except TargetError:
        return True
    if table is None:
        return False
    wanted = set(table.symbols["name"][table.symbols["shndx"] == 0].tolist())
    return any(offset in wanted for name in names for offset in table.offsets_of(name))


def _makes_tasks(loaded: LoadedObject, *, itself: bool = False) -> bool:
    """Return whether an object makes tasks by the system call; one that cannot be read may. ``itself``: see below."""
    try:
        return bool(_task_makers(loaded, itself=itself))
    except TargetError:
        return True


def _task_makers(loaded: LoadedObject, *, itself: bool) -> list[int]:
    """Return where an object makes tasks by the system call; ``itself``: not by the C library's ``syscall``."""
    found: list[int] = loaded.image.task_makers.tolist()
    if not found or not itself:
        return found
    from anyprobe.binary.restrictions.raw_clones import calls_function

    return [at for at in found if not calls_function(loaded.image.elf, at)]


def _is_static_glibc(loaded: LoadedObject) -> bool:
    """Return whether a program is static, with glibc in it: which its names tell, or what it reads at its start."""
    try:
        if loaded.image.functions.lookup(_STATIC):
            return True
        elf = loaded.image.elf
        return not elf.needed and not loaded.image.is_go and elf.content.find(_TUNABLES) >= 0
    except TargetError:
        return False
