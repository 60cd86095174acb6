"""What Go's own tables say of functions and of the version that compiled them: how their calls can be followed.

Since Go 1.17 the compiler's functions have the goroutine in ``r14`` (``ABIInternal`` in Go's ``abi-internal.md``);
assembly has not. ``runtime.g`` begins with the bounds of the goroutine's stack; where the goroutine's number is depends
on the version.
"""

import re
from collections.abc import Callable

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.binary.objects.goroutines import FunctionRecords

_BUILD_INFO = ".go.buildinfo"
_MAGIC, _FLAGS_AT, _INLINE, _STRINGS_AT = b"\xff Go buildinf:", 15, 2, 32
_VERSION = re.compile(rb"go(\d+)\.(\d+)")
_GOROUTINE_NUMBER = {(1, minor): 160 if minor in (23, 24) else 152 for minor in range(18, 28)}
"""Where ``runtime.g`` has ``goid``, by version: two of them have one member more before it."""


class GoFunctions(FunctionRecords):
    """The functions of one object, with what is known of goroutines in the version of its runtime."""

    version: str | None = None
    """As the build information has it, such as ``go1.19.8``; None: there is none that is understood."""
    by_debug_info: Callable[[], int | None] | None = None
    """Where the debug information has the number, for other versions than those whose ``runtime.g`` is known."""

    @property
    def number_at(self) -> int | None:
        """Where ``runtime.g`` has the goroutine's number; None for versions of which that is not known."""
        found = _VERSION.match((self.version or "").encode())
        known = None if found is None else _GOROUTINE_NUMBER.get((int(found[1]), int(found[2])))
        return self.by_debug_info() if known is None and self.by_debug_info is not None else known

    def is_compiled(self, address: int) -> bool:
        """Return whether the code at an address is of Go's compiler, neither assembly nor C."""
        number = self._number_of(address)
        return number is not None and not self._is_assembly(number) and not self._is_foreign(number)


def go_version(elf: ElfFile) -> str | None:
    """Return the version of Go that an object says it was made by; None for what was made before 1.18."""
    section = elf.section(_BUILD_INFO)
    content = b"" if section is None else elf.section_bytes(section)
    if not content.startswith(_MAGIC) or len(content) <= _STRINGS_AT or not content[_FLAGS_AT] & _INLINE:
        return None
    size = content[_STRINGS_AT]
    return content[_STRINGS_AT + 1 :][:size].decode(errors="replace")
