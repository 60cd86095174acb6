"""Whether handlers may make system calls: not in a process that filters its own, or is about to."""

from typing import TYPE_CHECKING

from anyprobe.core.refusal import Refusal
from anyprobe.splice.codegen.handlers.facts import HandlerFacts
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.edits import Edit
from anyprobe.splice.plan.splices import Want, WantKind
from anyprobe.splice.regions.banks import Hook
from anyprobe.splice.userspace.seccomp_hook import filter_check

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.objects import ObjectTable
    from anyprobe.splice.processes import ProcessSplicing

_SETTERS = {"prctl": False, "__prctl": False, "syscall": True}
"""What sets filters in the C library, and whether the first parameter is a system call's number."""


class FilterWatch:
    """Sees that a program is about to filter its system calls; from then on handlers make none."""

    def __init__(self, splicing: "ProcessSplicing", objects: "ObjectTable", word: int) -> None:
        """Watch a program; ``word`` is where in it this is said."""
        self._splicing, self._objects = splicing, objects
        self.word = word
        self._hooks: dict[int, Hook] = {}

    @property
    def permits(self) -> bool:
        """Whether system calls may be made as far as is known: nothing is filtered, and what would be is seen."""
        return not self._splicing.process.is_filtered() and all(hook.armed for hook in self._hooks.values())

    def place(self) -> None:
        """Place the checks where the C library sets filters; in a program that has not loaded it yet there is none."""
        self._splicing.engine.change(self.edits())

    def edits(self) -> list[Edit]:
        """Return the edits that place what checks are not placed yet, to be applied with others."""
        libc = self._objects.libc()
        if libc is None or not self._splicing.planning.slots:  # else no handler runs that could make system calls
            return []
        edits: dict[int, Edit] = {}
        checks: dict[bool, HandlerFacts] = {}
        for name, numbered in _SETTERS.items():
            for function in libc.image.functions.lookup(name):
                address = function.start + libc.bias
                found = self._splicing.view.locate(address) if self._splicing.view.locate is not None else None
                if found is None or isinstance(found, Refusal) or address in self._hooks:
                    continue
                module, code = found
                if numbered not in checks:
                    checks[numbered] = HandlerFacts(filter_check(numbered=numbered), (self.word,))
                facts = checks[numbered]
                hook = self._hooks[address] = Hook(ActionKind.HANDLER, handler=facts)
                state = module.state_of(code)
                edit = edits.setdefault(id(state), Edit(module, state))
                edit.added.append(Want(code.entry, WantKind.ENTRY, tag=hook, internal=True))
        return list(edits.values())
