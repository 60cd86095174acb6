"""Which words a handler is given, each by what it holds: the same in processes and in the kernel."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

from anyprobe.core.code import Input, InputKind
from anyprobe.isa.assemble import Assembler


class Addresses(Protocol):
    """Where the memory of a handler is."""

    @property
    def storages(self) -> Sequence[int]:
        """Return where its aggregations are, by number."""
        ...

    @property
    def misses(self) -> int:
        """Return where its misses are counted."""
        ...


class Filling(ABC):
    """Writes the code that fills in words; how a value is found out is up to where the handler runs."""

    asm: Assembler

    @property
    @abstractmethod
    def _addresses(self) -> Addresses: ...

    @abstractmethod
    def _parameter(self, index: int, place: str) -> None: ...

    @abstractmethod
    def _register(self, index: int, name: str) -> None: ...

    @abstractmethod
    def _context(self, index: int, name: str) -> None: ...

    @abstractmethod
    def _unwinding(self) -> int:
        """Return where the tables are that stacks are read by."""

    @abstractmethod
    def _thread_number(self) -> None:
        """Emit: rax = the number of the thread, or of what stands for it."""

    @abstractmethod
    def _instance(self) -> None:
        """Emit: rdx = the data of the call."""

    def _set(self, index: int, register: str) -> None:
        """Emit: a word becomes what a register is."""
        self.asm.code("mov [rsp+word], " + register, word=8 * index)

    def _constant(self, index: int, value: int) -> None:
        self.asm.code("mov rax, value", value=value)
        self._set(index, "rax")

    def _word(self, index: int, each: Input) -> None:
        match each.kind:
            case InputKind.PARAMETER:
                self._parameter(index, each.place)
            case InputKind.REGISTER:
                self._register(index, each.name)
            case InputKind.CONTEXT:
                self._context(index, each.name)
            case InputKind.STORAGE:
                self._constant(index, self._addresses.storages[each.index])
            case InputKind.UNWINDING:
                self._constant(index, self._unwinding())
            case InputKind.MISSES:
                self._constant(index, self._addresses.misses)
            case InputKind.ROUTINE:
                self.asm.code("lea rax, [rel name]", name=each.name)
                self._set(index, "rax")
            case InputKind.THREAD:
                self._thread_number()
                self._set(index, "rax")
            case InputKind.INSTANCE:
                self._instance()
                self._set(index, "rdx")
