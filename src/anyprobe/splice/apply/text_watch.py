"""Whether the bytes of armed splices are still there: programs and other tools write over them, and take that back."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from anyprobe.core.address import PAGE
from anyprobe.core.memory import Memory, MemoryFault
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.splice.apply.uprobes import without_splice
from anyprobe.splice.edits import Module, hook_of
from anyprobe.splice.emitted import EmittedSplice, FunctionChange
from anyprobe.splice.plan.splices import Strategy
from anyprobe.splice.regions.banks import Hook
from anyprobe.target.system.procfs import Mapping

if TYPE_CHECKING:
    from anyprobe.splice.apply.recovery.saved_copies import Saved

RESTORED = "the program has written the original bytes over the probe: it has not counted since"
OVERWRITTEN = "other bytes have been written over the probe: it has not counted since"
TRAPPED = (
    "a breakpoint has been set on the probe, by a debugger or by the kernel for a uprobe: it has not counted since"
)
STALE = "the program has changed instructions that run as copies, or bytes that the probe's jump depends on"
WRITABLE = "the program has made its text writable"

Pages = dict[int, list[EmittedSplice]]
"""Splices by the addresses of their pages."""


class TextWatch:
    """The splices of a session, compared with memory at each look; pages that have not changed cost one read."""

    def __init__(self) -> None:
        """Nothing has been seen yet."""
        self._before: dict[int, bytes] = {}
        """The pages as they were at the last look, or right after a change of anyprobe's in them."""
        self._compared: dict[int, bytes] = {}
        """The pages as they were when their splices were compared."""
        self.saved: dict[int, Saved] = {}
        """Where the program may have saved a splice's bytes as the original ones: it has written others over them."""
        self._disarmed: dict[EmittedSplice, list[Hook]] = {}
        self._stale: set[EmittedSplice] = set()
        self._pages: WeakKeyDictionary[Module, tuple[int, Pages]] = WeakKeyDictionary()
        """The splices of each module by page, and after how many changes of the module they were grouped so."""

    def look(self, modules: Iterable[Module], memory: Memory) -> list[tuple[EmittedSplice, str]]:
        """Return the splices that were overwritten since the last look, and by what.

        Their hooks are armed no more until the splice's bytes are there again. Those that are ``STALE`` are there, and
        have to be taken out.
        """
        pages = (page for module in modules for page in self._by_page(module).items())
        return [found for address, splices in pages for found in self._changed(address, splices, memory)]

    def in_writable(self, modules: Iterable[Module], mappings: Sequence[Mapping]) -> list[tuple[EmittedSplice, str]]:
        """Return the splices that lie in text which the program can write to, as the memory map has it since now."""
        found = [splice for module in modules if module.note_writable(mappings) for splice in module.in_writable_text()]
        self._stale.update(found)
        return [(splice, WRITABLE) for splice in found]

    def leaving(self, modules: Iterable[Module]) -> list[EmittedSplice]:
        """Return the splices that are there and have to be taken out; what fails is tried again at the next look."""
        if self._stale:
            self._stale.intersection_update(splice for module in modules for splice in module.splices())
        return list(self._stale)

    def begin(self, changes: Iterable[FunctionChange], memory: Memory) -> None:
        """Take note of the pages of what has just been changed: what changes there from now on is not anyprobe's."""
        pages = set[int]()
        for change in changes:
            for splice in change.added:
                pages.update(_pages(splice))
            for splice in change.removed:  # what it only depended on has not changed
                pages.add(splice.address & -PAGE)
                pages.add(splice.address + len(splice.new) - 1 & -PAGE)
        for page in pages:
            self._compared.pop(page, None)
            self._before.pop(page, None)
            with suppress(MemoryFault):
                self._before[page] = memory.read(page, PAGE)

    def look_for_returned(self, memory: Memory) -> None:
        """See which overwritten splices are there again: they can be taken out like any other."""
        for splice in list(self._disarmed):
            with suppress(MemoryFault):
                if memory.read(splice.address, len(splice.new)) == splice.new:
                    self._rearm(splice)

    def _by_page(self, module: Module) -> Pages:
        """Return the splices that are compared, by page, grouped anew only after the module's splices have changed."""
        changes, pages = self._pages.get(module, (-1, {}))
        if changes != module.changes:
            pages = {}
            for splice in module.splices():
                if splice.planned.strategy is not Strategy.TRAP and not splice.is_springboard:
                    for page in _pages(splice):
                        pages.setdefault(page, []).append(splice)
            self._pages[module] = module.changes, pages
        return pages

    def _changed(
        self, address: int, splices: list[EmittedSplice], memory: Memory
    ) -> Iterator[tuple[EmittedSplice, str]]:
        try:
            content = memory.read(address, PAGE)
        except MemoryFault:  # the module was unmapped: that is found by the memory map
            return
        if self._compared.get(address) == content:
            return
        before = self._before.get(address, content)
        self._before[address] = self._compared[address] = content
        for splice in splices:
            if splice not in self._stale and _differ(splice, address, before, content):
                self._stale.add(splice)
                yield splice, STALE
            offset = splice.address - address
            now = content[offset : offset + len(splice.new)] if offset >= 0 else b""
            if len(now) < len(splice.new):
                continue
            if now == splice.new:
                self._rearm(splice)
            elif splice not in self._disarmed:
                yield splice, self._disarm(splice, now)

    def _disarm(self, splice: EmittedSplice, now: bytes) -> str:
        """Take note that a splice was overwritten; return by what."""
        trapped = without_splice(now, splice.old, splice.new) is not None
        why = RESTORED if now == splice.old else TRAPPED if trapped else OVERWRITTEN
        if why is OVERWRITTEN:
            from anyprobe.splice.apply.recovery.saved_copies import Saved

            patch = splice.patch.address if splice.patch is not None else 0
            targets = tuple(each for each in (patch, splice.springboard) if each)
            self.saved[splice.address] = Saved(splice.address, splice.new, targets)
        hooks = [hook for want in splice.planned.wants if (hook := hook_of(want)) is not None and hook.splice is splice]
        for hook in hooks:
            hook.splice, hook.refusal = None, Refusal(Reason.FOREIGN_BYTES, splice.address, why)
        self._disarmed[splice] = hooks
        return why

    def _rearm(self, splice: EmittedSplice) -> None:
        """Take note that a splice's bytes are back."""
        for hook in self._disarmed.pop(splice, ()):
            if hook.splice is None:
                hook.splice, hook.refusal = splice, None


def _pages(splice: EmittedSplice) -> tuple[int, ...]:
    """Return the addresses of the pages that a splice has to do with."""
    _, end = _needed(splice)
    first, last = splice.address & -PAGE, (end - 1) & -PAGE
    return (first,) if first == last else (first, last)


def _needed(splice: EmittedSplice) -> tuple[int, int]:
    """Return the range of the bytes that are displaced, or that a splice depends on."""
    low, high = splice.displaced
    depended = splice.address + len(splice.new) + len(splice.borrowed)
    return low, max(high, depended)


def _differ(splice: EmittedSplice, page: int, before: bytes, now: bytes) -> bool:
    """Return whether other bytes than the written ones have changed that a splice needs, as far as a page has them."""
    low, high = (min(max(each - page, 0), PAGE) for each in _needed(splice))
    start, end = (min(max(each - page, 0), PAGE) for each in (splice.address, splice.address + len(splice.new)))
    return before[low:start] != now[low:start] or before[end:high] != now[end:high]
