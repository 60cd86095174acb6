"""The names of Go's types by the address of what the runtime keeps of them, as ``%T`` prints them: ``*net.OpError``.

Each begins with the fields of ``runtime._type`` (``internal/abi.Type``), which has its name as an offset from where
the module's types begin; ``reflect`` names what it makes at run time otherwise.
"""

from collections.abc import Callable, Sequence

from anyprobe.binary.objects.leb128 import read_uleb
from anyprobe.binary.objects.symbols import SymbolTable, address_of
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.core.memory import MemoryFault

_FLAGS_AT, _NAME_AT, _SIZE = 20, 40, 44
_STAR_TOO_MUCH = 1 << 1
"""The flag of types whose name is that of the pointer to them, so that one text serves both."""
_LENGTH_BYTES = 3
_LONGEST = 4096


class GoTypeNames:
    """The names of one object's types."""

    def __init__(self, read: Callable[[int, int], bytes], tables: Sequence[SymbolTable], where: str) -> None:
        """Read an object by its link-time addresses; ``UnsupportedTarget`` if it has lost its symbols."""
        self._read = read
        self._first = address_of("runtime.types", tables, where)
        self._end = address_of("runtime.etypes", tables, where)

    def name(self, address: int) -> str | None:
        """Return the name of the type at a link-time address; None if there is none."""
        if not self._first <= address < self._end:
            return None
        try:
            content = self._read(address, _SIZE)
            at = self._first + int.from_bytes(content[_NAME_AT:_SIZE], "little", signed=True)
            if not self._first <= at < self._end:
                return None
            length, begin = read_uleb(self._read(at + 1, _LENGTH_BYTES), 0)
            name = self._read(at + 1 + begin, length) if length <= _LONGEST else b""
        except (MemoryFault, UnsupportedTarget, IndexError):
            return None
        shown = name.decode(errors="replace")
        return shown.removeprefix("*") if content[_FLAGS_AT] & _STAR_TOO_MUCH else shown
