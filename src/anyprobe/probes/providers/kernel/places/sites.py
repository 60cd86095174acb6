"""What specs mean in the running kernel: functions, tracepoints and system calls."""

import fnmatch
import os
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from anyprobe.core.errors import UnsupportedTarget
from anyprobe.probes.providers.kernel.places.events import Event, event_of
from anyprobe.probes.providers.kernel.places.files import InFile, places
from anyprobe.probes.providers.kernel.places.specs import EACH, KernelSpec, Name, Provider, is_pattern, of_function
from anyprobe.probes.specs.nearest import nearest_names
from anyprobe.probes.specs.parts import Part
from anyprobe.target.kernel import btf, loaded_modules, symbols, tracefs
from anyprobe.target.kernel.symbols import KERNEL, KernelFunction, Symbols
from anyprobe.target.kernel.types import Prototype, Tag

if TYPE_CHECKING:
    from anyprobe.handlers.types.marker import MarkerAt

_SYSCALL_FUNCTIONS = ("__x64_sys_{}", "__do_sys_{}")
_RENAMED = {
    "stat": "newstat", "lstat": "newlstat", "fstat": "newfstat", "uname": "newuname", "sendfile": "sendfile64",
    "umount2": "umount", "pread": "pread64", "pwrite": "pwrite64", "fadvise64_64": "fadvise64",
}  # fmt: skip
"""System calls whose functions the kernel calls otherwise."""


_ITERATOR = "__traceiter_"
"""What the function of a tracepoint begins with that calls what is attached to it."""
_MANY = 8
"""Functions that an error names at most."""


class Unable(Exception):  # noqa: N818 - one of several ways, not a mistake
    """A mechanism cannot do this, and why; another one may."""


class KernelSite(NamedTuple):
    """One place in the kernel: at a function, at a tracepoint, both ways for a system call; or what makes hits."""

    spec: str
    module: str
    """A module, ``vmlinux``, or a tracepoint's category."""
    name: str
    kind: Name
    offset: int = 0
    function: KernelFunction | None = None
    names: tuple[str, ...] = ()
    """All names of the function; none may be another function's too if its type is to be looked up by one."""
    tracepoint: tuple[str, str] | None = None
    raw: str | None = None
    event: Event | None = None
    file: InFile | None = None

    @property
    def place(self) -> tuple[object, ...]:
        """What it has in common with all sites that have the same hits, by whichever mechanism these are seen."""
        if self.function is not None:
            return (self.address, self.kind)
        return (self.address, self.kind, self.raw or self.tracepoint, self.event, self.file and self.file.path)

    @property
    def as_function(self) -> KernelSpec:
        """The spec of it at a function of the kernel."""
        return of_function(self.module, self.name, self.kind, self.offset)

    @property
    def marker(self) -> "MarkerAt | None":
        """What handlers know at a marker, None elsewhere."""
        return None if self.file is None else self.file.marker

    @property
    def has_tracepoint(self) -> bool:
        """Whether it is at a tracepoint, of which the kernel tells what is passed."""
        return self.raw is not None or self.tracepoint is not None

    @property
    def is_call(self) -> bool:
        """Whether it is a system call's."""
        return self.function is not None and self.tracepoint is not None

    @property
    def address(self) -> int:
        """Where it is, in the kernel or in a file's own tables, 0 for tracepoints and events."""
        if self.file is not None:
            return self.file.address
        return 0 if self.function is None else self.function.address + self.offset


class FunctionType(NamedTuple):
    """The type of a function: its number in the types of the kernel or a module."""

    types: btf.Btf
    number: int

    @property
    def prototype(self) -> Prototype:
        """Its parameters and its result."""
        found = self.types.prototype(self.number)
        if found is None:
            raise btf.TypesUnavailable(f"function {self.number} of {self.types.name} has no parameters")
        return found


def _containing_inlined(name: str) -> list[str]:
    """Return the functions into which one has been put, nothing where no debug information tells."""
    from anyprobe.probes.providers.kernel.places import debug_file

    try:
        return debug_file.installed().containing_inlined(name)
    except UnsupportedTarget:
        return []


class KernelNames:
    """What there is in the kernel, read when it is first asked for."""

    def __init__(self) -> None:
        """Read nothing yet."""
        self.types = btf.running()
        self._loaded = loaded_modules.loaded()

    @cached_property
    def symbols(self) -> Symbols:
        """The functions."""
        return symbols.running()

    def look_again(self) -> None:
        """Forget the functions and types of modules, which have come or gone."""
        self.__dict__.pop("symbols", None)
        self.types.forget_modules()

    def module_of(self, site: KernelSite) -> str:
        """Return the module that a site is in, ``vmlinux`` for the kernel itself."""
        if site.function is not None:
            return site.function.module
        iterators = self.symbols.named(f"{_ITERATOR}{site.raw}")
        return iterators[0].module if iterators else KERNEL

    def resolve(self, spec: KernelSpec) -> list[KernelSite]:
        """Return the sites that a spec means; raise ``SpecError`` with the nearest names if there is none."""
        loaded = loaded_modules.loaded()
        if loaded != self._loaded:
            self.look_again()
            self._loaded = loaded
        if spec.provider is Provider.TRACEPOINT:
            return self._tracepoints(spec)
        if spec.provider is Provider.RAW:
            name = spec.function.text
            return [KernelSite(spec.canonical("", name), "", name, "entry", raw=name)]
        if spec.provider is Provider.SYSCALL:
            return self._syscalls(spec)
        if spec.is_in_file:
            return [
                KernelSite(
                    spec.canonical(each.path, each.name), os.path.basename(each.path), each.name, spec.name,
                    spec.offset, file=each,
                )
                for each in places(spec)
            ]  # fmt: skip
        if spec.is_event:
            module, often, event = spec.module.text, spec.function.text, event_of(spec)
            name = f"{module}:{often}" if often else module
            return [KernelSite(spec.canonical(module, often), spec.provider.value, name, "entry", event=event)]
        return self._line(spec) if spec.line else self._functions(spec)

    def _line(self, spec: KernelSpec) -> list[KernelSite]:
        """Return where control comes to a source line, in each function that has code of it."""
        from anyprobe.probes.providers.kernel.places import debug_file

        file = spec.function.text
        try:
            places, lines = debug_file.installed().places_of_line(file, spec.line)
        except UnsupportedTarget as refusal:
            raise spec.error(spec.function, str(refusal)) from None
        if not lines:
            raise spec.error(spec.function, "no file of the kernel's sources with code has this name")
        if not places:
            nearest = sorted(lines, key=lambda each: (abs(each - spec.line), each))[:3]
            raise spec.error(spec.function, "this line has no code", tuple(f"{file}:{each}" for each in nearest))
        sites = []
        for name, offset in places:
            functions = [each for each in self.symbols.named(name) if each.module == KERNEL]
            if len(functions) != 1:
                raise spec.error(spec.function, f"it is in {name}, of which the kernel has {len(functions)}")
            part = Part(name, spec.function.position)
            kind: Name = "offset" if offset else "entry"
            at = KernelSpec(spec.text, Provider.FUNCTION, spec.module, part, kind, offset)
            sites.append(self._at(at, functions[0]))
        return sites

    def _functions(self, spec: KernelSpec) -> list[KernelSite]:
        name, module = spec.function.text, spec.module.text
        if is_pattern(name):
            found = self.symbols.matching(name, module or "*")
        else:
            found = [each for each in self.symbols.named(name) if fnmatch.fnmatchcase(each.module, module or "*")]
        if not found:
            self._no_function(spec)
        by_address = {each.address: each for each in reversed(found)}  # a function may have several names
        if spec.name in EACH:
            from anyprobe.probes.providers.kernel.places.instructions import offsets_of

            return [
                self._at(spec.at("offset", offset), function)
                for function in reversed(by_address.values())
                for offset in offsets_of(self.symbols, spec, function)
            ]
        return [self._at(spec, function) for function in reversed(by_address.values())]

    def _no_function(self, spec: KernelSpec) -> None:
        elsewhere = self.symbols.named(spec.function.text)
        if spec.module and elsewhere:
            where = ", ".join(sorted({each.module for each in elsewhere}))
            raise spec.error(spec.module, f"{spec.function.text} is in {where}")
        if spec.module and not is_pattern(spec.module.text) and spec.module.text not in {KERNEL, *self._loaded}:
            message = "no such module is loaded; to wait for it: --pending, follow=True"
            raise spec.error(spec.module, message, nearest_names(spec.module.text, self._loaded))
        within = [] if spec.is_glob else _containing_inlined(spec.function.text)
        if within:
            others = "other functions" if len(within) > 1 else "another function"
            raise spec.error(spec.function, f"the compiler has put it into {others}", tuple(within[:_MANY]))
        message = "no function of the kernel has this name; it may be inlined where it is called"
        if spec.is_glob:
            message = "no function of the kernel matches this"
        raise spec.error(spec.function, message, nearest_names(spec.function.text, self.symbols.names()))

    def _at(self, spec: KernelSpec, function: KernelFunction) -> KernelSite:
        if spec.offset:
            self._check_offset(spec, function)
        canonical = spec.canonical(function.module, function.name)
        names = tuple(self.symbols.aliases(function))
        return KernelSite(canonical, function.module, function.name, spec.name, spec.offset, function, names)

    def _check_offset(self, spec: KernelSpec, function: KernelFunction) -> None:
        end = self.symbols.next_after(function)
        if end is not None and function.address + spec.offset >= end:
            size = end - function.address
            raise spec.error(spec.function, f"{function.name} has no more than {size:#x} bytes")

    def type_of(self, site: KernelSite) -> FunctionType | None:
        """Return the type of a site's function under any of its names that is no other function's too."""
        types = None if site.function is None else self._types(site.function.module)
        for name in site.names if types is not None else ():
            number = types.number_of_function(name) if types is not None else None
            if types is not None and number is not None and len(self.symbols.named(name)) == 1:
                return FunctionType(types, number)
        return None

    def tracepoints_like(self, name: str) -> tuple[str, ...]:
        """Return the tracepoints with names near to one, as the kernel calls them itself."""
        known = [each.removeprefix(_ITERATOR) for each in self.symbols.names() if each.startswith(_ITERATOR)]
        return nearest_names(name, known)

    def check_types(self) -> None:
        """Raise ``TypesUnavailable`` where the kernel tells no types at all."""
        assert self.types.kernel

    def tracepoint_type(self, site: KernelSite) -> tuple[btf.Btf, int] | None:
        """Return the type by which the kernel knows a raw tracepoint, and whose types these are."""
        types = self._types(self.module_of(site))
        numbers = [] if types is None else types.find(f"btf_trace_{site.raw}", Tag.TYPEDEF)
        return (types, numbers[0]) if types is not None and numbers else None

    def _types(self, module: str) -> btf.Btf | None:
        try:
            return self.types.module(module)
        except btf.TypesUnavailable:
            return None

    def _tracepoints(self, spec: KernelSpec) -> list[KernelSite]:
        categories = fnmatch.filter(tracefs.categories(), spec.module.text)
        if not categories:
            raise spec.error(
                spec.module, "no tracepoint has this category", nearest_names(spec.module.text, tracefs.categories())
            )
        found = [
            (category, name)
            for category in categories
            for name in fnmatch.filter(tracefs.tracepoints(category), spec.function.text)
        ]
        if not found:
            known = [name for category in categories for name in tracefs.tracepoints(category)]
            message = "no tracepoint of this category has this name"
            raise spec.error(spec.function, message, nearest_names(spec.function.text, known))
        return [
            KernelSite(spec.canonical(*each), each[0], each[1], "entry", tracepoint=each, raw=each[1]) for each in found
        ]

    def _syscalls(self, spec: KernelSpec) -> list[KernelSite]:
        if not spec.is_glob:
            return [self._syscall(spec, spec.function.text)]
        prefix = _SYSCALL_FUNCTIONS[0].format("")
        names = [name.removeprefix(prefix) for name in self.symbols.names() if name.startswith(prefix)]
        found = fnmatch.filter(names, spec.function.text)
        if not found:
            raise spec.error(spec.function, "no system call matches this")
        return [self._syscall(spec, name) for name in found]

    def _syscall(self, spec: KernelSpec, name: str) -> KernelSite:
        inner = _RENAMED.get(name, name)
        found = [each for form in _SYSCALL_FUNCTIONS for each in self.symbols.named(form.format(inner))]
        if not found:
            prefix = _SYSCALL_FUNCTIONS[0].format("")
            known = [each.removeprefix(prefix) for each in self.symbols.names() if each.startswith(prefix)]
            raise spec.error(spec.function, "no system call of this kernel has this name", nearest_names(name, known))
        function = found[0]
        event = f"sys_{'exit' if spec.name == 'return' else 'enter'}_{inner}"
        return KernelSite(
            spec.canonical("", name), "syscalls", name, spec.name, 0, function,
            tuple(self.symbols.aliases(function)), ("syscalls", event),
        )  # fmt: skip
