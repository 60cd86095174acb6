"""Where a process has CPython's interpreter, and of which version it is."""

import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from anyprobe.core.errors import TargetError, UnsupportedTarget
from anyprobe.core.memory import MemoryFault
from anyprobe.data.snapshots.profile import PYTHON_LOOP
from anyprobe.probes.stacks.interpreter_layouts import LAYOUTS, Layout

if TYPE_CHECKING:
    from anyprobe.binary.images.modules import LoadedObject

_RUNTIME, _VERSION = "_PyRuntime", "Py_Version"


class Places(NamedTuple):
    """The addresses of an interpreter."""

    runtime: int
    """Its state."""
    version: int
    """Where its version is, as ``sys.hexversion``."""
    loop: range
    """The code that executes Python's instructions."""

    def layout(self, read: Callable[[int, int], bytes]) -> Layout:
        """Return how it keeps frames; raise a typed error where that is not known."""
        try:
            return layout_of(struct.unpack("<I", read(self.version, 4))[0])
        except MemoryFault as error:
            raise UnsupportedTarget(str(error)) from error


def places_of(objects: "Iterable[LoadedObject]") -> Places | None:
    """Return where the interpreter is that a process has, None if it has none; raise ``TargetError`` if it hides it."""
    for loaded in objects:
        if loaded.is_executable or loaded.file_name.startswith("libpython"):
            try:
                runtime = _address(loaded, _RUNTIME)
            except TargetError:  # its file cannot be read
                continue
            if runtime is not None:
                return _places_in(loaded, runtime)
    return None


def _places_in(loaded: "LoadedObject", runtime: int) -> Places:
    version, loop = _address(loaded, _VERSION), _address(loaded, PYTHON_LOOP)
    if version is None:
        raise UnsupportedTarget(f"a Python that is older than {_known()[0]}")
    if loop is None:
        raise UnsupportedTarget(f"{loaded.name} does not tell where its interpreter is")
    function = loaded.image.known_functions.containing(loop - loaded.bias)
    end = loop + 1 if function is None else function.end + loaded.bias
    return Places(runtime, version, range(loop, end))


def layout_of(version: int) -> Layout:
    """Return the layout of a version, which is a number as ``sys.hexversion``."""
    major, minor = version >> 24, version >> 16 & 0xFF
    found = LAYOUTS.get((major, minor))
    if found is None:
        known = _known()
        raise UnsupportedTarget(f"Python {major}.{minor} is none of {', '.join(known)}")
    return found


def _known() -> list[str]:
    return [f"{major}.{minor}" for major, minor in LAYOUTS]


def _address(loaded: "LoadedObject", name: str) -> int | None:
    """Return where a symbol that an object exports is in the process."""
    table = loaded.image.dynamic_table
    value = None if table is None else table.value_of(name)
    return None if value is None else value + loaded.bias
