"""The tables of an object that an earlier session computed, taken from the cache instead of computed again.

What is kept holds for one file with one content, read together with certain symbol tables (a debug file may have been
installed since), by this very version of the code that reads it. All of that stands beside the tables.
"""

import os
import threading
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache as once
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from anyprobe import binary, core, isa
from anyprobe.binary.objects import cache
from anyprobe.binary.objects.elf import ElfFile
from anyprobe.binary.objects.symbols import SymbolTable
from anyprobe.core.address import AddressRange
from anyprobe.core.refusal import Reason

if TYPE_CHECKING:
    from anyprobe.binary.objects.bounds import Bounds

_BOUNDS, _FACTS, _RULES = "functions", "codefacts", "unwindrules"
_REFERENCES, _LIVENESS = "references", "liveness"
_TASK_MAKERS, _OPEN_CALLS, _OWN_CALLS = "taskmakers", "opencalls", "owncalls"
_REASONS = frozenset(reason.value for reason in Reason)


class Entries(NamedTuple):
    """The entries of an object, ascending and unique, and which of them may as well be the addresses of data."""

    all: NDArray[np.int64]
    named: NDArray[np.int64]
    """What nothing but a symbol without a type tells of, which no other object can see."""
    pointed: NDArray[np.int64]
    """What nothing but data that points there tells of, or such a symbol."""
    outer: NDArray[np.int64]
    """What data points to, and what other objects can see."""


@dataclass(frozen=True, eq=False)
class CodeFacts:
    """What takes long to find out about an object's code; ``ModuleText`` says what it means."""

    entries: Entries
    forbidden: tuple[tuple[AddressRange, str], ...]
    noreturn: frozenset[int]
    own_stubs: dict[int, int]
    cold_parts: dict[int, int]
    framed: NDArray[np.int64]
    undescribed: NDArray[np.int64]
    resumed: NDArray[np.int64]


class TableStore:
    """The kept tables of one object; nothing is kept of objects without a file or without a build-id."""

    def __init__(self, elf: ElfFile, tables: Sequence[SymbolTable]) -> None:
        """Serve ``elf`` as it is named by ``tables``."""
        self._build_id = elf.build_id if elf.identity is not None and reader() else None
        self.source: dict[str, object] = {
            "reader": reader(),
            "file": list(elf.identity or ()),
            "tables": [[len(each.symbols), len(each.strings), *each.identity] for each in tables],
        }
        """What the tables are made of: which file with which content, named by what, read by which code."""

    def bounds(self) -> "Bounds | None":
        """Return the bounds of all functions, if they are kept."""
        from anyprobe.binary.objects.bounds import Bounds, SymbolColumns

        arrays = self._load(_BOUNDS, ("starts", "ends", "labels", "symbols", "unlisted", "called"))
        if arrays is None:
            return None
        starts, ends, labels, symbols, unlisted, called = arrays
        if symbols.shape[:1] != (6,) or starts.shape != ends.shape:
            return None
        return Bounds(starts, ends, labels, SymbolColumns(*symbols), unlisted, called)

    def keep_bounds(self, bounds: "Bounds") -> None:
        """Keep the bounds of all functions."""
        symbols = bounds.symbols
        columns = (symbols.value, symbols.size, symbols.table, symbols.index, symbols.kind, symbols.bind)
        arrays: cache.Arrays = {
            "starts": bounds.starts,
            "ends": bounds.ends,
            "labels": bounds.labels,
            "symbols": np.stack(columns),
            "unlisted": bounds.unlisted,
            "called": bounds.called,
        }
        self._store(_BOUNDS, arrays)

    def facts(self) -> CodeFacts | None:
        """Return the facts about the code, if they are kept."""
        kept = (
            "entries",
            "named",
            "pointed",
            "outer",
            "noreturn",
            "stubs",
            "parts",
            "forbidden",
            "reasons",
            "framed",
            "undescribed",
            "resumed",
        )
        found = self._load(_FACTS, kept)
        if found is None:
            return None
        *entries, noreturn, stubs, parts, areas, reasons, framed, undescribed, resumed = found
        texts = [text for text in reasons.tobytes().decode("ascii", "replace").split("\n") if text]
        shapes = parts.shape[:1], stubs.shape[:1], areas.shape
        if shapes != ((2,), (2,), (len(texts), 2)) or not _REASONS.issuperset(texts):
            return None
        forbidden = [(AddressRange(*area), text) for area, text in zip(areas.tolist(), texts, strict=True)]
        own_stubs, cold_parts = (dict(zip(*each.tolist(), strict=True)) for each in (stubs, parts))
        never_back = frozenset(noreturn.tolist())
        known = Entries(*entries)
        return CodeFacts(known, tuple(forbidden), never_back, own_stubs, cold_parts, framed, undescribed, resumed)

    def keep_facts(self, facts: CodeFacts) -> None:
        """Keep the facts about the code."""
        arrays: cache.Arrays = {
            "entries": facts.entries.all,
            "named": facts.entries.named,
            "pointed": facts.entries.pointed,
            "outer": facts.entries.outer,
            "noreturn": np.array(sorted(facts.noreturn), np.int64),
            "stubs": np.array([[*facts.own_stubs], [*facts.own_stubs.values()]], np.int64),
            "parts": np.array([[*facts.cold_parts], [*facts.cold_parts.values()]], np.int64),
            "forbidden": np.array([(area.start, area.end) for area, _ in facts.forbidden], np.int64).reshape(-1, 2),
            "framed": facts.framed,
            "undescribed": facts.undescribed,
            "resumed": facts.resumed,
            "reasons": np.frombuffer("\n".join(text for _, text in facts.forbidden).encode(), np.uint8),
        }
        self._store(_FACTS, arrays)

    def rules(self) -> "tuple[NDArray[np.uint32], NDArray[np.uint32]] | None":
        """Return where unwinding rules begin, and these, if they are kept."""
        found = self._load(_RULES, ("starts", "rules"))
        if found is None or found[0].shape != found[1].shape:
            return None
        return found[0].astype(np.uint32), found[1].astype(np.uint32)

    def keep_rules(self, starts: "NDArray[np.uint32]", rules: "NDArray[np.uint32]") -> None:
        """Keep the unwinding rules, by where they begin."""
        self._store(_RULES, {"starts": starts, "rules": rules})

    def references(self) -> "Sequence[NDArray[np.int64]] | None":
        """Return targets, sources and kinds of the references that are what they look like, if they are kept."""
        return self._columns(_REFERENCES, ("targets", "sources", "kinds"))

    def keep_references(
        self, targets: "NDArray[np.int64]", sources: "NDArray[np.int64]", kinds: "NDArray[Any]"
    ) -> None:
        """Keep the references that are what they look like."""
        self._store(_REFERENCES, {"targets": targets, "sources": sources, "kinds": kinds})

    def liveness(self) -> "tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.uint32], NDArray[np.uint32]] | None":
        """Return the starts of functions, the numbers of their first instructions, and what is live at all, if kept.

        The numbers are one more than the functions. By them: how far instructions are after the starts of their
        functions, and what is live before them, as ``instruction_masks`` has it.
        """
        found = self._load(_LIVENESS, ("starts", "firsts", "offsets", "live"))
        if found is None:
            return None
        starts, firsts, offsets, live = found
        if starts.ndim != 1 or firsts.shape != (len(starts) + 1,) or live.shape != offsets.shape:
            return None
        if offsets.shape != (firsts[-1],) or firsts[0] != 0 or np.any(np.diff(firsts) < 0):
            return None
        return starts, firsts, offsets.astype(np.uint32), live.astype(np.uint32)

    def keep_liveness(
        self,
        starts: NDArray[np.int64],
        firsts: NDArray[np.int64],
        offsets: NDArray[np.uint32],
        live: NDArray[np.uint32],
    ) -> None:
        """Keep what is live where."""
        self._store(_LIVENESS, {"starts": starts, "firsts": firsts, "offsets": offsets, "live": live})

    def task_makers(self) -> "NDArray[np.int64] | None":
        """Return where code makes tasks that share memory by the system call itself, if that is kept."""
        found = self._columns(_TASK_MAKERS, ("addresses",))
        return None if found is None else found[0]

    def keep_task_makers(self, addresses: "NDArray[np.int64]") -> None:
        """Keep where code makes tasks that share memory."""
        self._store(_TASK_MAKERS, {"addresses": addresses})

    def open_calls(self) -> "NDArray[np.int64] | None":
        """Return the system calls that may make a task whose flags the code does not tell, if they are kept."""
        found = self._columns(_OPEN_CALLS, ("addresses",))
        return None if found is None else found[0]

    def keep_open_calls(self, addresses: "NDArray[np.int64]") -> None:
        """Keep the system calls that may make a task whose flags the code does not tell."""
        self._store(_OPEN_CALLS, {"addresses": addresses})

    def own_calls(self) -> "NDArray[np.int64] | None":
        """Return where code makes chosen system calls itself, and their numbers, if that is kept."""
        found = self._columns(_OWN_CALLS, ("addresses", "numbers"))
        return None if found is None else np.stack(found, axis=1)

    def keep_own_calls(self, found: "NDArray[np.int64]") -> None:
        """Keep where code makes chosen system calls itself, and their numbers."""
        self._store(_OWN_CALLS, {"addresses": found[:, 0], "numbers": found[:, 1]})

    def _columns(self, kind: str, names: Sequence[str]) -> "Sequence[NDArray[np.int64]] | None":
        """Return arrays that are of one length."""
        found = self._load(kind, names)
        if found is None or len({each.shape for each in found}) != 1 or found[0].ndim != 1:
            return None
        return [each.astype(np.int64) for each in found]

    def _load(self, kind: str, names: Sequence[str]) -> list[NDArray[Any]] | None:
        """Return the arrays of an entry if it was made from the same sources."""
        found = cache.load(self._build_id, kind)
        if found is None or found[0].get("source") != self.source or not found[1].keys() >= set(names):
            return None
        return [found[1][name] for name in names]

    def _store(self, kind: str, arrays: cache.Arrays) -> None:
        store = partial(cache.store, self._build_id, kind, {"source": self.source}, arrays)
        waiting: list[Callable[[], None]] | None = getattr(_put_off, "stores", None)
        if waiting is None:
            store()
        else:
            waiting.append(store)


_put_off = threading.local()
"""What the present thread is to keep later."""


@contextmanager
def keeping_later() -> Iterator[None]:
    """Have the present thread keep tables at the end of a ``with`` block, within which a program may wait for it."""
    if hasattr(_put_off, "stores"):
        yield
        return
    _put_off.stores = waiting = list[Callable[[], None]]()
    try:
        yield
    finally:
        del _put_off.stores
        for store in waiting:
            store()


def reader() -> int:
    """Return a number that changes with the code that finds out what is kept, 0 where its files cannot be looked at."""
    return state_of_code(binary, core, isa)


@once
def state_of_code(*packages: ModuleType) -> int:
    """Return a number that changes with the code of some packages, 0 where its files cannot be looked at."""
    folders = [folder for package in packages for folder in package.__path__]
    states = []
    try:
        while folders:
            with os.scandir(folders.pop()) as listing:
                for each in listing:
                    if each.name.endswith(".py"):
                        status = each.stat()
                        states.append((each.path, status.st_size, status.st_mtime_ns))
                    elif each.is_dir(follow_symlinks=False) and each.name != "__pycache__":
                        folders.append(each.path)
    except OSError:
        return 0
    return zlib.crc32(repr(sorted(states)).encode())
