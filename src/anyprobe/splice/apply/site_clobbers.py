"""What a patch may overwrite at a site (what is dead there, less what other code may read), and do there by itself."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.splice.edits import Edit, beside_handlers
from anyprobe.splice.plan.splices import Clobbers, Want, WantKind
from anyprobe.splice.regions.code_region import SlotBank

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from anyprobe.binary.liveness.certain_accesses import Access
    from anyprobe.binary.liveness.skipped_kills import SkippedKills
    from anyprobe.splice.codegen.patch import InPlace
    from anyprobe.splice.regions.banks import Hook
    from anyprobe.splice.regions.code_region import CodeRegion

_ENDS = frozenset({WantKind.ENTRY, WantKind.EXIT})
ClobberSource = Callable[[CodeMap, FunctionCode, Want], Clobbers]
"""Tells what is dead before a wanted instruction."""


class SiteClobbers:
    """Finds what may be overwritten at the sites of one target."""

    def __init__(
        self,
        faults_handled: Callable[[], bool],
        dead: ClobberSource,
        faults_shown: Callable[[], bool] = lambda: True,
        for_once: Callable[[], bool] = lambda: False,
    ) -> None:
        """Ask ``dead`` what is dead, the others whether the program handles faults, is shown where, and only once."""
        self._for_once = for_once
        self._faults_handled, self._dead, self._faults_shown = faults_handled, dead, faults_shown
        self._skipped_kills: dict[tuple[int, int], SkippedKills] = {}
        """By module and function."""

    def of_edit(self, edit: Edit) -> Callable[[Want], Clobbers]:
        """Return what tells it of each want of an edit."""
        module, code = edit.module, edit.state.code
        if self._skips_faults(edit) or (module.plans is not None and len(edit.wants) == 1):
            return partial(self.of, edit)
        dead, whole, shown = self._dead, module.code, module.shown

        def found(want: Want) -> Clobbers:
            own = code.start <= want.address < code.end and want.address not in shown
            return dead(whole, code, want) if own else self.of(edit, want)

        return found

    def of(self, edit: Edit, want: Want) -> Clobbers:
        """Return what code at a wanted instruction may overwrite."""
        plans = edit.module.plans
        # what is kept was found where no handler sees registers: one that does may see those that its callers leave
        if plans is None or edit.module.shown or want.kind not in _ENDS:
            return self._worked_out(edit, want)
        skipping = self._skips_faults(edit)
        found = plans.clobbers(want, skipping=skipping)
        if found is None:
            found = self._worked_out(edit, want)
            plans.note_clobbers(want, found, skipping=skipping)
        return found

    def accesses(self, edit: Edit, want: Want) -> "AbstractSet[Access]":
        """Return what the program accesses from a wanted instruction on in any case, so that a patch may read there.

        Not where a fault would come to a handler that is shown the pc of the patch, as Go's are, or that is there for
        one fault alone (``SA_RESETHAND``).
        """
        if want.after or want.conditional or want.block or edit.module.code.text.is_go:
            return frozenset()
        if self._for_once() or (self._faults_handled() and not self._faults_shown()):
            return frozenset()
        from anyprobe.binary.liveness.certain_accesses import certain_accesses

        return certain_accesses(function_of(edit, want), want.address)

    def _worked_out(self, edit: Edit, want: Want) -> Clobbers:
        found = self._planned(edit, want)
        if not (found.registers or found.flags) or not self._skips_faults(edit):
            return found
        from anyprobe.binary.decoding.instruction_masks import FLAGS
        from anyprobe.binary.liveness.skipped_kills import SkippedKills
        from anyprobe.isa.registers import NUMBERS, mask_of

        function = function_of(edit, want)
        key = id(edit.module), function.start
        kills = self._skipped_kills.get(key) or self._skipped_kills.setdefault(key, SkippedKills(function))
        doubtful = kills.doubtful(want.address, mask_of(found.registers) | (FLAGS if found.flags else 0))
        kept = tuple(name for name in found.registers if not doubtful >> NUMBERS[name] & 1)
        return Clobbers(kept, found.flags and not doubtful & FLAGS)

    def _skips_faults(self, edit: Edit) -> bool:
        """Return whether the program may go on after an instruction that faulted: then it overwrote nothing."""
        return self._faults_handled() and not edit.module.code.text.is_go

    def _planned(self, edit: Edit, want: Want) -> Clobbers:
        """Return the same if no fault is skipped."""
        module = edit.module
        found = self._dead(module.code, function_of(edit, want), want)
        return beside_handlers(edit, found) if want.address in module.shown else found


def function_of(edit: Edit, want: Want) -> FunctionCode:
    """Return the function that a want of an edit lies in."""
    code = edit.state.code
    # where a function ends is known once it is decoded, which entries do not need
    own = want.address == code.start or code.start <= want.address < code.end
    return code if own else edit.module.code.containing(want.address) or code


def in_place(home: "CodeRegion", hook: "Hook", edit: "Edit", want: "Want", sites: SiteClobbers) -> "InPlace | None":
    """Return what a patch does by itself for the handler of a hook; ``None``: the handler is called at each hit."""
    bank, handler = hook.bank, hook.handler
    if handler is None or handler.ends is not None or not isinstance(bank, SlotBank):
        return None
    if not handler.watches:
        return home.inline(bank, handler, partial(sites.accesses, edit, want), hook.function)
    from anyprobe.splice.codegen.handlers.store_test import StoreTest, range_words

    insn = function_of(edit, want).insn_at(want.address)
    assert insn is not None
    words = home.shared_words(range_words(handler.watches))
    return StoreTest(insn.iced, len(handler.watches), words, edit.module.bias)
