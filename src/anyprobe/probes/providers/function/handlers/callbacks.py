"""Python functions of the controller that hits wait for; ``splice.codegen.handlers.rendezvous`` is how they wait."""

import ctypes
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from anyprobe.core.code import NativeCode
from anyprobe.core.errors import NoSuchProcess, TargetExited, UnsupportedTarget, UsageError
from anyprobe.probes.providers.function.handlers.actions import equip_with
from anyprobe.probes.providers.function.handlers.answers import Answers, TakenPlaces
from anyprobe.probes.providers.function.handlers.conditions import WaitCondition
from anyprobe.probes.providers.function.handlers.filter_watch import FilterWatch
from anyprobe.probes.providers.function.handlers.hit_stacks import HitStacks
from anyprobe.probes.providers.function.probe import Probe
from anyprobe.probes.scripts.entering import enter
from anyprobe.splice.codegen.handlers import rendezvous, sleep
from anyprobe.splice.codegen.handlers.facts import HandlerFacts
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.edits import Edit
from anyprobe.splice.plan.splices import Want, WantKind
from anyprobe.splice.regions.banks import Hook
from anyprobe.splice.regions.stores import Store
from anyprobe.target.system import futexes

if TYPE_CHECKING:
    from anyprobe.core.refusal import Refusal
    from anyprobe.probes.providers.function.handlers.handling import Handling
    from anyprobe.probes.providers.function.handlers.hit_stacks import Stack
    from anyprobe.probes.providers.function.handlers.points import Handler
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.specs.parts import Spec
    from anyprobe.splice.userspace.signal_view import Place

Callback = Callable[["Hit"], object]
_CONTEXT = ("ip",)
_WORDS = (*rendezvous.REGISTERS, *_CONTEXT)
_LOOK = 0.5
"""Seconds after which the controller looks without having been rung for."""
_ENDING = 5.0
_LONGEST = 3600.0
_ERRORS = 100
AFTER_ALL = 5.0
"""Seconds from the time that a thread waits at most until the place it has taken is another's."""
_MASK = (1 << 64) - 1


class Waiting(Protocol):
    """The registers of a stopped thread by which it is seen to wait."""

    r12: int
    r13: int


class Registers:
    """The registers of a thread that waits: attributes by name, ``rax`` to ``r15``."""

    __slots__ = ("changed", "unsafe", "words")
    words: list[int]
    unsafe: bool
    changed: bool

    def __init__(self, words: list[int], *, unsafe: bool) -> None:
        """Have the registers at the beginning of some words."""
        object.__setattr__(self, "words", words)
        object.__setattr__(self, "unsafe", unsafe)
        object.__setattr__(self, "changed", False)

    def __getattr__(self, name: str) -> int:
        """Return a register, as an unsigned number."""
        return self.words[_index(name)]

    def __setattr__(self, name: str, value: int) -> None:
        """Change a register of the program."""
        index = _index(name)
        if not self.unsafe:
            raise UsageError("registers are changed only in a session that was opened with unsafe=True")
        if name == "rsp":
            raise UsageError("rsp cannot be changed")
        self.words[index] = value & _MASK
        object.__setattr__(self, "changed", True)

    def write_to(self, thread: object) -> None:
        """Give a thread these registers."""
        for name, word in zip(rendezvous.REGISTERS, self.words, strict=False):
            setattr(thread, name, word)

    def __dir__(self) -> list[str]:
        """List the registers."""
        return list(rendezvous.REGISTERS)


def _index(name: str) -> int:
    if name not in rendezvous.REGISTERS:
        raise AttributeError(f"there is no register {name!r}")
    return rendezvous.REGISTERS.index(name)


class Hit:
    """What a callback gets: a thread of the program that waits for it to return."""

    __slots__ = (
        "_let_go",
        "_place",
        "_read",
        "_stacks",
        "_words",
        "goes_to",
        "held",
        "ip",
        "owner",
        "pid",
        "regs",
        "tid",
        "waits_at",
    )

    def __init__(
        self, words: list[int], tid: int, pid: int, read: Callable[[int, int], bytes], *, unsafe: bool,
        stacks: "HitStacks", let_go: Callable[[], None], waits_at: int = 0, owner: int = 0,
    ) -> None:  # fmt: skip
        """Describe one hit; ``let_go`` answers it. ``waits_at`` is the address of the place where its thread waits.

        ``owner`` tells the blocks of its thread.
        """
        self.waits_at, self.owner = waits_at, owner
        self.held: Sequence[int] = ()
        """The words from ``rendezvous.RATE`` on: the calls in whose times the thread's wait is not to be."""
        self.goes_to = 0
        """Where the thread goes on instead, where it can be sent elsewhere; 0: after the probe."""
        self._let_go = let_go
        self.regs = Registers(words, unsafe=unsafe)
        self.ip = words[_WORDS.index("ip")]
        self.tid, self.pid, self._read, self._words = tid, pid, read, words
        self._place, self._stacks = (self.ip, self.regs.rsp, self.regs.rbp), stacks

    @property
    def stack(self) -> "Stack":
        """The thread's own stack, addresses of code, innermost first; ``str()`` has the names.

        A debugger sees generated code there, and nothing above it.
        """
        return self._stacks.stack(*self._place)

    def let_go(self) -> None:
        """Let the thread go on before the callback returns; what the callback changes from here on is lost."""
        self._let_go()

    @property
    def retval(self) -> int:
        """What the function returns, where it does: ``rax``."""
        return self.regs.rax

    @retval.setter
    def retval(self, value: int) -> None:
        self.regs.rax = value

    def read(self, address: int, size: int) -> bytes:
        """Return bytes of the program's memory; raise ``MemoryFault`` if they are not there."""
        return self._read(address, size)

    def cstr(self, address: int, limit: int = 4096) -> str:
        """Return a text of the program up to its NUL; it may end at the end of a page."""
        found = b""
        while len(found) < limit and b"\0" not in found:
            here = address + len(found)
            found += self._read(here, min(-here % 4096 or 4096, limit - len(found)))
        return found.split(b"\0", 1)[0].decode(errors="backslashreplace")


@dataclass(frozen=True, slots=True)
class Wait:
    """A place at which threads wait: the entry of a function, or an instruction of it."""

    place: "Place"
    condition: NativeCode | None = None
    """For which hits; None: for all."""
    inside: int | None = None
    """The instruction, by its address in the module."""


class Callbacks:
    """The callbacks of one session, and the thread that runs them."""

    def __init__(
        self, session: "ProbeHost", handling: "Callable[[], Handling] | None" = None,
        room: rendezvous.Room = rendezvous.NUMBERED,
    ) -> None:  # fmt: skip
        """Serve a session; nothing is done before the first callback is placed.

        ``handling`` compiles conditions; ``room`` is where threads wait.
        """
        self._session, self._handling, self._room = session, handling, room
        self._functions: list[Callback] = []
        self._inside: dict[Callback, tuple[NativeCode, dict[bytes, HandlerFacts]]] = {}
        """By what threads wait for functions at places inside of the program: the same code each time."""
        self._patience = 0.0
        """Seconds that any hit waits at most."""
        self._store: Store | None = None
        self._filters: FilterWatch | None = None
        self._thread: threading.Thread | None = None
        self._stacks: HitStacks | None = None
        self.ending = False
        """Whether the session is about to end, so that no hit waits any more."""
        self._lost: dict[str, int] | None = None
        """What was lost until all threads were let go."""
        self._backlog: Callable[[], int] = lambda: 0
        self.errors: list[Exception] = []
        """What callbacks have raised, the first hundred."""
        self.failed = 0
        """How often they have raised something."""
        self.served = 0
        """Hits that were answered."""

    def place(
        self, specs: "Sequence[Spec]", function: Callback, *, timeout: float, when: "Handler | None" = None
    ) -> list[Probe]:
        """Have the hits of some specs wait for a function of anyprobe; ``when``: those for which it holds."""
        code = rendezvous.waiting_code(
            len(self._functions), round(timeout * 1e9), context=_CONTEXT, writes=self._session.unsafe, room=self._room
        )
        self._functions.append(function)  # before the first hit can ask for it
        self._patience = max(self._patience, timeout)
        return self._place(specs, code, timeout, when, rendezvous.CALLS)

    def place_delay(self, specs: "Sequence[Spec]", seconds: float, when: "Handler | None" = None) -> list[Probe]:
        """Have the hits of some specs sleep for a while; ``when``: those for which it holds."""
        return self._place(specs, sleep.sleeping_code(round(seconds * 1e9)), seconds, when, sleep.CALLS)

    def _place(
        self, specs: "Sequence[Spec]", code: NativeCode, seconds: float, when: "Handler | None", calls: frozenset[int]
    ) -> list[Probe]:
        """Have hits wait in some code, which makes some system calls."""
        if self.ending:
            raise UsageError("this session has been detached")
        if not 0 < seconds <= _LONGEST:
            raise UsageError(f"a hit cannot wait for {seconds} seconds")
        if self._session.process.is_filtered(calls):
            raise UnsupportedTarget("hits cannot wait in a program that filters its system calls")
        condition = None
        if when is not None:
            assert self._handling is not None  # who has conditions has said by what they are compiled
            condition = WaitCondition(self._handling(), specs, when)
        if condition is not None:
            condition.check()
        self._begin()
        assert self._store is not None
        self.recheck()
        if condition is None:
            facts = HandlerFacts(code, (self._store.address,), pid=self._session.pid)
        else:
            facts = condition.facts(code, self._store.address)
        return self._session.place_made(specs, partial(equip_with, facts=facts))

    def place_inside(self, waits: "Sequence[Wait]", function: Callback, *, timeout: float) -> "list[Refusal | None]":
        """Have threads wait at places inside of the program; these are no probes of the user's.

        Returns for each why it cannot be spliced, ``None`` if it was.
        """
        edits, hooks = self.edits_inside(waits, function, timeout=timeout)
        self._session.splicing.engine.change(edits)
        return [hook.refusal for hook in hooks]

    def edits_inside(
        self, waits: "Sequence[Wait]", function: Callback, *, timeout: float
    ) -> tuple[list[Edit], list[Hook]]:
        """Return the edits by which threads wait at places inside of the program, and the hook of each place."""
        edits, hooks = self.watching_filters(), []  # in one change: no thread waits without them
        by_function = {id(edit.state): edit for edit in edits}
        for wait in waits:
            module, entered = wait.place
            at, kind = entered.entry, WantKind.ENTRY
            if wait.inside is not None:
                at, kind = wait.inside, WantKind.OFFSET
            start, facts = entered.entry + module.bias, self.facts_inside(function, timeout, wait.condition)
            hook = Hook(ActionKind.HANDLER, handler=facts, ip=at + module.bias, function=start)
            state = module.state_of(entered)
            if id(state) not in by_function:
                edits.append(by_function.setdefault(id(state), Edit(module, state)))
            by_function[id(state)].added.append(Want(at, kind, tag=hook, internal=True))
            hooks.append(hook)
        return edits, hooks

    def facts_inside(
        self, function: Callback, timeout: float, condition: NativeCode | None = None, *, goes: bool = False
    ) -> HandlerFacts:
        """Return the handler by which threads wait inside of the program; ``goes``: they may be sent elsewhere."""
        self._begin()
        assert self._store is not None
        if function not in self._inside:
            code = rendezvous.waiting_code(
                len(self._functions), round(timeout * 1e9), context=_CONTEXT, room=self._room, goes=goes
            )
            self._functions.append(function)
            self._patience = max(self._patience, timeout)
            self._inside[function] = code, {}
        code, known = self._inside[function]
        key = b"" if condition is None else condition.code
        if key not in known:
            native = code if condition is None else rendezvous.conditional(condition, code)
            known[key] = HandlerFacts(
                native, (self._store.address,), pid=self._session.pid, needs_block=not self._room.taken
            )
        return known[key]

    def watching_filters(self) -> list[Edit]:
        """Return the edits by which it is noticed that the program begins to filter its system calls."""
        self._begin()
        return self._filter_watch().edits()

    def __contains__(self, address: int) -> bool:
        """Return whether threads wait at an address of the program's memory."""
        return self._store is not None and 0 <= address - self._store.address < self._room.size

    def frame_at(self, registers: "Waiting") -> tuple[int, int, int] | None:
        """Return pc, stack pointer and frame pointer of a thread's hit; None for one that waits for none."""
        if self._store is None or registers.r13 != self._store.address:
            return None
        at = registers.r12 - registers.r13
        number, rest = divmod(at - rendezvous.PLACES, rendezvous.PLACE_BYTES)
        if rest or not 0 <= number < self._room.places:
            return None
        begin = at + rendezvous.ASKED
        words = self._store.view()[begin : begin + 8 * len(_WORDS)].cast("Q")
        return words[-1], words[_index("rsp")], words[_index("rbp")]

    def recheck(self) -> None:
        """See that a program is noticed that begins to filter its system calls, once its libraries are there."""
        if self._store is not None:
            self._filter_watch().place()

    def _filter_watch(self) -> FilterWatch:
        if self._filters is None:
            assert self._store is not None
            word = self._store.address + rendezvous.CLOSED
            self._filters = FilterWatch(
                self._session.splicing, self._session.symbols.objects, word, everywhere=self._room.taken
            )
        return self._filters

    @property
    def waiting(self) -> int:
        """How many hits wait for their turn, for callbacks themselves to ask."""
        return self._backlog()

    def lost(self) -> dict[str, int]:
        """Return how many hits were not answered in time, how many found no controller, how many callbacks failed."""
        if self._lost is not None:
            return self._lost
        if self._store is None:
            return {}
        head = self._store.view()[:4096].cast("Q")
        return {
            "callback timeout": head[rendezvous.TIMEOUTS // 8],
            "no callback": head[rendezvous.ABSENT // 8],
            "callback failed": self.failed,
        }

    def release(self) -> None:
        """Let all threads go; those that come from here on go on as they are meant to, and are not lost."""
        self._lost = self.lost()
        self.end()

    def end(self) -> None:
        """Let all threads go that wait, and have none wait any more."""
        self.ending = True
        thread, self._thread = self._thread, None
        if thread is not None and self._store is not None:
            address = _address_of(self._store.view())
            word = ctypes.c_uint32.from_address(address + rendezvous.BELL)
            word.value = word.value + 1 & 0xFFFFFFFF
            futexes.wake(address + rendezvous.BELL)
            if thread is not threading.current_thread():
                thread.join(_ENDING)

    # -- serving

    def _begin(self) -> None:
        if self._store is None:
            (self._store,) = self._session.splicing.map_stores([self._room.size])
        if self._thread is None:
            ready = threading.Event()
            self._thread = threading.Thread(target=self._serve, args=(ready,), name="anyprobe callbacks", daemon=True)
            self._thread.start()
            ready.wait()

    def _serve(self, ready: threading.Event) -> None:
        assert self._store is not None
        enter(self._session)
        region = self._store.view()
        base = _address_of(region)
        count = self._room.places
        places = [base + rendezvous.PLACES + number * rendezvous.PLACE_BYTES for number in range(count)]
        tickets = np.frombuffer(region, np.uint64, count, rendezvous.TICKETS)
        bell = np.frombuffer(region, np.uint32, 1, rendezvous.BELL)
        late = np.frombuffer(region, np.uint32, 1, rendezvous.LATE)
        locks = np.frombuffer(region, np.uint32)[rendezvous.PLACES // 4 :: rendezvous.PLACE_BYTES // 4][: len(places)]
        served = tickets.copy()
        answer = Answers(region, places, locks)
        taken = TakenPlaces(region, count) if self._room.taken else None
        with futexes.RobustList([place + rendezvous.NODE for place in places], rendezvous.LOCK - rendezvous.NODE):
            locks[:] = threading.get_native_id()
            self._backlog = lambda: int(np.count_nonzero(tickets != served))
            ready.set()
            try:
                while not self.ending:
                    rung, late[0] = int(bell[0]), 0  # threads wait again from now on
                    waiting = np.flatnonzero(tickets != served).tolist()
                    for number in waiting:
                        ticket = served[number] = tickets[number]
                        self._answer(answer, number, int(ticket))
                    if taken is not None:
                        taken.free(self._patience + AFTER_ALL)
                    if not waiting:
                        futexes.wait(base + rendezvous.BELL, rung, _LOOK)
            finally:
                self._backlog = lambda: 0
                asleep = np.flatnonzero(locks & np.uint32(rendezvous.WAITERS)).tolist()
                locks[:] = 0
                for number in asleep:
                    futexes.wake(places[number])

    def _answer(self, answering: Answers, number: int, ticket: int) -> None:
        """Run a callback and write its answer."""
        place = answering.place(number)
        words = place.cast("Q")
        asked = words[rendezvous.ASKED // 8 : rendezvous.ASKED // 8 + len(_WORDS)].tolist()
        halves = place.cast("I")
        callback, tid = halves[rendezvous.CALLBACK // 4], halves[rendezvous.TID // 4]
        session = self._session
        read = session.process.mem.read
        self._stacks = self._stacks or HitStacks(session.symbols, read)
        given: list[int] = []

        def answer(reply: Sequence[int] = ()) -> None:
            if not given:
                given.append(ticket)
                answering.write(number, ticket, [*asked, hit.goes_to] if hit.goes_to else reply, hit.held)

        assert self._store is not None
        hit = Hit(
            asked, tid, session.pid, read, unsafe=session.unsafe, stacks=self._stacks, let_go=answer,
            waits_at=self._store.address + rendezvous.PLACES + number * rendezvous.PLACE_BYTES,
            owner=words[rendezvous.THREAD // 8],
        )  # fmt: skip
        changed = False
        try:
            self._functions[callback](hit)
            changed = hit.regs.changed
        except Exception as error:  # noqa: BLE001 - the program must go on, whatever the callback does
            self._note_failure(self._functions[callback], error)
        self.served += 1  # by the time that the thread goes on it has been served
        answer(asked if changed else ())

    def _note_failure(self, function: Callback, error: Exception) -> None:
        """Keep what a callback has raised, and tell of the first one."""
        is_own = function in self._inside
        if is_own and isinstance(error, NoSuchProcess | TargetExited):
            return  # while it was served: nothing is lost
        self.failed += 1
        if self.failed == 1 and is_own:
            said = f"{type(error).__name__}: {error}"
            self._session.warn(f"a thread that waited for probes went on without: internal error ({said})")
        elif self.failed == 1:
            name = getattr(function, "__name__", "a callback")
            self._session.warn(f"{name} has raised {type(error).__name__}: {error}; the program goes on")
        if len(self.errors) < _ERRORS:
            self.errors.append(error)


def _address_of(region: memoryview) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(region))
