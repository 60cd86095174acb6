"""Whether what a session knows still stands: modules come and go while no session is attached."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from enum import Enum
from operator import attrgetter

from anyprobe.core.memory import Memory, MemoryFault
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.journal.installed import Part
from anyprobe.journal.memfds import MEMFD_PATH, is_ours
from anyprobe.splice.edits import Edit, FunctionState, Module, hook_of, planned_of
from anyprobe.splice.emitted import EmittedSplice
from anyprobe.splice.regions.holdings import SpliceRecords
from anyprobe.target.system.procfs import Mapping

MODULE_GONE = "the module was unmapped, or another file is mapped there now"
_REPLACED = "the program has replaced this text by other memory"
_HELD_BY_NO_FILE = ("/memfd:", "/dev/zero", "/anon_hugepage", "[")
"""How the paths of mappings begin that a program fills itself, as far as they have any."""


_END = attrgetter("end")


class Found(Enum):
    """What is at the address of a splice in a module that does not stand any more."""

    JUMP = "the splice"
    """The program has moved its text, or replaced it by a copy, with anyprobe's jumps in it: they work on."""
    ORIGINAL = "the original bytes"
    NOTHING = "no memory, or another file's"
    OTHER = "other bytes"
    """What they were made from, and whether the jump comes back, is the program's secret."""


def stands(parts: Iterable[Part], mappings: Sequence[Mapping]) -> bool:
    """Return whether the very files still are mapped where they were: the same device, inode and offset.

    This is asked of all modules at each change, so only the mappings of each are looked at. They ascend.
    """
    for part in parts:
        at = part.start
        for number in range(bisect_right(mappings, at, key=_END), len(mappings)):
            m = mappings[number]
            if m.start >= part.end:
                break
            same = (m.device, m.inode) == (part.device, part.inode)
            if m.start > at or not same or m.offset - m.start != part.offset - part.start:
                return False
            at = m.end
        if at < part.end:
            return False
    return True


def modules_of(edits: Iterable[Edit]) -> list[Module]:
    """Return the modules that some edits are in."""
    return list(dict.fromkeys([edit.module for edit in edits]))


def gone_modules(modules: Iterable[Module], mappings: Sequence[Mapping]) -> list[Module]:
    """Return the modules that do not stand any more."""
    return [module for module in modules if not stands(module.parts, mappings)]


def additions(edits: Sequence[Edit], mappings: Sequence[Mapping]) -> list[Edit]:
    """Return the edits that add something to modules that do not stand: jumps are made for the text of the file."""
    return [edit for edit in in_modules(edits, gone_modules(modules_of(edits), mappings)) if edit.added or edit.anew]


def in_modules(edits: Sequence[Edit], modules: Sequence[Module]) -> list[Edit]:
    """Return the edits in some modules."""
    return [edit for edit in edits if edit.module in modules] if modules else []


def gone(edit: Edit) -> Refusal:
    """Return the refusal of an edit in a module that is gone."""
    return Refusal(Reason.GONE, edit.state.code.start + edit.module.bias, MODULE_GONE)


def found_at(splice: EmittedSplice, parts: Iterable[Part], memory: Memory, mappings: Sequence[Mapping]) -> Found:
    """Return what is at a splice's address. The bytes decide, unless the memory is certainly another file's."""
    files = {(part.device, part.inode) for part in parts}
    mapping = next((m for m in mappings if m.start <= splice.address < m.end), None)
    if mapping is None:
        return Found.NOTHING
    by_file = mapping.path and not mapping.path.startswith(_HELD_BY_NO_FILE)
    try:
        content = memory.read(splice.address, len(splice.new))
    except MemoryFault:
        return Found.NOTHING
    if content == splice.new:
        return Found.JUMP
    if by_file and (mapping.device, mapping.inode) not in files:
        return Found.NOTHING
    return Found.ORIGINAL if content == splice.old else Found.OTHER


def lose(module: Module, state: FunctionState, why: Refusal) -> None:
    """Forget the splices of a function, which are there no more."""
    module.claims = module.claims.replaced(planned_of(state.splices), ())
    for hook in filter(None, map(hook_of, state.wants)):
        hook.splice, hook.refusal = None, why
    module.losses += 1
    module.settle(state, [], [])


class Losses:
    """What a session had installed and has no more: in modules that were unmapped, or by another anyprobe's hand."""

    def __init__(self) -> None:
        """Start with everything in place."""
        self.evicted = False
        """Whether another anyprobe has removed the session."""
        self._replaced: dict[str, bool] = {}
        """Modules whose text was replaced by a copy in which the session's jumps work on, and whether that is told."""
        self._splices: list[EmittedSplice] = []
        """What the journal still lists, and need not."""
        self._lost = 0

    @staticmethod
    def misses(memfds: Iterable[int], mappings: Sequence[Mapping]) -> bool:
        """Return whether one of the session's memfds, given by inode, is not mapped any more."""
        own = {m.inode for m in mappings if m.path == MEMFD_PATH and is_ours(m)}
        return any(inode not in own for inode in memfds)

    def note(
        self, modules: Iterable[Module], memfds: Iterable[int], mappings: Sequence[Mapping], memory: Memory
    ) -> int:
        """Take note of what the memory map shows; return how many splices are lost. ``memfds``: by inode.

        A program may have replaced its own text by a copy with the jumps in it: these are not lost. The journal goes
        on listing what may lead to a patch, now or when the program writes back what it has saved.
        """
        before = self._lost
        self.evicted = self.evicted or self.misses(memfds, mappings)
        for module in modules:
            there = stands(module.parts, mappings)
            if there and not self.evicted:
                continue
            for state in module.functions.values():
                if state.splices and self.evicted:
                    what = "another anyprobe has removed it" if there else MODULE_GONE
                    self._lose(module, state, state.splices, what)
                elif state.splices:
                    self._look_at(module, state, mappings, memory)
        return self._lost - before

    def _look_at(self, module: Module, state: FunctionState, mappings: Sequence[Mapping], memory: Memory) -> None:
        """Take note of what has become of the splices of a function in a module that does not stand."""
        found = {splice: found_at(splice, module.parts, memory, mappings) for splice in state.splices}
        if all(each is Found.JUMP for each in found.values()):
            self._replaced.setdefault(module.name, False)
            return
        over = [splice for splice, each in found.items() if each in {Found.NOTHING, Found.ORIGINAL}]
        unmapped = all(each is Found.NOTHING for each in found.values())
        if unmapped:
            module.left |= {splice.address: splice.patch for splice in over if splice.patch is not None}
        self._lose(module, state, over, MODULE_GONE if unmapped else _REPLACED)

    def _lose(self, module: Module, state: FunctionState, over: Sequence[EmittedSplice], why: str) -> None:
        """Forget a function's splices; those that are ``over`` need not be listed any more."""
        self._splices += over
        self._lost += len(state.splices)
        lose(module, state, Refusal(Reason.GONE, state.code.start + module.bias, why))

    def tell_replaced(self) -> list[str]:
        """Return what is to be said, once, of modules whose text was replaced by a copy with the jumps in it."""
        fresh = sorted(name for name, told in self._replaced.items() if not told)
        self._replaced.update(dict.fromkeys(fresh, True))
        return [
            f"the program has replaced the text of {name} by a copy of it, in which the probes work on"
            for name in fresh
        ]

    def clear_records(self, records: SpliceRecords) -> None:
        """Take what is gone out of the journals, which are there and which no other session removes now."""
        records.clear(self._splices)
        self._splices = []
