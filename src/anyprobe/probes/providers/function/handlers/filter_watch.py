"""Whether handlers may make system calls: not in a process that filters its own, or is about to."""

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from anyprobe.core.memory import MemoryFault
from anyprobe.core.refusal import Refusal
from anyprobe.splice.codegen.handlers.facts import HandlerFacts
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.edits import Edit, FunctionState, Module, hook_of
from anyprobe.splice.plan.splices import Want, WantKind
from anyprobe.splice.regions.banks import Hook
from anyprobe.splice.userspace.seccomp_hook import FilterChecks

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.core.code import NativeCode
    from anyprobe.probes.providers.function.objects import ObjectTable
    from anyprobe.splice.processes import ProcessSplicing
    from anyprobe.splice.userspace.tsc_hook import ClockChecks
    from anyprobe.splice.userspace.userfault_hook import MountChecks, UserfaultChecks

    Checks = FilterChecks | ClockChecks | MountChecks | UserfaultChecks
    """What is called where a program comes to certain system calls: it sets a word."""

_NEAR = 64


class FilterWatch:
    """Sees that a program is about to filter its system calls; from then on handlers make none.

    Other things that it may do by the same functions are seen by other checks.
    """

    def __init__(
        self,
        splicing: "ProcessSplicing",
        objects: "ObjectTable",
        word: "int | Sequence[int]",
        *,
        everywhere: bool = False,
        checks: "Checks | None" = None,
    ) -> None:
        """Watch a program; ``word`` is where in it this is said, or says so once memory is mapped.

        ``everywhere``: also where code makes the system calls itself, and in programs without thread slots.
        """
        self._splicing, self._objects, self._everywhere = splicing, objects, everywhere
        self._codes: Checks = checks or FilterChecks()
        self.word = word if isinstance(word, int) else 0
        self._words = (word,) if isinstance(word, int) else word
        self._checks: dict[NativeCode, HandlerFacts] = {}
        self._hooks: dict[int, Hook] = {}
        self._has_none = False
        """Whether a static program has no place that could be watched."""
        self._wants: list[tuple[Module, FunctionState, Want]] = []

    @property
    def permits(self) -> bool:
        """Whether system calls may be made as far as is known: nothing is filtered, and what would be is seen."""
        if self._splicing.process.is_filtered() or self._objects.has_no_names():
            return False
        return all(hook.armed for hook in self._hooks.values())

    @property
    def is_placed(self) -> bool:
        """Whether all is watched that could filter: in a static program that may be nothing."""
        return (bool(self._hooks) or self._has_none) and self.permits

    def place(self) -> None:
        """Place the checks where the C library sets filters; in a program that has not loaded it yet there is none."""
        self._splicing.engine.change(self.edits())

    def end(self) -> None:
        """Take the checks out."""
        edits: dict[int, Edit] = {}
        for module, state, want in self._wants:
            hook = hook_of(want)
            if hook is not None and hook.armed:
                edits.setdefault(id(state.root), Edit(module, state.root)).removed.append(want)
        self._splicing.engine.change(list(edits.values()))
        self._hooks, self._wants = {}, []

    def edits(self) -> list[Edit]:
        """Return the edits that place what checks are not placed yet, to be applied with others."""
        library = self._objects.c_library()
        if library is None or (self._objects.libc() is None and not self._everywhere):
            return []
        if not self._splicing.planning.slots and not self._everywhere:
            return []  # no handler runs that could make system calls
        edits: dict[int, Edit] = {}
        inside: set[int] = set()
        for name, numbered in self._codes.functions.items():
            for function in library.image.functions.lookup(name):
                address = function.start + library.bias
                inside.add(address)
                self._add(edits, address, address, self._codes.at_function(numbered=numbered))
        own = list(self._objects.own_calls(self._codes.numbers)) if self._everywhere else []
        for loaded, at, number in own:
            maker = loaded.image.functions.containing(at)
            if maker is not None and maker.start + loaded.bias not in inside:
                where = maker.start + loaded.bias
                code = self._codes.at_call(number, near=_near(loaded, at), is_go=loaded.image.is_go)
                self._add(edits, where, at + loaded.bias, code)
        self._has_none = library.is_executable and not inside and not own
        return list(edits.values())

    def _add(self, edits: dict[int, Edit], function: int, address: int, code: "NativeCode") -> None:
        """Add the edit of a check at a run-time address in a function, where it is not placed yet."""
        if address in self._hooks:
            return
        found = self._splicing.view.locate(function) if self._splicing.view.locate is not None else None
        if found is None or isinstance(found, Refusal):
            return
        module, entered = found
        facts = self._checks.setdefault(code, HandlerFacts(code, self._words, needs_block=False))
        hook = self._hooks[address] = Hook(ActionKind.HANDLER, handler=facts)
        state = module.state_of(entered)
        edit = edits.setdefault(id(state), Edit(module, state))
        kind = WantKind.ENTRY if address == function else WantKind.OFFSET
        want = Want(address - module.bias, kind, tag=hook, internal=True)
        edit.added.append(want)
        self._wants.append((module, state, want))


def _near(loaded: "LoadedObject", at: int) -> bytes | None:
    """Return the bytes around a place, where parameters may be loaded."""
    with suppress(MemoryFault):
        return loaded.image.read(max(at - _NEAR, 0), 2 * _NEAR)
    return None
