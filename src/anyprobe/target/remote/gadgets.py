"""Instructions of the target that injected system calls borrow: no code of anyprobe's is executed."""

from typing import NamedTuple

from anyprobe.core.errors import UnsupportedTarget
from anyprobe.core.memory import Memory, MemoryFault
from anyprobe.target.system.procfs import Mapping

SYSCALL_RET = (b"\x0f\x05\xc3", b"\x0f\x05\xf3\xc3")  # syscall; ret
RESTORER = (
    b"\x48\xc7\xc0\x0f\x00\x00\x00\x0f\x05",  # mov $15,%rax; syscall
    b"\xb8\x0f\x00\x00\x00\x0f\x05",  # mov $15,%eax; syscall
)
POP_RAX_RET = (b"\x58\xc3",)  # pop %rax; ret
_KINDS = (SYSCALL_RET, RESTORER, POP_RAX_RET)
_SYSCALL_BYTES = 2
_CHUNK = 1 << 20
_OVERLAP = 16


class Gadgets(NamedTuple):
    """Where they are."""

    syscall_ret: int
    restorer: int
    """Where the signal return is made; 0 where the program has none."""
    pop_rax: int = 0
    """``pop %rax; ret``, which with ``syscall; ret`` makes a signal return where there is no restorer (static musl)."""
    call_bytes: int = len(SYSCALL_RET[0])
    """How many bytes ``syscall; ret`` has."""

    @property
    def after_syscall(self) -> int:
        """Where a thread stands that has made its call."""
        return self.syscall_ret + _SYSCALL_BYTES

    @property
    def ranges(self) -> tuple[tuple[int, int], ...]:
        """Where the bytes begin that must stay, and how many there are; what follows is another function's."""
        rest = (self.restorer, len(RESTORER[0])), (self.pop_rax, len(POP_RAX_RET[0]))
        return (self.syscall_ret, self.call_bytes), *(each for each in rest if each[0])


_by_file: dict[tuple[str, int, int, int], tuple[int, int, int]] = {}
"""Offsets in executable mappings of files, -1 for none, by device, inode, offset and length."""


def find(memory: Memory, mappings: list[Mapping]) -> Gadgets:
    """Return the gadgets of a process, looking first where they usually are."""
    syscall_ret = restorer = pop_rax = -1
    for mapping in sorted((m for m in mappings if m.executable and m.readable), key=_likelihood):
        offsets = _offsets_in(memory, mapping)
        if syscall_ret < 0 and offsets[0] >= 0:
            syscall_ret = mapping.start + offsets[0]
        if restorer < 0 and offsets[1] >= 0:
            restorer = mapping.start + offsets[1]
        if pop_rax < 0 and offsets[2] >= 0:
            pop_rax = mapping.start + offsets[2]
        if syscall_ret >= 0 and restorer >= 0:
            return Gadgets(syscall_ret, restorer, call_bytes=_call_bytes(memory, syscall_ret))
    if syscall_ret >= 0 and pop_rax >= 0:
        return Gadgets(syscall_ret, 0, pop_rax, _call_bytes(memory, syscall_ret))
    raise UnsupportedTarget(
        "the program has no 'syscall; ret' or no signal return code that an injected call could use"
    )


def _call_bytes(memory: Memory, syscall_ret: int) -> int:
    short = len(SYSCALL_RET[0])
    return short if memory.read(syscall_ret, short) == SYSCALL_RET[0] else len(SYSCALL_RET[1])


def still_there(memory: Memory, gadgets: Gadgets) -> bool:
    """Return whether the bytes are what they were (the library is still mapped and not patched)."""
    try:
        call = memory.read(gadgets.syscall_ret, gadgets.call_bytes)
        restorer = memory.read(gadgets.restorer or gadgets.pop_rax, 7 if gadgets.restorer else 2)
    except MemoryFault:
        return False
    if not gadgets.restorer and restorer not in POP_RAX_RET:
        return False
    if not gadgets.restorer:
        return call in SYSCALL_RET
    return call in SYSCALL_RET and any(p.startswith(restorer) for p in RESTORER)


def forget(mappings: list[Mapping]) -> None:
    """Drop what is remembered of these files, because a splice lies over it here."""
    for mapping in mappings:
        _by_file.pop((mapping.device, mapping.inode, mapping.offset, mapping.end - mapping.start), None)


def _likelihood(mapping: Mapping) -> int:
    name = mapping.path.rpartition("/")[2]
    if name.startswith(("libc.", "libc-", "ld-musl", "libpthread")):
        return 0
    return 1 if mapping.inode and mapping.private else 2


def _offsets_in(memory: Memory, mapping: Mapping) -> tuple[int, int, int]:
    key = (mapping.device, mapping.inode, mapping.offset, mapping.end - mapping.start)
    if mapping.inode and key in _by_file:
        return _by_file[key]
    offsets = _offsets(memory, mapping)
    if mapping.inode:
        _by_file[key] = offsets
    return offsets


def _offsets(memory: Memory, mapping: Mapping) -> tuple[int, int, int]:
    """Return where the first of each kind is; each piece of memory is read once for all of them."""
    found = [-1] * len(_KINDS)
    for start in range(mapping.start, mapping.end, _CHUNK):
        try:
            content = memory.read(start, min(_CHUNK + _OVERLAP, mapping.end - start))
        except MemoryFault:
            continue
        for number, patterns in enumerate(_KINDS):
            if found[number] < 0 and (at := _first(content, patterns)) >= 0:
                found[number] = start - mapping.start + at
        if min(found) >= 0:
            break
    syscall_ret, restorer, pop_rax = found
    return syscall_ret, restorer, pop_rax


def _first(content: bytes, patterns: tuple[bytes, ...]) -> int:
    """Return where the first of some patterns begins, -1 if there is none."""
    found = len(content)
    for pattern in patterns:  # each only before where another one was found
        at = content.find(pattern, 0, found + len(pattern) - 1)
        found = at if at >= 0 else found
    return found if found < len(content) else -1
