"""Where a C library has its locks: the functions that programs call, and those inside that have no names.

Nothing is known by version or by debug information: that a function waits is told by the system call in it, and where
the functions are by who calls them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from iced_x86 import OpKind, Register

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.errors import TargetError
from anyprobe.core.quoting import quoted
from anyprobe.probes.specs.naming import as_spec

if TYPE_CHECKING:
    from iced_x86 import Instruction

    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.probes.session import Session

FUTEX = 202
"""The number of the system call."""
OPERATION, _WAKE = 0x7F, 1
"""The bits that say which operation it is, and the one that wakes threads."""
_OPERATION_REGISTERS = frozenset({Register.RSI, Register.ESI, Register.SIL})
_CONSTANTS = frozenset({OpKind.IMMEDIATE8, OpKind.IMMEDIATE8TO32, OpKind.IMMEDIATE8TO64, OpKind.IMMEDIATE32})
_LOADS_FUTEX = b"\xb8\xca\x00\x00\x00"
"""``mov eax, 202``."""
SYSCALL = b"\x0f\x05"
_LOCK, _UNLOCK = "pthread_mutex_lock", "pthread_mutex_unlock"
_THUNK = 4
"""Instructions of a function that does nothing but jump to another one, at most."""
_DEEP = 2
"""Calls from a lock's function to the one that waits."""
TIMED_MUTEX = ("pthread_mutex_timedlock", "pthread_mutex_clocklock")
RWLOCK = tuple(f"pthread_rwlock_{way}{what}" for what in ("rdlock", "wrlock") for way in ("", "try", "timed", "clock"))
SEMAPHORE = ("sem_wait", "sem_trywait", "sem_timedwait", "sem_clockwait")
CONDITION = ("pthread_cond_wait", "pthread_cond_timedwait", "pthread_cond_clockwait")
BARRIER = ("pthread_barrier_wait",)


@dataclass(frozen=True, slots=True)
class LockPlaces:
    """The specs of what a C library has for locks."""

    mutex_wait: tuple[str, ...]
    """What a mutex that is taken is waited for in; its first parameter is the mutex."""
    mutex: tuple[str, ...]
    """What takes a mutex, and waits in the functions above."""
    mutex_timed: tuple[str, ...]
    """What takes a mutex and may wait by itself."""
    mutex_release: tuple[str, ...]
    rwlock: tuple[str, ...]
    rwlock_release: tuple[str, ...]
    semaphore: tuple[str, ...]
    condition: tuple[str, ...]
    barrier: tuple[str, ...]
    sleeps: tuple[str, ...]
    """System calls by which these may sleep."""
    sleepers: tuple[str, ...]
    """The functions inside that make these calls, but for those that only wake others."""
    futex: tuple[str, ...]
    """The function that makes any system call."""
    spin: tuple[str, ...]
    spin_release: tuple[str, ...]


def _sets(one: "Instruction") -> bool:
    """Return whether an instruction puts a constant into the register of the operation, or changes it by one."""
    return one.op_count == 2 and one.op0_register in _OPERATION_REGISTERS and one.op1_kind in _CONSTANTS


class Library:
    """One object, and what is asked of its functions."""

    def __init__(self, session: "Session", loaded: "LoadedObject") -> None:
        """Look at an object of a process."""
        self.loaded = loaded
        self._code = session.module(loaded).code
        self._functions = loaded.image.functions

    def starts(self, *names: str) -> list[int]:
        """Return where functions of some names begin; of a name that has versions, those that are no stubs."""
        return sorted({each.start for name in names for each in self._functions.lookup(name)})

    def code(self, start: int) -> FunctionCode | None:
        """Return the function that begins at an address, if it can be read."""
        found = self._code.function_at(start)
        return found if isinstance(found, FunctionCode) else None

    def codes(self, starts: Iterable[int]) -> list[FunctionCode]:
        """Return the functions that begin at some addresses, as far as they can be read."""
        return [found for found in map(self.code, starts) if found is not None]

    def spec(self, start: int, offset: int | None = None) -> str:
        """Return the spec that means the function that begins at an address, or an instruction of it."""
        function = self._functions.containing(start)
        name = function.name if function is not None and function.start == start else f"{self.loaded.name}+{start:#x}"
        if len(self._functions.lookup(name)) > 1:
            name = f"{name}@{start:#x}"
        end = "" if offset is None else f"+{offset:#x}"
        return f"{quoted(self.loaded.name)}:{as_spec(name)}{end}"

    def specs(self, starts: Iterable[int]) -> tuple[str, ...]:
        """Return the specs that mean the functions at some addresses."""
        return tuple(map(self.spec, dict.fromkeys(starts)))

    def jumps_to(self, starts: Iterable[int]) -> list[int]:
        """Return the functions that some end in, by a jump."""
        return [
            each for code in self.codes(starts) for each in sorted(code.jumps_out_to) if self.code(each) is not None
        ]

    def whole(self, start: int) -> int:
        """Return the function that one leads to which does nothing else."""
        code = self.code(start)
        targets = [] if code is None or len(code.addresses) > _THUNK else self.jumps_to([start])
        return targets[0] if len(targets) == 1 else start

    def reached(self, starts: Iterable[int], deep: int) -> list[int]:
        """Return functions and what they call or jump to, up to some depth."""
        found = dict.fromkeys(starts)
        fresh = list(found)
        for _ in range(deep):
            fresh = [
                each
                for code in self.codes(fresh)
                for each in sorted({*(target for _, target in code.calls), *code.jumps_out_to})
                if each not in found and self.code(each) is not None
            ]
            found |= dict.fromkeys(fresh)
        return list(found)

    def futex_calls(self, start: int) -> Iterator[int]:
        """Yield the offsets of system calls in a function that makes the one for futexes."""
        code = self.code(start)
        if code is not None and _LOADS_FUTEX in code.content:
            for number, address in enumerate(code.addresses):
                if code.raw_at(number) == SYSCALL:
                    yield address - start

    def waits(self, start: int) -> bool:
        """Return whether a function makes the system call, to wait or to wake."""
        return any(self.futex_calls(start))

    def only_wakes(self, start: int) -> bool:
        """Return whether the operation that a function asks for, where it is a constant, is to wake others."""
        code = self.code(start)
        found = (
            []
            if code is None
            else [one.immediate(1) for one in map(code.one, range(len(code.addresses))) if _sets(one)]
        )
        return bool(found) and all(each & OPERATION == _WAKE for each in found)


def lock_places(session: "Session") -> Sequence[LockPlaces]:
    """Return where the C libraries of a program have their locks: of most programs one, of some none that is known."""
    found = []
    for loaded in session.objects.objects:
        try:
            if loaded.image.functions.lookup(_LOCK) and (places := _places(Library(session, loaded))) is not None:
                found.append(places)
        except TargetError:  # an object that cannot be read has no functions for us
            continue
    return found


def _places(library: Library) -> LockPlaces | None:
    """Return where one library has its locks; None where its mutexes do not wait as they do in glibc."""
    mutex = library.starts(_LOCK)
    called = {target for code in library.codes(mutex) for _, target in code.calls}
    waits = sorted(filter(library.waits, called))
    if not waits:
        return None
    timed = library.starts(*TIMED_MUTEX)
    timed = [*library.jumps_to([*mutex, *timed]), *map(library.whole, timed)]
    rwlock, semaphore = library.starts(*RWLOCK), library.starts(*SEMAPHORE)
    slow_semaphore = library.jumps_to(semaphore)
    roots = [*rwlock, *semaphore]
    sleeping = [each for each in library.reached([*timed, *roots, *slow_semaphore], _DEEP) if library.waits(each)]
    return LockPlaces(
        library.specs(waits),
        library.specs([*mutex, *library.starts("pthread_mutex_trylock")]),
        library.specs(timed),
        library.specs(map(library.whole, library.starts(_UNLOCK))),
        library.specs(rwlock),
        library.specs(library.starts("pthread_rwlock_unlock")),
        library.specs([*semaphore, *slow_semaphore]),
        library.specs(library.starts(*CONDITION)),
        library.specs(library.starts(*BARRIER)),
        tuple(library.spec(start, at) for start in sleeping if start not in waits for at in library.futex_calls(start)),
        library.specs(each for each in sleeping if each not in roots and not library.only_wakes(each)),
        library.specs(library.starts("syscall")),
        library.specs(library.starts("pthread_spin_lock", "pthread_spin_trylock")),
        library.specs(library.starts("pthread_spin_unlock")),
    )


def functions_in_libraries(session: "Session", names: Sequence[str]) -> list[str]:
    """Return the specs of functions of some names that C libraries of a program have."""
    found: list[str] = []
    for loaded in session.objects.objects:
        if not (loaded.matches("libc") or loaded.matches("libpthread") or loaded.is_executable):
            continue
        try:
            library = Library(session, loaded)
            found += library.specs(map(library.whole, library.starts(*names)))
        except TargetError:
            continue
    return found
