"""Seeing when exceptions and ``longjmp`` leave calls behind: the functions that do it count their calls by thread.

Nothing else is done there. A call that left its function by a jump, and by the time its return point is reached an
exception or ``longjmp`` has gone by, may be one that was left behind. Where it is known which calls make which, it is
also seen when a thread changes to another stack: ``splice.codegen.timing.switches`` has what is done then.
"""

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from anyprobe.binary.flow.exits import ExitKind
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.images.stack_switches import End
from anyprobe.data.layouts.layout import (
    BLOCK_UNWOUND,
    BY_JUMP,
    MAY_STAY,
    SWITCHES,
    UNWIND_CAUGHT,
    UNWIND_CONTEXT,
    UNWIND_GONE,
    UNWIND_LEAVES,
)
from anyprobe.probes.target_errors import typed
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.edits import Edit, FunctionState, Module, made
from anyprobe.splice.plan.splices import Want, WantKind
from anyprobe.splice.regions.banks import Hook

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.splice.emitted import FunctionChange
    from anyprobe.splice.regions.code_region import SlotBank

UNWINDING = (
    "_Unwind_RaiseException", "_Unwind_Resume", "_Unwind_Resume_or_Rethrow", "_Unwind_ForcedUnwind", "longjmp",
    "_longjmp", "siglongjmp", "__libc_longjmp", "__libc_siglongjmp", "__longjmp_chk", "____longjmp_chk", "setcontext",
    "_dl_signal_exception", "_dl_signal_error",
)  # fmt: skip
"""Functions that leave others behind, by the names that C, C++, Rust and their unwinders have for them."""
CATCHING = ("__cxa_begin_catch",)
"""Functions that are called where the program goes on."""
GOING = ("execve", "execveat", "_exit", "_Exit")
"""Functions that a child calls last which shares its parent's memory (``vfork``, ``posix_spawn``): its calls are among
those of the thread that has made it."""
SWITCHING = {"swapcontext": 0, "setcontext": MAY_STAY}
"""Functions that change to another stack; and whether, where none waits there, it may be the same one. Others are known
by what they do: see ``binary.images.stack_switches``."""
_OTHER_KINDS = (
    dict.fromkeys(CATCHING, UNWIND_CAUGHT) | dict.fromkeys(GOING, UNWIND_GONE) | {"setcontext": UNWIND_CONTEXT}
)
"""What they tell the routine of nested calls that is not ``UNWIND_LEAVES``."""


_Wanted = tuple[Module, FunctionState, Want, Hook]


class Unwinding:
    """Hooks of one session, in all objects and for each bank of timed functions."""

    def __init__(self, session: "ProbeHost") -> None:
        """Place nothing yet."""
        self._session = session
        self._wants: dict[tuple[int, int], _Wanted | None] = {}
        """By bank and address; None for what cannot be spliced."""
        self._switches: dict[tuple[int, int], list[_Wanted]] = {}
        """The entries and exits of functions that change stacks, by bank and address."""
        self._looked: dict[int, frozenset[LoadedObject]] = {}
        """By bank: the objects that were looked at."""

    def watch(self, banks: "Collection[SlotBank]") -> "list[FunctionChange]":
        """Have what leaves calls behind seen by some banks, and by no others; return what was changed.

        Other banks' hooks would have to be in the same patches, which all take memory that is not used again.
        """
        objects = frozenset(self._session.objects.objects)
        edits: dict[int, Edit] = {}
        watching = {bank.index for bank in banks}
        left = [key for key in {**self._wants, **self._switches} if key[0] not in watching]
        gone = [*map(self._wants.get, left), *(each for key in left for each in self._switches.get(key, ()))]
        for module, state, want, hook in filter(None, gone):
            if hook.armed:
                edits.setdefault(id(state.root), Edit(module, state.root)).removed.append(want)
        for bank in banks:
            for loaded in objects - self._looked.get(bank.index, frozenset()):
                names = UNWINDING + CATCHING + GOING if bank.layout.nested else UNWINDING
                found = {
                    each.start: _OTHER_KINDS.get(name, UNWIND_LEAVES)
                    for name in names
                    for each in loaded.image.functions.lookup(name)
                }
                for function, kind in found.items():
                    self._want(bank, loaded, function, edits, kind)
                if bank.layout.nested and not loaded.image.is_go:
                    self._want_switches(bank, loaded, edits)
        with typed(self._session.process, "disarming probes in" if not banks else "arming probes in"):
            self._session.engine.change(list(edits.values()))
        for key in left:
            self._wants.pop(key, None)
            self._switches.pop(key, None)
        self._looked = {bank.index: objects for bank in banks}
        return [change for change in made(edits.values()) if change.added]

    def is_seen(self, bank: "SlotBank") -> bool:
        """Return whether everything is seen: in a static program without names nothing would be."""
        own = [found for (number, _), found in self._wants.items() if number == bank.index]
        complete = all(found is not None and (found[3].armed or found[3].offset == UNWIND_GONE) for found in own)
        return self._session.objects.libc() is not None and bool(own) and complete

    def _want(self, bank: "SlotBank", loaded: "LoadedObject", start: int, edits: dict[int, Edit], kind: int) -> None:
        key = bank.index, loaded.runtime(start)
        self._wants[key] = None
        module, code = self._code_at(loaded, start)
        if code is None:
            return
        hook = Hook(ActionKind.COUNT, None, bank, BLOCK_UNWOUND)
        if bank.layout.nested:
            hook = Hook(ActionKind.UNWIND, None, bank, kind)
        state, want = module.state_of(code), Want(code.entry, WantKind.ENTRY, tag=hook, internal=True)
        self._wants[key] = module, state, want, hook
        edits.setdefault(id(state), Edit(module, state)).added.append(want)

    def _want_switches(self, bank: "SlotBank", loaded: "LoadedObject", edits: dict[int, Edit]) -> None:
        from anyprobe.binary.flow.called_pieces import CalledPieces
        from anyprobe.binary.images.stack_switches import stack_switches, switch_at, switches_stacks

        for name, may_stay in SWITCHING.items():
            for each in loaded.image.functions.lookup(name):
                _, code = self._code_at(loaded, each.start)
                self._want_switch(bank, loaded, code, edits, may_stay)
        for start, is_sized in stack_switches(loaded.image):
            module, code = self._code_at(loaded, start)
            if code is None:
                continue
            pieces = set[int]() if is_sized else CalledPieces(module.code, [code]).by_others
            if not pieces and code.exits.complete is None and switches_stacks(code):
                self._want_switch(bank, loaded, code, edits, 0)
                continue
            for piece in (code.entry, *sorted(pieces)):
                self._place_switch(bank, loaded, code, piece, switch_at(code, piece), edits)

    def _want_switch(
        self, bank: "SlotBank", loaded: "LoadedObject", code: FunctionCode | None, edits: dict[int, Edit], may_stay: int
    ) -> None:
        """Have a switch begin where the function is called, and end at its returns, whatever stack these are on."""
        if code is None or code.exits.complete is not None:
            return
        # where a pointer that was kept leads back into the function, all have come by its jump already
        ends = [
            End(leaving.address, leaving.kind is ExitKind.TAIL, leaving.conditional and not leaving.indirect)
            for leaving in code.exits.found
            if code.is_site(leaving.address)
        ]
        self._place_switch(bank, loaded, code, code.entry, ends, edits, may_stay)

    def _place_switch(
        self,
        bank: "SlotBank",
        loaded: "LoadedObject",
        code: FunctionCode,
        start: int,
        ends: Sequence[End],
        edits: dict[int, Edit],
        may_stay: int = 0,
    ) -> None:
        key = bank.index, loaded.runtime(start)
        if not ends or key in self._switches:
            return
        group, record, module = object(), bank.layout.offset_of(SWITCHES), self._session.module(loaded)
        state = module.state_of(code, [end.address for end in ends])
        hooks = [Hook(ActionKind.ENTER, group, bank, record)]
        kind = WantKind.ENTRY if start == code.entry else WantKind.OFFSET
        wants = [Want(start, kind, tag=hooks[0], internal=True)]
        for end in ends:
            hooks.append(Hook(ActionKind.LEAVE_SWITCH, group, bank, record | may_stay | BY_JUMP * end.by_jump))
            wants.append(Want(end.address, WantKind.EXIT, end.conditional, tag=hooks[-1], internal=True))
        self._switches[key] = [(module, state, want, hook) for want, hook in zip(wants, hooks, strict=True)]
        edits.setdefault(id(state), Edit(module, state)).added.extend(wants)

    def _code_at(self, loaded: "LoadedObject", start: int) -> "tuple[Module, FunctionCode | None]":
        module = self._session.module(loaded)
        code = module.code.function_at(start)
        refused = self._session.objects.refusal(loaded) is not None
        return module, code if isinstance(code, FunctionCode) and not refused else None
