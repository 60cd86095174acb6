"""All stubs of a session in one list that handlers read: what a replaced return address stands for.

Stubs of several probes may stand for each other: of probes of one function, or of functions that end in jumps to
others, in any object. A stub is listed before the first return address is replaced by it.
"""

import struct
from typing import TYPE_CHECKING, Protocol

from anyprobe.core.errors import InternalError
from anyprobe.splice.codegen.timing.trampoline import STUB_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyprobe.isa.assemble import Assembler
    from anyprobe.splice.codegen.timing.trampoline import Trampolines

_ENTRY = struct.Struct("<QQQ8x")
_BYTES = 4096


class Shared(Protocol):
    """Memory of the target that the controller sees, too."""

    @property
    def address(self) -> int:
        """Where it is in the target."""
        ...

    def view(self) -> memoryview:
        """Return its bytes."""
        ...


class StubDirectory:
    """Where stubs are, for handlers; mapped when the first one asks."""

    def __init__(self, map_store: "Callable[[int], Shared]") -> None:
        """Begin without stubs; ``map_store`` maps memory of a size."""
        self._map_store = map_store
        self._known: list[Trampolines] = []
        self._store: Shared | None = None

    def note(self, made: "Trampolines") -> None:
        """List stubs that may be used from now on."""
        self._known.append(made)
        self._write()

    def address(self) -> int:
        """Return where the list is in the target."""
        if self._store is None:
            self._store = self._map_store(_BYTES)
            self._write()
        return self._store.address

    def _write(self) -> None:
        if self._store is None:
            return
        if (len(self._known) + 1) * _ENTRY.size > _BYTES:
            raise InternalError("there are more stubs than can be listed")
        entries = b"".join(_ENTRY.pack(each.stubs, each.count * STUB_BYTES, each.table) for each in self._known)
        # those that are there are written as they were: a thread that reads meanwhile sees no difference
        self._store.view()[: len(entries)] = entries


def emit_true_caller(asm: "Assembler", directory: int) -> None:
    """Emit: rax, a return address, becomes the true one if it is a stub. rcx, rdx and rdi are free.

    It ends: what a stub stands for was there before the stub.
    """
    asm.code(
        """
        caller:
            mov rdx, directory
        caller_next:
            mov rdi, [rdx]; test rdi, rdi; jz caller_true
            mov rcx, rax; sub rcx, rdi
            mov rdi, [rdx+16]; cmp rcx, [rdx+8]
            lea rdx, [rdx+32]; jae caller_next
            mov rax, [rdi+rcx*2]; jmp caller
        caller_true:
        """,
        directory=directory,
    )
