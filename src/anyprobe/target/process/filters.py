"""What filters of a process (seccomp) permit: whether code that waits or reads in it may make its system calls.

The kernel gives the programs of filters to those who may administer the machine (CAP_SYS_ADMIN), and filters nothing of
its own. A call is permitted where no way through a program ends otherwise, whatever the call's parameters are. A
process can add filters and never take one away: their number tells whether what is known still holds.
"""

import struct

from anyprobe.target.system import ptrace

GENERATED = frozenset({11, 25, 39, 150, 157, 186, 202, 228, 310, 311})
"""The calls of generated code: ``munmap``, ``mremap``, ``getpid``, ``munlock``, ``prctl``, ``gettid``, ``futex``,
``clock_gettime``, ``process_vm_readv`` and ``process_vm_writev``."""
_ALLOW, _LOG, _ACTION = 0x7FFF0000, 0x7FFC0000, 0xFFFF0000
_X86_64 = 0xC000003E
_NUMBER_AT, _ARCHITECTURE_AT, _DATA_BYTES = 0, 4, 64
_INSTRUCTION = struct.Struct("<HBBI")
_MOST_STATES = 200_000
_MASK = 0xFFFFFFFF
State = tuple[int, int | None, int | None, tuple[tuple[int, int | None], ...]]
"""The next instruction, the two registers and the memory cells, of which None is not known."""


def permitted(tid: int, filters: int) -> frozenset[int]:
    """Return which calls of generated code all filters of a stopped thread permit; none where that cannot be told.

    ``filters``: how many it has.
    """
    try:
        programs = [ptrace.seccomp_filter(tid, number) for number in range(filters)]
    except OSError:  # without the right to see them, or where one is none of these programs
        return frozenset()
    return frozenset(call for call in GENERATED if all(permits(program, call) for program in programs))


def permits(program: bytes, call: int) -> bool:
    """Return whether a filter permits a system call of a 64-bit program, whatever its parameters are."""
    code = list(_INSTRUCTION.iter_unpack(program))
    todo: list[State] = [(0, 0, 0, ())]
    seen: set[State] = set()
    while todo:
        state = todo.pop()
        if state in seen:
            continue
        seen.add(state)
        if len(seen) > _MOST_STATES or state[0] >= len(code):
            return False
        following = _step(code[state[0]], state, call)
        if following is None:
            return False
        todo += following
    return True


def _step(instruction: tuple[int, int, int, int], state: State, call: int) -> list[State] | None:
    """Return the states after an instruction; None where the call is not permitted, or that is not known."""
    operation, if_true, if_false, k = instruction
    at, a, x, memory = state
    family = operation & 7
    source = x if operation & 8 else k
    if family == 6:  # ret
        value = a if operation & 0x18 == 0x10 else k
        return [] if value is not None and value & _ACTION in {_ALLOW, _LOG} else None
    if family == 5:  # jmp
        if operation == 0x05:
            return [(at + 1 + k, a, x, memory)]
        taken = _compare(operation & 0xF0, a, source)
        ways = {if_true, if_false} if taken is None else {if_true if taken else if_false}
        return [(at + 1 + way, a, x, memory) for way in ways]
    if family in {0, 1}:  # ld, ldx
        known = dict(memory)
        loaded = {0x20: _data(k, call), 0x00: k, 0x60: known.get(k), 0x80: _DATA_BYTES}.get(operation & ~1)
        return [(at + 1, loaded, x, memory) if family == 0 else (at + 1, a, loaded, memory)]
    if family in {2, 3}:  # st, stx
        stored = {**dict(memory), k: a if family == 2 else x}
        return [(at + 1, a, x, tuple(sorted(stored.items())))]
    if family == 4:
        return [(at + 1, _computed(operation & 0xF0, a, source), x, memory)]
    return [(at + 1, x, x, memory) if operation & 0x80 else (at + 1, a, a, memory)]  # txa, tax


def _data(offset: int, call: int) -> int | None:
    return {_NUMBER_AT: call, _ARCHITECTURE_AT: _X86_64}.get(offset)


def _compare(operation: int, a: int | None, source: int | None) -> bool | None:
    if a is None or source is None:
        return None
    return {0x10: a == source, 0x20: a > source, 0x30: a >= source, 0x40: bool(a & source)}.get(operation)


def _computed(operation: int, a: int | None, source: int | None) -> int | None:
    if operation == 0x80:
        return None if a is None else -a & _MASK
    if a is None or source is None:
        return None
    match operation:
        case 0x00:
            return a + source & _MASK
        case 0x10:
            return a - source & _MASK
        case 0x20:
            return a * source & _MASK
        case 0x40:
            return a | source
        case 0x50:
            return a & source
        case 0x60:
            return a << source & _MASK if source < 32 else None
        case 0x70:
            return a >> source if source < 32 else None
        case 0xA0:
            return a ^ source
        case _:  # divisions, which no filter has need of
            return None
