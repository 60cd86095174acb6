"""An engine on a simulated target, with the few steps that tests take with it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.refusal import Refusal
from anyprobe.probes.providers.function.clobbering import clobbers
from anyprobe.probes.providers.function.reading import BankValues
from anyprobe.splice.apply.recovery.recovery import Removal, remove
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.edits import Edit, Module
from anyprobe.splice.plan.splices import AUTO, Strategy, Want, WantKind
from anyprobe.splice.processes import ProcessSplicing
from anyprobe.splice.regions.banks import Hook
from support.simulated.program import Program
from support.simulated.target import as_process


class AllowsAll:
    """What is known of a program in which nothing stands in the way of changes without a stop."""

    def refresh(self) -> None:
        """Look at what the program has loaded, which is nothing more."""

    def may_vanish(self, module: Module) -> Refusal | None:
        """Return that text stays."""

    def blocks_traps(self, address: int) -> Refusal | None:
        """Return that nobody blocks SIGTRAP."""

    def is_called_blocked(self, module: Module, code: FunctionCode) -> Refusal | None:
        """Return that no function runs with SIGTRAP blocked."""


class Splicing:
    """One session of the engine, by which the instructions of a program are counted."""

    def __init__(
        self, program: Program, *, allowed: frozenset[Strategy] = AUTO, slots: bool = True, live: bool = False
    ) -> None:
        """Change nothing yet; ``live``: without a stop where that can be."""
        self.program, self.target = program, program.target
        self.splicing = ProcessSplicing(
            as_process(self.target), clobbers, allowed=allowed, slots=slots, proof=AllowsAll() if live else None
        )
        self.engine = self.splicing.engine
        self.module = program.new_module()
        self.engine.add_module(self.module)

    def code(self, name: str) -> FunctionCode:
        """Return a function of the session's module."""
        found = self.module.code.function_at(self.program.starts[name])
        assert not isinstance(found, Refusal), found
        return found

    def wants(self, name: str, places: Iterable[int] | None = None) -> list[Want]:
        """Return wants of counters at a function's entry, or at some of its instructions."""
        code = self.code(name)
        if places is None:
            return [Want(code.entry, WantKind.ENTRY, tag=Hook(ActionKind.COUNT))]
        return [Want(at, WantKind.OFFSET, tag=Hook(ActionKind.COUNT)) for at in places]

    def edit(self, name: str, added: Iterable[Want] = (), removed: Iterable[Want] = ()) -> Edit:
        """Return an edit of a function."""
        state = self.module.state_of(self.code(name))
        return Edit(self.module, state, list(added), list(removed))

    def edits(self, added: Mapping[str, Sequence[Want]]) -> list[Edit]:
        """Return the edits that add wants to functions, by names: one for those that are planned together."""
        found: dict[int, Edit] = {}
        for name, wants in added.items():
            edit = self.edit(name)
            found.setdefault(id(edit.state), edit).added.extend(wants)
        return list(found.values())

    def count(self, name: str, places: Iterable[int] | None = None) -> list[Hook]:
        """Count a function's entries, or some of its instructions; return the hooks in the same order."""
        wants = self.wants(name, places)
        self.engine.change([self.edit(name, wants)])
        return [want.tag for want in wants if isinstance(want.tag, Hook)]

    def take_out(self, name: str) -> None:
        """Take all probes out of a function."""
        edit = self.edit(name)
        edit.removed += edit.state.wants
        self.engine.change([edit])

    def hits(self, hooks: Iterable[Hook]) -> list[int]:
        """Return what hooks have counted."""
        values = BankValues()
        return [values.hits(hook) for hook in hooks]

    def strategies(self) -> set[str]:
        """Return the strategies of all that is armed."""
        return {splice.planned.strategy.value for splice in self.module.splices()}

    def remove(self) -> Removal:
        """Remove everything from the target, by the journals alone."""
        return remove(as_process(self.target), frozenset([self.splicing.holdings.owner.session]))


@contextmanager
def splicing(
    program: Program, *, allowed: frozenset[Strategy] = AUTO, slots: bool = True, live: bool = False
) -> Iterator[Splicing]:
    """Give a session that is removed at the end; then text and memory map must be as before."""
    target = program.target
    before = target.mappings()
    made = Splicing(program, allowed=allowed, slots=slots, live=live)
    try:
        yield made
        left = made.remove()
        assert not left.kept
        assert program.is_pristine()
        assert target.mappings() == before
        assert not target.files
    finally:
        made.splicing.close()
