"""One ELF object as the rest of anyprobe sees it: functions by name and address, and the facts about its code."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from anyprobe.binary.objects.elf import PF_X, PT_INTERP, SHF_ALLOC, SHF_EXECINSTR, ElfFile, Segment
from anyprobe.binary.objects.functions import STUB_SUFFIX, Function, FunctionTable
from anyprobe.binary.objects.golang import go_functions, go_symbols, is_go, parking_places, recovery_entries
from anyprobe.binary.objects.symbols import SymbolTable, dynamic_symbols, static_symbols
from anyprobe.binary.objects.table_store import CodeFacts, TableStore
from anyprobe.binary.objects.text import ModuleText
from anyprobe.binary.restrictions.thread_pointer import moves_thread_pointer
from anyprobe.core.address import AddressRange, page_floor
from anyprobe.core.arrays import among, unique
from anyprobe.core.cachedproperty import Lazy
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.core.memory import MemoryFault

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from anyprobe.binary.dwarf.debug_info import DebugInfo
    from anyprobe.binary.objects.bounds import Bounds
    from anyprobe.binary.objects.go_functions import GoFunctions
    from anyprobe.binary.objects.go_type_names import GoTypeNames
    from anyprobe.binary.objects.relocations import Relocations
    from anyprobe.binary.objects.stubs import SlotJump
    from anyprobe.binary.objects.variables import Variable
    from anyprobe.binary.unwind.eh_frame import UnwindTable
    from anyprobe.binary.unwind.rules import RulesOfEntries, UnwindRules

__all__ = ["DEBUG_ROOTS", "Function", "FunctionTable", "Image"]

DEBUG_ROOTS = ("/usr/lib/debug",)
_STUB_SECTIONS = (".plt", ".plt.got", ".plt.sec", ".plt.bnd", ".iplt")

T = TypeVar("T")


class Image:
    """An executable or shared object, in link-time virtual addresses; every part is read when first asked for."""

    def __init__(self, elf: ElfFile, name: str, *, debug_roots: Sequence[str] = (), root: str = "") -> None:
        """Wrap an opened ELF file; use ``open`` or ``from_bytes``."""
        self.elf = elf
        self.name = name
        self.path = elf.path
        self._debug_roots = tuple(debug_roots)
        self.root = root
        """The root directory in which debug files are looked for first."""

    @classmethod
    def open(
        cls, path: str, *, debug_roots: Sequence[str] = DEBUG_ROOTS, root: str = "", name: str | None = None
    ) -> "Image":
        """Open the file at ``path``; ``root`` is the target's root directory, searched for debug files first.

        Raises ``UnsupportedTarget`` with the reason: unreadable, not ELF, 32-bit, another architecture, damaged.
        """
        return cls(ElfFile.open(path), name or os.path.basename(path), debug_roots=debug_roots, root=root)

    @classmethod
    def from_bytes(
        cls, name: str, content: bytes, *, debug_roots: Sequence[str] = DEBUG_ROOTS, root: str = ""
    ) -> "Image":
        """Wrap the content of an object that has no path of its own: a deleted file, the vdso."""
        return cls(ElfFile(name, content), name, debug_roots=debug_roots, root=root)

    def __repr__(self) -> str:
        """Return the path and the build-id."""
        return f"<Image {self.path} {self.build_id or 'without build-id'}>"

    @property
    def build_id(self) -> str | None:
        """The linker's build-id in hexadecimal."""
        return self.elf.build_id

    @property
    def machine(self) -> int:
        """The ELF machine number: always x86-64's."""
        return self.elf.machine

    @property
    def elf_type(self) -> int:
        """2 for a fixed-address executable, 3 for a position-independent one or a library."""
        return self.elf.elf_type

    @property
    def entry(self) -> int:
        """The program entry, 0 for most libraries."""
        return self.elf.entry

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The program headers."""
        return self.elf.segments

    @property
    def is_pie(self) -> bool:
        """Whether the loader may place the object anywhere."""
        return self.elf.elf_type == 3

    @property
    def is_program(self) -> bool:
        """Whether the object has an interpreter or a fixed address: an executable rather than a library."""
        return not self.is_pie or any(each.kind == PT_INTERP for each in self.segments)

    @cached_property
    def debug_info(self) -> "DebugInfo":
        """The debug information; ``UnsupportedTarget`` says why there is none."""
        from anyprobe.binary.dwarf.debug_info import DebugInfo

        return DebugInfo.open(self.elf, self._debug_roots, self.root)

    @cached_property
    def is_go(self) -> bool:
        """Whether the Go toolchain made the object."""
        return is_go(self.elf)

    def read(self, vaddr: int, size: int) -> bytes:
        """Return bytes as the file has them; ``.bss`` reads as zero; ``MemoryFault`` outside of the segments."""
        return self.elf.read(vaddr, size)

    @cached_property
    def executable_segments(self) -> tuple[AddressRange, ...]:
        """What is mapped executable."""
        return tuple(
            AddressRange(each.vaddr, each.vaddr + each.filesz)
            for each in self.elf.loads
            if each.flags & PF_X and each.filesz
        )

    @cached_property
    def code_ranges(self) -> tuple[AddressRange, ...]:
        """The executable sections, since old linkers put data into executable segments; without sections, those."""
        wanted = SHF_ALLOC | SHF_EXECINSTR
        sections = [
            AddressRange(each.address, each.address + each.size)
            for each in self.elf.sections
            if each.flags & wanted == wanted and each.size and each.kind == 1
        ]
        inside = [
            each
            for each in sections
            if any(one.start <= each.start and each.end <= one.end for one in self.executable_segments)
        ]
        return tuple(sorted(inside)) or self.executable_segments

    @cached_property
    def dynamic_table(self) -> SymbolTable | None:
        """The dynamic symbols."""
        return dynamic_symbols(self.elf)

    @cached_property
    def relocations(self) -> "Relocations":
        """The dynamic relocations."""
        from anyprobe.binary.objects.relocations import relocations

        return self._checked(lambda: relocations(self.elf), "relocations")

    @cached_property
    def unwind(self) -> "UnwindTable":
        """What ``.eh_frame`` says."""
        from anyprobe.binary.unwind.eh_frame import unwind_table

        return unwind_table(self.elf)

    @cached_property
    def unwind_rules(self) -> "UnwindRules":
        """How a caller's frame is found from anywhere in the code, from the lowest address on."""
        from anyprobe.binary.unwind.rules import UnwindRules, unwind_rules

        kept = self._store.rules()
        if kept is not None:
            return UnwindRules(*kept)
        found = unwind_rules(self.elf, self.lowest_address)
        self._store.keep_rules(found.starts, found.rules)
        return found

    @cached_property
    def few_unwind_rules(self) -> "UnwindRules | RulesOfEntries":
        """Unwinding rules read function by function, where only those of a few are asked for."""
        from anyprobe.binary.unwind.rules import UnwindRules, rules_at_demand

        kept = self._store.rules()
        return rules_at_demand(self.elf, self.lowest_address) if kept is None else UnwindRules(*kept)

    @property
    def lowest_address(self) -> int:
        """The address of the first page."""
        return page_floor(min(each.vaddr for each in self.elf.loads))

    @cached_property
    def symbol_tables(self) -> tuple[SymbolTable, ...]:
        """Every symbol table that describes the object: its own, its debug file's, the compressed one."""
        from anyprobe.binary.objects.debug_files import mini_symbols, separate_symbols

        tables = [self.dynamic_table]
        own = static_symbols(self.elf)
        tables.append(own or separate_symbols(self.elf, self._debug_roots, self.root) or mini_symbols(self.elf))
        if self.is_go and own is None:
            tables.append(go_symbols(self.elf))
        return tuple(table for table in tables if table is not None)

    def variable_at(self, address: int) -> "Variable | None":
        """Return the variable with static storage that a link-time address lies in, None where no symbol says so."""
        from anyprobe.binary.objects.variables import variable_at

        return self._checked(lambda: variable_at(self.symbol_tables, address), "its variables")

    @cached_property
    def go_type_names(self) -> "GoTypeNames":
        """The names of Go's types; ``UnsupportedTarget`` where the object has lost its symbols, or has none."""
        from anyprobe.binary.objects.go_type_names import GoTypeNames

        return GoTypeNames(self.elf.read, self.symbol_tables, self.name)

    @Lazy
    def functions(self) -> FunctionTable:
        """All functions, by name and by address."""
        bounds = self._store.bounds()
        if bounds is None:
            bounds = self._checked(self._find_bounds, "symbols")
            self._store.keep_bounds(bounds)
        return FunctionTable(self.name, self.symbol_tables, bounds)

    @property
    def is_kept(self) -> bool:
        """Whether an earlier session has kept what takes long to find out: functions, and facts about the code."""
        return self._store.bounds() is not None and self._store.facts() is not None

    @cached_property
    def known_functions(self) -> FunctionTable:
        """All functions where they are known already, else those that symbols and unwind tables list.

        Among these each address has the function that it has among all; looking for the others takes longer.
        """
        if Image.functions.made(self) is not None or self._store.bounds() is not None:
            return self.functions
        return FunctionTable(self.name, self.symbol_tables, self._checked(lambda: self._listed, "symbols"))

    def function_around(self, address: int) -> "Function | None":
        """Return the function that a link-time address lies in; others are looked for if none is listed there."""
        return self.known_functions.containing(address) or self.functions.containing(address)

    @cached_property
    def stubs(self) -> "tuple[Function, ...]":
        """The linker's stubs outside of all functions, named ``sym@plt``."""
        outside = [each for each in self._named_stubs if self.functions.containing(each[0]) is None]
        return tuple(Function(start, end, (name + STUB_SUFFIX,)) for start, end, name in outside)

    def stub_at(self, address: int) -> str | None:
        """Return the name of the linker's stub that a link-time address lies in, ``sym@plt``; None in no stub."""
        found = (name for start, end, name in self._named_stubs if start <= address < end)
        name = next(found, None) if any(address in each for each in self._stub_sections) else None
        return None if name is None else name + STUB_SUFFIX

    @cached_property
    def _named_stubs(self) -> list[tuple[int, int, str]]:
        from anyprobe.binary.objects.stubs import named_stubs

        if self.dynamic_table is None:
            return []
        return named_stubs(self.dynamic_table, self.relocations, self._slot_jumps)

    @cached_property
    def _slot_jumps(self) -> "list[SlotJump]":
        from anyprobe.binary.objects.stubs import slot_jumps

        return [jump for area in self.code_ranges for jump in slot_jumps(self.elf, area)]

    @cached_property
    def stored_pointers(self) -> "NDArray[np.int64]":
        """What the data has addresses of, as far as relocations, or the words of a fixed-address object, say."""
        from anyprobe.binary.images.entries import stored_pointers

        return stored_pointers(self)

    @cached_property
    def _store(self) -> TableStore:
        return TableStore(self.elf, self.symbol_tables)

    def _find_bounds(self) -> "Bounds":
        """Return the bounds of the listed functions, and of those that only calls and addresses tell of."""
        from anyprobe.binary.images.entries import loader_entries

        listed = self._listed
        if self.is_go:
            return listed
        from anyprobe.binary.discovery.unlisted import unlisted_functions

        stubs = [(each.start, each.end) for each in self._stub_sections]
        stubs += [
            (start, end) for start, end, _ in self._named_stubs if not any(low <= start < high for low, high in stubs)
        ]
        around = listed.and_between(*np.array(sorted(stubs), np.int64).reshape(-1, 2).T)
        certain = np.array(loader_entries(self.elf), np.uint64).astype(np.int64)
        text = ModuleText(
            name=self.name,
            ranges=self.code_ranges,
            memory=self.elf,
            function_starts=around.starts,
            function_ends=around.ends,
            entries=unique(np.concatenate([around.starts, certain, self.stored_pointers])),
            forbidden=(),
            noreturn=self._noreturn,
            own_stubs={},
            is_go=False,
            is_pie=self.is_pie,
        )
        has_data = not self.elf.sections  # among the code, where nothing tells sections apart
        found = unlisted_functions(text, certain, self.stored_pointers, entry=self.elf.entry, has_data=has_data)
        bounds = listed.and_between(found.starts, found.ends)
        return replace(bounds, unlisted=found.starts, called=found.called)

    @cached_property
    def _listed(self) -> "Bounds":
        from anyprobe.binary.images.reconcile import reconcile

        return reconcile(self.symbol_tables, self.unwind, self.code_ranges, self._stub_sections)

    @property
    def _stub_sections(self) -> list[AddressRange]:
        sections = (each for each in self.elf.sections if each.name in _STUB_SECTIONS)
        return [AddressRange(each.address, each.address + each.size) for each in sections]

    @property
    def cold_parts(self) -> dict[int, int]:
        """Which functions are cold parts of which others, as their symbols say."""
        return self._facts.cold_parts

    @cached_property
    def unnamed_parts(self) -> frozenset[int]:
        """The starts of functions without a name that are entered with the frame of another: parts of it."""
        framed = self._facts.framed
        return frozenset(framed[~among(framed, self.functions.symbols.value)].tolist())

    def text(self) -> ModuleText:
        """Return everything that the code analysis needs to know."""
        return self._text

    @cached_property
    def moves_thread_pointer(self) -> bool:
        """Whether code here may run with a thread pointer that is not the C library's."""
        return moves_thread_pointer(self.elf, self.code_ranges)

    @cached_property
    def task_makers(self) -> "NDArray[np.int64]":
        """Where code makes tasks that share memory by the system call itself, not through the C library."""
        found = self._store.task_makers()
        if found is None:
            found = np.array(self._find_task_makers(), np.int64)
            self._store.keep_task_makers(found)
        return found

    @cached_property
    def open_calls(self) -> "NDArray[np.int64]":
        """Where code makes system calls that may make a task, and does not tell of what kind."""
        found = self._store.open_calls()
        if found is None:
            from anyprobe.binary.restrictions.open_calls import open_calls

            calls = [] if self.is_go else open_calls(self.elf, self.code_ranges, self.functions)
            found = np.array([*calls], np.int64)  # Go's threads are made by the C library where there is one
            self._store.keep_open_calls(found)
        return found

    @cached_property
    def own_calls(self) -> "list[tuple[int, int]]":
        """Where code makes a system call itself that executes a program or filters system calls, and its number."""
        found = self._store.own_calls()
        if found is None:
            made = sorted(set(self._find_own_calls()))
            found = np.array(made, np.int64).reshape(len(made), 2)
            self._store.keep_own_calls(found)
        return [(int(at), int(number)) for at, number in found]

    def _find_own_calls(self) -> "Iterator[tuple[int, int]]":
        from anyprobe.binary.restrictions.raw_calls import EXECUTING, FILTERING, OWN_CALLS, system_call_sites

        yield from system_call_sites(self.elf, self.code_ranges, OWN_CALLS)
        if self.is_go:
            from anyprobe.binary.restrictions.go_calls import go_call_sites

            yield from go_call_sites(self.elf, self.code_ranges, self.functions, EXECUTING, FILTERING)

    def _find_task_makers(self) -> list[int]:
        from anyprobe.binary.objects.stubs import imported_slots
        from anyprobe.binary.restrictions.raw_clones import shares_memory, task_makers

        callees: set[int] = set()
        if self.dynamic_table is None:
            callees.update(each.start for each in self.functions.lookup("syscall"))
        elif "syscall" in (slots := imported_slots(self.dynamic_table, self.relocations)).values():
            callees.update(slot for slot, name in slots.items() if name == "syscall")
            callees.update(start for start, _, name in self._named_stubs if name == "syscall")
        makers = task_makers(self.elf, self.code_ranges, callees)
        return [at for at in makers if shares_memory(self.elf, self.functions.containing(at - 1), at)]

    @cached_property
    def _text(self) -> ModuleText:
        functions, facts = self.functions, self._facts
        return ModuleText(
            name=self.name,
            ranges=self.code_ranges,
            memory=self.elf,
            function_starts=functions.starts,
            function_ends=functions.ends,
            entries=facts.entries.all,
            named=frozenset(facts.entries.named.tolist()),
            pointed=frozenset(facts.entries.pointed.tolist()),
            outer=frozenset(facts.entries.outer.tolist()),
            framed=frozenset(facts.framed.tolist()),
            undescribed=frozenset(facts.undescribed.tolist()),
            resumed=frozenset(facts.resumed.tolist()),
            forbidden=facts.forbidden,
            noreturn=facts.noreturn,
            own_stubs=facts.own_stubs,
            is_go=self.is_go,
            is_pie=self.is_pie,
            store=self._store,
            parking=parking_places(self.elf) if self.is_go else None,
            go_functions=self.go_functions,
            unlisted=frozenset(functions.bounds.unlisted.tolist()),
            called=frozenset(functions.bounds.called.tolist()),
            is_swift=any(section.name.startswith("swift5_") for section in self.elf.sections),
        )

    @cached_property
    def go_functions(self) -> "GoFunctions | None":
        """What Go's tables say of the functions; None for other objects, and versions that are not known."""
        found = go_functions(self.elf) if self.is_go else None
        if found is not None:
            found.by_debug_info = lambda: self._goroutine_number_at
        return found

    @cached_property
    def _goroutine_number_at(self) -> int | None:
        """Where the debug information says that ``runtime.g`` has the goroutine's number."""
        from anyprobe.binary.dwarf.go_runtime import goroutine_number_at

        with suppress(UnsupportedTarget):
            return goroutine_number_at(self.debug_info)
        return None

    @cached_property
    def _facts(self) -> CodeFacts:
        facts = self._store.facts()
        if facts is None:
            facts = self._checked(self._gather_facts, "code tables")
            self._store.keep_facts(facts)
        return facts

    def _gather_facts(self) -> CodeFacts:
        from anyprobe.binary.images.entries import code_entries
        from anyprobe.binary.objects.stubs import own_stubs
        from anyprobe.binary.restrictions.forbidden import forbidden_ranges
        from anyprobe.binary.unwind.split_stack import resumed_places

        functions = self.functions
        forbidden, sequences = forbidden_ranges(self.elf, self.code_ranges, self.unwind, self.relocations)
        resumed = resumed_places(self.elf, self.code_ranges)
        more = recovery_entries(self.elf) if self.is_go else ()
        entries = code_entries(self, [*sequences, *more, *resumed])
        framed = self.unwind.starts[self.unwind.framed]
        dynamic = self.dynamic_table
        exported = dynamic.symbols["value"].astype(np.int64) if dynamic is not None else np.empty(0, np.int64)
        framed = unique(framed[among(framed, functions.starts) & ~among(framed, exported)])
        stubs = own_stubs(dynamic, self.relocations, self._slot_jumps) if dynamic is not None else {}
        undescribed = functions.starts[~self.unwind.covers(functions.starts) & ~np.bool_(self.is_go)]
        parts = functions.cold_parts
        return CodeFacts(
            entries, forbidden, self._noreturn, stubs, parts, framed, undescribed, np.array(resumed, np.int64)
        )

    @cached_property
    def _noreturn(self) -> frozenset[int]:
        from anyprobe.binary.images.noreturn import noreturn_addresses

        functions = FunctionTable(self.name, self.symbol_tables, self._listed)
        return noreturn_addresses(functions, self.dynamic_table, self.relocations, self._slot_jumps)

    def _checked(self, read: "Callable[[], T]", what: str) -> T:
        """Read a part of the file; a table that leads out of it is a damaged file, not a crash."""
        try:
            return read()
        except (MemoryFault, ValueError, IndexError, OverflowError) as error:
            raise self.elf.damaged(f"{what}: {error}") from error
