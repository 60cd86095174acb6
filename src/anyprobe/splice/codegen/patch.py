"""The generated code of one patch: actions at a hit, displaced instructions, the jump back.

Everything is position dependent and written for its final address. Cold parts (first hit of a thread, taken edges of
conditional exits) follow the hot path.
"""

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import TYPE_CHECKING, NamedTuple, Protocol

from anyprobe.core.errors import InternalError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.assemble import Assembler
from anyprobe.isa.encode import encode, head, machine_code
from anyprobe.splice.codegen.routines import CHILDREN, Routines
from anyprobe.splice.codegen.timing.trampoline import COUNTED, HANDLED, Trampolines
from anyprobe.splice.plan.splices import SCRATCH_ORDER, Clobbers

if TYPE_CHECKING:
    from anyprobe.splice.codegen.handlers.facts import HandlerFacts
    from anyprobe.splice.codegen.processes import Processes

RET = machine_code("ret")
BLIND = 1
"""Said of a signal handler that is shown nothing, as it does not look, where its signals are; none has that bit."""
_COUNTING = struct.Struct("<6sici8s")
FLAG, _FLAG_END = encode("mov byte [rel flag], 1").content[:2], encode("mov byte [rel flag], 1").content[6:]
_BELOW = "lea rsp, [rsp-128]"
"""Below the red zone."""
_BACK = "lea rsp, [rsp+128]"
_SIGNED_32 = 1 << 31
_STACKLESS_BYTES = len(head("lea r13, [rel after]") + head("jmp routine")) + 8


class ActionKind(Enum):
    """What a patch does at a hit."""

    __hash__ = object.__hash__  # members are single objects; the one of Enum is a Python function

    COUNT = auto()
    COUNT_STACKLESS = auto()
    """Count where nothing may be written to the stack."""
    FLAG = auto()
    """Set a flag: one store, which needs no register, no flags of the processor, no stack and no memory of a thread."""
    ENTER = auto()
    LEAVE = auto()
    LEAVE_TAIL = auto()
    """The function ends in a jump: its call goes on to the return point, if that is watched."""
    LEAVE_CALLER = auto()
    """At a return point: a call that left by a jump ends, if there is one."""
    LEAVE_SWITCH = auto()
    """The thread has changed to another stack, or left calls behind on its own (``MAY_STAY``)."""
    ARRIVE = auto()
    """A Go function is entered to which another one jumps: a call of that one may have come here."""
    UNWIND = auto()
    """Calls are left behind from here on (1), or that has ended (0), where it is known which calls made which."""
    ENTER_RETURN = auto()
    """Time the call; its end is seen by a replaced return address."""
    COUNT_RETURN = auto()
    """Count the return, seen by a replaced return address."""
    HANDLE_RETURN = auto()
    """Run a compiled handler at the return, seen by a replaced return address."""
    HANDLER = auto()
    """Run a compiled handler."""
    VIEW = auto()
    """Show a signal handler the program's own pc."""
    FAULT = auto()
    """Run a compiled handler where the instruction has faulted."""
    MOVE = auto()
    """Nothing: the function runs elsewhere (``bodies``)."""
    REBIND = auto()
    """Nothing: the call, or jump, leads to where a function runs elsewhere."""


COUNTS_NOTHING = frozenset({ActionKind.VIEW, ActionKind.MOVE, ActionKind.REBIND})
"""What needs no counter."""


REPLACING = frozenset({ActionKind.ENTER_RETURN, ActionKind.COUNT_RETURN, ActionKind.HANDLE_RETURN})
"""What an entry does to have the return seen."""


def counts_without_stack(free: Clobbers) -> bool:
    """Return whether what is free at a site is enough for a counter that leaves the stack alone."""
    return len(free.registers) >= (1 if free.flags else 2)


@dataclass(frozen=True, slots=True)
class BankCode:
    """How code of one code region reaches one bank."""

    slot: int | None
    """Offset of the thread slot from the thread pointer; ``None``: atomic operations on near counters."""
    gate: int
    """Address of the gate word of the code region."""
    near: int
    """Address of the shared block; of atomic banks it is within reach of the code."""
    routines: Routines | None
    trampolines: Trampolines | None = None
    view: int = 0
    """Address of the signal view's routine."""
    view_check: int = 0
    """Address of the routine that says whether there is anything for it to do."""
    handler: int = 0
    """Address of the routine that calls a handler."""
    at_return: int = 0
    """Address of the code that runs a handler at replaced return addresses."""
    stackless: bool = False
    """Go's: routines are jumped to, and use no stack."""
    per_processor: bool = False
    """A kernel's: ``near`` is an offset from ``gs``, of memory that each processor has for itself."""
    processes: "Processes | None" = None
    """A kernel's: the only processes in which something is done."""


class InPlace(Protocol):
    """What a patch does by itself for a handler."""

    def emit(self, writer: "PatchWriter", action: "Action", clobbers: Clobbers) -> bool:
        """Append it; return whether that could be."""


class Action(NamedTuple):
    """One thing to do at a hit: a kind and the block offset of its counter or record."""

    kind: ActionKind
    offset: int
    bank: BankCode
    ip: int = 0
    """What a handler is told of where it runs, after the call in the operands of instructions that do nothing."""
    function: int = 0
    """The function's address; 0: the handler does not ask."""
    takes_target: bool = False
    """Whether the handler expects where control goes pushed before its argument: it is not known beforehand."""
    moves_stack: bool = False
    """Whether the handler may leave another stack pointer."""
    inline: "InPlace | None" = None
    """What the patch does in the handler's stead, or before it."""
    handler: "HandlerFacts | None" = None
    """The handler, where it may be called with others."""
    looks_for_room: bool = False
    """Whether the goroutine's stack may end right below, so that a handler is called only if there is room."""
    jumps: int = 0
    """How many jumps there are between the function whose call ends and the one that returns."""


@dataclass
class PatchWriter:
    """Bytes of one patch, written at their final address."""

    address: int
    out: bytearray = field(default_factory=bytearray)
    _cold: list[tuple[int, Callable[[], None]]] = field(default_factory=list)
    displacements: list[tuple[int, int]] = field(default_factory=list)
    """(place, absolute target) of each rel32 operand."""
    arguments: list[int] = field(default_factory=list)
    """Where the block offsets of counters and records stand."""
    soft_reads: list[tuple[int, int]] = field(default_factory=list)
    """(where memory is read that the program is about to access, where the thread lands if that faults)."""

    @property
    def here(self) -> int:
        """Address of the next byte."""
        return self.address + len(self.out)

    def raw(self, code: bytes) -> None:
        """Append bytes: code that comes from elsewhere."""
        self.out += code

    def code(self, text: str) -> None:
        """Append instructions."""
        self.out += machine_code(text)

    def value(self, text: str, value: int) -> None:
        """Append an instruction that ends in four bytes of a value, which the text names."""
        self.out += head(text) + struct.pack("<i", value)

    def relative(self, text: str, target: int) -> None:
        """Append an instruction that ends in a rel32 operand to an absolute target, which the text names."""
        opcode = head(text)
        place = len(self.out) + len(opcode)
        self.displacements.append((place, target))
        self.out += opcode + struct.pack("<i", target - self.address - place - 4)

    def _routine(self, routine: int, how: str = "call") -> None:
        """Append the call of a routine of anyprobe's; a program's own branches may well have address 0, if unlinked."""
        if not routine:  # it was never placed: in a program below 2 GiB the call would be made
            raise InternalError("a patch would lead to address 0")
        self.relative(f"{how} routine", routine)

    def argument(self, text: str, offset: int) -> None:
        """Append an instruction that ends in the block offset of a counter or record, which the text names."""
        opcode = head(text)
        self.arguments.append(len(self.out) + len(opcode))
        self.out += opcode + struct.pack("<i", offset)

    def cold(self, branch: str | bytes, emit: Callable[[], None]) -> None:
        """Append a branch to code that ``emit`` writes after the hot path, once for all branches with the same."""
        self.out += (head(branch) if isinstance(branch, str) else branch) + b"\0\0\0\0"
        self._cold.append((len(self.out), emit))

    def finish(self) -> bytes:
        """Write the cold parts and return all bytes."""
        written: dict[Callable[[], None], int] = {}
        while self._cold:
            at, emit = self._cold.pop(0)
            start = written.setdefault(emit, len(self.out))
            self.out[at - 4 : at] = struct.pack("<i", start - at)
            if start == len(self.out):
                emit()
        return bytes(self.out)

    def action(self, action: Action, clobbers: Clobbers, push_target: Callable[[int], bytes] | None = None) -> None:
        """Append the code of one action; ``push_target(address)`` is code that pushes where control goes."""
        if action.bank.processes is not None:
            from anyprobe.splice.codegen.processes import emit_if_chosen

            of_all = action._replace(bank=replace(action.bank, processes=None))
            emit_if_chosen(self, action.bank.processes, lambda: self.action(of_all, clobbers, push_target))
            return
        if action.kind is ActionKind.COUNT:
            self._count(action, clobbers)
            return
        if action.kind is ActionKind.COUNT_STACKLESS:
            self._count_without_stack(action, clobbers)
            return
        if action.kind is ActionKind.FLAG:
            self.flag(action)
            return
        if action.kind in REPLACING:
            self._replace_return(action)
            return
        if action.kind is ActionKind.VIEW:
            self.call_view(action)
            return
        if action.kind is ActionKind.HANDLER:
            if action.inline is None or not action.inline.emit(self, action, clobbers):
                self.call_handler(action, push_target)
            return
        routines = action.bank.routines
        assert routines is not None
        target = {
            ActionKind.ENTER: routines.enter,
            ActionKind.LEAVE: routines.leave,
            ActionKind.LEAVE_TAIL: routines.leave_tail,
            ActionKind.LEAVE_CALLER: routines.leave_caller,
            ActionKind.LEAVE_SWITCH: routines.leave_switch,
            ActionKind.UNWIND: routines.unwind,
            ActionKind.ARRIVE: routines.arrive,
        }[action.kind]
        assert target, "a bank without timing records"
        if action.bank.stackless:
            self._jump(target, action.offset)
        else:
            self._call(target, action.offset)

    def _replace_return(self, action: Action) -> None:
        trampolines = action.bank.trampolines
        assert trampolines is not None
        if action.kind is ActionKind.ENTER_RETURN:
            self._call(trampolines.enter, action.offset)
        elif action.kind is ActionKind.HANDLE_RETURN:
            self._call(trampolines.enter_counted, action.bank.at_return - trampolines.stubs | HANDLED)
        else:
            self._call(trampolines.enter_counted, action.offset | COUNTED)

    def call_handler(self, action: Action, push_target: Callable[[int], bytes] | None = None) -> None:
        """Append the call of a handler."""
        if action.bank.per_processor:
            self._call_in_kernel(action)
            return
        after: list[int] = []
        if action.looks_for_room:
            self._look_for_room(action, after)
        if action.takes_target:
            assert push_target is not None
            self.code(_BELOW)
            self.raw(push_target(self.here))
            self.argument("push argument", action.offset)
            self._routine(action.bank.handler)
            self.code("lea rsp, [rsp+144]")
        else:
            self._call(action.bank.handler, action.offset)
        self.tell_place(action)
        after.append(self.here)

    def _look_for_room(self, action: Action, after: list[int]) -> None:
        """Append: without room on the goroutine's stack, whose lowest address r14 points to, the hit is missed.

        ``after`` is to have where the call ends by the time the code is finished.
        """
        from anyprobe.splice.codegen.handlers.call import MISSED
        from anyprobe.splice.codegen.handlers.spare_stacks import ROOM

        self.value("lea rsp, [rsp+room]", -ROOM)
        self.code("cmp rsp, [r14]")
        self.value("lea rsp, [rsp+room]", ROOM)

        def missed() -> None:
            self.relative("lock inc qword [rel missed]", action.bank.near + action.offset + MISSED)
            self.relative("jmp after", after[0])

        self.cold("jb missed", missed)

    def _call_in_kernel(self, action: Action) -> None:
        """Append the call of a kernel's handler, with its argument if it has one: there is no red zone."""
        if action.offset >= 0:
            self.argument("push argument", action.offset)
        self._routine(action.bank.handler)
        if action.offset >= 0:
            self.value("lea rsp, [rsp+pushed]", 8)
        self.tell_place(action)

    def handle_return(self, action: Action) -> None:
        """Append what runs a handler where a function has returned, and goes on to its caller."""
        self.call_handler(action)
        self.code("ret")

    def call_handlers(self, actions: Sequence[Action], routine: int) -> None:
        """Append one call of several handlers."""
        self.code(_BELOW)
        for action in reversed(actions):
            self.argument("push argument", action.offset)
        self._routine(routine)
        self.value("lea rsp, [rsp+pushed]", 128 + 8 * len(actions))
        self.tell_place(next((action for action in actions if action.function), actions[0]))

    def tell_place(self, action: Action) -> None:
        """Append what a handler asks of its place, in operands of instructions that do nothing."""
        if action.function:
            if not all(abs(each - self.here) < _SIGNED_32 - 16 for each in (action.ip, action.function)):
                why = "a handler asks for the function, which is more than 2 GiB from its caller's code"
                raise UndisplaceableError(Refusal(Reason.NO_ROOM_NEARBY, action.function, why))
            self.relative("nop dword [rel instruction]", action.ip)
            self.relative("nop dword [rel function]", action.function)

    def handle_fault(self, action: Action) -> None:
        """Append the call of a handler in a landing, where the number of the trap is on the stack already."""
        self.argument("push argument", action.offset)
        self._routine(action.bank.handler)
        self.value("lea rsp, [rsp+pushed]", 8)  # as long as after other calls
        self.tell_place(action)

    def check_view(self, action: Action) -> None:
        """Append the jump to the check of whether there is anything for the signal view to do; it comes back by r13."""
        self.relative("lea r13, [rel checked]", self.here + len(head("lea r13, [rel checked]") + head("jmp check")) + 8)
        self._routine(action.bank.view_check, "jmp")

    def call_view(self, action: Action) -> None:
        """Append the call of the signal view."""
        self._call(action.bank.view, action.offset)

    def _call(self, routine: int, argument: int) -> None:
        self.code(_BELOW)
        self.argument("push argument", argument)
        self._routine(routine)
        self.code("lea rsp, [rsp+136]")

    def _jump(self, routine: int, argument: int) -> None:
        """Append a jump to a routine that comes back, by r13, to an instruction that does nothing but tell it more."""
        self.relative("lea r13, [rel after]", self.here + _STACKLESS_BYTES)
        self.relative("jmp routine", routine)
        self.argument("nop dword [rax+argument]", argument)

    def flag(self, action: Action) -> None:
        """Append the setting of a flag: ``mov byte [rel flag], 1``, whose last byte is after its displacement."""
        place = len(self.out) + len(FLAG)
        target = action.bank.near + action.offset - len(_FLAG_END)
        self.displacements.append((place, target))
        self.out += FLAG + struct.pack("<i", target - self.address - place - 4) + _FLAG_END

    def count_by_routine(self, action: Action) -> None:
        """Append a counter for threads that may have no block; flags may be overwritten."""
        assert action.bank.routines is not None
        after = self.here + _COUNTING.size - 8
        self.out += _COUNTING.pack(
            head("lea rsp, [rsp-128]; push argument"), action.offset,
            head("call routine"), action.bank.routines.count - after,
            machine_code("lea rsp, [rsp+136]"),
        )  # fmt: skip

    def _count(self, action: Action, clobbers: Clobbers) -> None:
        """Append a counter, saving only what is live: nothing, one register, or register and flags."""
        if action.bank.per_processor:
            self._count_of_processor(action, clobbers)
            return
        scratch = clobbers.scratch()
        atomic = action.bank.slot is None
        if not clobbers.flags:
            self._count_keeping_flags(action, clobbers.registers)
        elif atomic or scratch is not None:
            self._increment(action, scratch or "rax")
        else:
            self.code(_BELOW + "; push rax")
            self._increment(action, "rax", is_below=True)
            self.code("pop rax; " + _BACK)

    def _count_without_stack(self, action: Action, free: Clobbers) -> None:
        """Append a counter that has nothing to save, and counts a thread's first hits with those of all threads."""
        if not counts_without_stack(free):
            detail = "nothing may be written to the stack, and no register is free to count with"
            raise UndisplaceableError(Refusal(Reason.ALTERNATE_STACK, self.address, detail))
        self._count(action, free)

    def _count_of_processor(self, action: Action, clobbers: Clobbers) -> None:
        """Append a counter of the processor: one instruction counts, which no interrupt divides.

        A kernel has no red zone, so its stack may be used as it is.
        """
        counter = action.bank.near + action.offset
        if not clobbers.flags:
            self.code("pushfq")
        if counter < _SIGNED_32:
            self.value("inc qword gs:[counter]", counter)
        else:
            dead = clobbers.scratch()
            scratch = dead or "rax"
            self.code("" if dead else "push rax")
            asm = Assembler()
            asm.code(f"mov {scratch}, counter; inc qword gs:[{scratch}]", counter=counter)
            self.raw(asm.finish(self.here))
            self.code("" if dead else "pop rax")
        if not clobbers.flags:
            self.code("popfq")

    def _count_keeping_flags(self, action: Action, dead: tuple[str, ...]) -> None:
        """Append a counter with the flags kept in rax; live registers are kept in dead ones, else on the stack."""
        spare = [name for name in SCRATCH_ORDER if name in dead and name != "rax"]
        scratch = spare.pop(0) if spare and action.bank.slot is not None else None
        push_scratch = scratch is None and action.bank.slot is not None
        keeper = spare[0] if spare and "rax" not in dead else None
        push_rax = keeper is None and "rax" not in dead
        if push_rax or push_scratch:
            self.code(_BELOW + "; push rax" * push_rax + "; push rcx" * push_scratch)
        if keeper is not None:
            self.code(f"mov {keeper}, rax")
        self.code("lahf; seto al")
        self._increment(action, scratch or "rcx", is_below=push_rax or push_scratch)
        self.code("add al, 0x7f; sahf")
        if keeper is not None:
            self.code(f"mov.s rax, {keeper}")
        if push_rax or push_scratch:
            self.code("pop rcx; " * push_scratch + "pop rax; " * push_rax + _BACK)

    def _increment(self, action: Action, scratch: str, *, is_below: bool = False) -> None:
        """Append the increment itself; flags and ``scratch`` may be overwritten. ``is_below``: the red zone."""
        bank = action.bank
        if bank.slot is None:
            self.relative("lock inc qword [rel counter]", bank.near + action.offset)
            return
        self.value(f"mov {scratch}, fs:[slot]", bank.slot)
        self.relative(f"test [rel gate], {scratch}", bank.gate)
        resume: list[int] = []
        self.cold("jz first_hit", lambda: self._first_hit(action, resume[0], scratch, is_below=is_below))
        self.argument(f"inc qword [{scratch}+counter]", action.offset)
        resume.append(self.here)

    def _first_hit(self, action: Action, resume: int, scratch: str, *, is_below: bool) -> None:
        assert action.bank.routines is not None
        if action.kind is ActionKind.COUNT_STACKLESS:
            self.relative(f"mov {scratch}, [rel own]", action.bank.gate + CHILDREN)
            asm = Assembler()
            asm.code(
                f"test {scratch}, {scratch}; jnz short known; mov {scratch}, shared\nknown:", shared=action.bank.near
            )
            self.raw(asm.finish(self.here))
            self.argument(f"lock inc qword [{scratch}+counter]", action.offset)
        elif is_below:  # once is enough: a stack may have no more room than that
            self.argument("push argument", action.offset)
            self._routine(action.bank.routines.count)
            self.code("lea rsp, [rsp+8]")
        else:
            self._call(action.bank.routines.count, action.offset)
        self.relative("jmp resume", resume)


class UndisplaceableError(Exception):
    """An instruction has no displaced form at this place; carries the refusal."""

    def __init__(self, refusal: Refusal) -> None:
        """Keep the refusal."""
        super().__init__(str(refusal))
        self.refusal = refusal
