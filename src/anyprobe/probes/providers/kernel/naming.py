"""Addresses and stacks by name: the kernel's own, and those of the processes that hits were in."""

from functools import cached_property
from typing import TYPE_CHECKING, Any

from anyprobe.handlers.bpf.layouts import stack_parts
from anyprobe.handlers.bpf.storages import KernelMaps
from anyprobe.target.kernel import symbols
from anyprobe.target.kernel.symbols import KERNEL, Symbols

if TYPE_CHECKING:
    from anyprobe.binary.images.image import Image
    from anyprobe.probes.stacks.symbols import Symbols as ProcessSymbols

_UPPER = 1 << 63
_ON_THE_WAY = ("bpf_", "__bpf_", "__traceiter_", "trace_call_bpf", "perf_trace_", "perf_call_bpf")
"""Functions through which the kernel has come to a program."""
_STEPS = 8
"""Functions on that way at most."""


class KernelNaming:
    """Names addresses as results show them."""

    def __init__(self, maps: KernelMaps) -> None:
        """Find stacks in the session's maps."""
        self._maps = maps
        self._stacks: dict[int, str] = {}
        self._processes: dict[int, ProcessSymbols[Any]] = {}
        self._images: dict[tuple[object, ...], Image] = {}
        """What the processes have loaded, read once for all."""

    @cached_property
    def _symbols(self) -> Symbols:
        return symbols.running()

    def shown(self, kind: str, number: int) -> str:
        """Return how a number is shown that is a ``func`` or a ``stack`` in a handler."""
        if kind != "stack":
            return self._named(number)
        found = self._stacks.get(number)
        if found is None:
            found = self._stacks[number] = self._stack(number)
        return found

    def _stack(self, number: int) -> str:
        store, _, pid = stack_parts(number)
        addresses = self._maps.stack(number)
        if store.of_kernel:
            return self._of_kernel(addresses, store.depth)
        return self._process(pid).stack(addresses)

    def know(self, pid: int, symbols: "ProcessSymbols[Any]") -> None:
        """Have addresses of a process named by what a session on it knows, also when the process has ended."""
        self._processes[pid] = symbols

    def _process(self, pid: int) -> "ProcessSymbols[Any]":
        """Return what names addresses of a process."""
        if pid not in self._processes:
            from anyprobe.probes.providers.kernel.process_objects import ProcessObjects
            from anyprobe.probes.stacks.symbols import Symbols as ProcessSymbols

            self._processes[pid] = ProcessSymbols(ProcessObjects(pid, self._images))
        return self._processes[pid]

    def _of_kernel(self, addresses: list[int], depth: int) -> str:
        """Return a stack of the kernel from where the probe is on: what has led to the program is left out."""
        names = [self._named(each - 1 if at else each, int(at > 0)) for at, each in enumerate(addresses)]
        first = 0
        for at, name in enumerate(names[:_STEPS]):
            if name.startswith("0x") or name.startswith(_ON_THE_WAY):
                first = at + 1
        return " < ".join((names[first:] or names)[:depth]) or "?"

    def _named(self, address: int, more: int = 0) -> str:
        """Return the function of the kernel that an address lies in, and how far; the number where there is none."""
        found = self._symbols.containing(address) if address >= _UPPER else None
        if found is None:
            return f"{address + more:#x}"
        distance = address + more - found.address
        name = found.name if found.module == KERNEL else f"{found.module}:{found.name}"
        return name + (f"+{distance:#x}" if distance else "")
