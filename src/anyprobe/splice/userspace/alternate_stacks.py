"""Functions that run on alternate signal stacks which they never write to: what probes may do in them.

The program may have made such a stack read-only since the kernel wrote the signal's frame there. A handler that only
returns never notices, so nothing else may write there.
"""

from typing import TYPE_CHECKING

from anyprobe.binary.flow.unwritten_stack import unwritten_stack
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.registers import mask_of
from anyprobe.splice.codegen.patch import ActionKind, counts_without_stack
from anyprobe.splice.edits import FunctionState, Module, hook_of
from anyprobe.splice.plan.splices import Clobbers, Want

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from anyprobe.binary.flow.cfg import CodeMap
    from anyprobe.binary.flow.function import FunctionCode

_FRAME = mask_of(("rsi", "rdx"))
"""What leads a handler to its signal's frame."""
_WHY = "a signal handler comes here on an alternate stack that it never writes to, and that may be read-only; "


class AlternateStacks:
    """The places in one program's handlers, and in what these jump to, at which nothing has written to the stack."""

    def __init__(self, clobbers: "Callable[[CodeMap, FunctionCode, Want], Clobbers]") -> None:
        """Know of no handler yet; ``clobbers`` tells what is dead at an instruction."""
        self._clobbers = clobbers
        self._followed: set[tuple[Module, int]] = set()
        self._places: dict[Module, set[int]] = {}
        self._handlers: set[tuple[Module, int]] = set()
        self._blind: set[tuple[Module, int]] = set()

    def note(self, module: Module, start: int) -> None:
        """Take note of a handler that runs on an alternate stack, by its link-time address."""
        if (module, start) in self._handlers:
            return
        self._handlers.add((module, start))
        todo, is_blind = [start], True
        while todo:
            at = todo.pop()
            function = module.code.containing(at)
            if function is None or (module, at) in self._followed:
                is_blind = False
                continue
            self._followed.add((module, at))
            found = unwritten_stack(function, at)
            self._places.setdefault(module, set()).update(found.places)
            todo += found.onward
            is_blind &= not (found.writes or found.onward or found.reads & _FRAME)
        if is_blind:
            self._blind.add((module, start))

    def knows(self, module: Module, start: int) -> bool:
        """Return whether a handler is known to run on an alternate stack."""
        return (module, start) in self._handlers

    def is_blind(self, module: Module, start: int) -> bool:
        """Return whether a handler on such a stack never writes to it, nor looks at its signal's frame."""
        return (module, start) in self._blind

    def refusal(self, module: Module, want: Want) -> Refusal | None:
        """Return why an action cannot be there; a counter that can is told to spare the stack."""
        hook = hook_of(want)
        if hook is None or hook.kind is ActionKind.FLAG or not self._spares(module, want):
            return None
        if hook.kind is not ActionKind.COUNT or hook.handler is not None or hook.calls is not None:
            return Refusal(Reason.ALTERNATE_STACK, want.address, _WHY + "count its entry instead")
        function = module.code.containing(want.address)
        free = Clobbers() if function is None else self._clobbers(module.code, function, want)
        if not self._is_entry(module, want.address) and not counts_without_stack(free):
            return Refusal(Reason.ALTERNATE_STACK, want.address, _WHY + "no register is free to count with")
        hook.spares_stack = True
        return None

    def _spares(self, module: Module, want: Want) -> bool:
        """Return whether an action must not write to the stack."""
        hook, place = hook_of(want), want.address if want.origin is None else want.origin.address
        return hook is not None and hook.kind is not ActionKind.VIEW and place in self._places.get(module, ())

    def _is_entry(self, module: Module, address: int) -> bool:
        """Return whether a handler begins there: what the kernel has saved of its registers is free."""
        return any((module, start) in self._handlers for start in (address, address - 4))

    def is_written_to(self, module: Module, state: FunctionState) -> bool:
        """Return whether what is armed in a function writes to such a stack, as it was not known to be one."""
        armed = ((want, hook) for want in state.wants if (hook := hook_of(want)) is not None and hook.armed)
        return any(
            not hook.spares_stack and hook.kind is not ActionKind.FLAG and self._spares(module, want)
            for want, hook in armed
        )


def may_spare_stack(modules: "Iterable[Module]", handler: int) -> bool:
    """Return whether a handler may never write to its stack, and there are probes in its module.

    Another thread may place more meanwhile.
    """
    module = next((each for each in modules if each.low <= handler < each.high), None)
    if module is None or all(want.internal for state in list(module.functions.values()) for want in list(state.wants)):
        return False
    function = module.code.containing(handler - module.bias)
    if function is None:
        return True
    found = unwritten_stack(function, handler - module.bias)
    return bool(found.places or found.onward)
