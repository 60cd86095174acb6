"""A target that is no process: memory, tasks with their pcs, and where each of these will come back to."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anyprobe.core.errors import TargetError
from anyprobe.target.base import ImmovableThread, StoppedThread, Target
from anyprobe.target.system.procfs import Mapping
from anyprobe.target.system.ptrace import Registers
from support.simulated.areas import SimulatedMemory
from support.simulated.threads import NOT_IN_A_CALL

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from anyprobe.splice.apply.transaction import SavedPcs


@dataclass
class Task:
    """A task as a kernel knows it."""

    tid: int
    registers: Registers
    returns: Sequence[int] = ()
    """The pcs that interrupts and exceptions have saved."""
    pid: int = 0
    moved: list[int] = field(default_factory=list)

    def store_registers(self) -> None:
        """Note where it goes on."""
        self.moved.append(self.registers.rip)

    def awaits(self, *signals: int) -> bool:
        """Return that it awaits nothing."""
        return False

    def awaits_trap(self) -> bool:
        """Return that it awaits nothing."""
        return False

    def blocks(self, signal: int) -> bool:
        """Return that it blocks nothing."""
        return False


@dataclass(frozen=True)
class BareStop:
    """All tasks stand still."""

    tasks: Sequence[Task]
    waiting: Sequence[ImmovableThread]
    mappings: Sequence[Mapping]
    pause_us: int = 0

    @property
    def threads(self) -> Sequence[StoppedThread]:
        """The tasks."""
        return self.tasks

    def verify(self) -> None:
        """Do nothing: there is no other target that it could be."""


class ReturnsOfTasks:
    """Where tasks come back to, as the target tells: nothing is looked for on stacks."""

    def look(self, mappings: Sequence[Mapping]) -> None:
        """Do nothing."""

    def of_all(self, stop: BareStop) -> Iterator[tuple[int, Sequence[int]]]:
        """Yield the saved pcs of each task."""
        return ((task.tid, task.returns) for task in stop.tasks)


class BareTarget:
    """What `Target` asks for, and no more."""

    def __init__(self) -> None:
        """Begin without memory and tasks."""
        self.mem, self.heap_start, self.meets_traps = SimulatedMemory(), 0, False
        self.tasks: list[Task] = []
        self.waiting: list[ImmovableThread] = []

    def add_task(self, pc: int, returns: Sequence[int] = ()) -> Task:
        """Return a new task that stands at a pc."""
        self.tasks.append(Task(len(self.tasks) + 1, Registers(rip=pc, orig_rax=NOT_IN_A_CALL), returns))
        return self.tasks[-1]

    def mappings(self) -> list[Mapping]:
        """Return the memory map."""
        return self.mem.mappings()

    @contextmanager
    def stop(self, timeout: float = 2.0) -> Iterator[BareStop]:
        """Have all stand still."""
        assert timeout > 0
        yield BareStop(self.tasks, self.waiting, self.mappings())

    def exclusive(self) -> "AbstractContextManager[None]":
        """Keep out others, of which there are none."""
        return nullcontext()

    def verify(self) -> None:
        """Do nothing: it does not end."""

    def exited(self) -> bool:
        """Return that it has not ended."""
        return False

    def ended(self) -> bool:
        """Return that it has not ended."""
        return False

    def gone(self) -> TargetError:
        """Return what never is raised."""
        return TargetError("the target has gone")


def as_target(target: BareTarget) -> tuple[Target, "SavedPcs[BareStop]"]:
    """Return a target that is no process as what a transaction works on: mypy checks here that it is one."""
    return target, ReturnsOfTasks()
