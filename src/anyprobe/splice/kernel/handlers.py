"""The generated routine between patches of a kernel and a compiled handler.

A patch counts the hit and calls the routine. ``[rsp]`` is the return address then, and above it, as a kernel has no red
zone, is the site's own stack; in between stands an argument where the handler needs one. Every register and flag is
preserved.

While the handler runs, the thread stays on its processor: the count of ``preempt_disable`` is raised. A task that has
waited for the processor meanwhile gets it afterwards. So the thread has the row of the processor for itself but for
interrupts, which change words by one instruction each, as signal handlers do in a process. A handler that calls
functions of the kernel, such as those that read memory, might be hit in one of these: it runs once at a time on a
processor and in each kind of context (task, softirq, interrupt). A hit inside is counted as missed, by its argument.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from anyprobe.core.code import Input, InputKind, NativeCode
from anyprobe.core.errors import InternalError, UnsupportedTarget
from anyprobe.isa.assemble import Assembler
from anyprobe.isa.registers import NUMBERS
from anyprobe.splice.codegen.handlers.filling import Filling
from anyprobe.splice.kernel import call_data

READ, READ_USER = "copy_from_kernel_nofault", "copy_from_user_nofault"
READ_TEXT, READ_USER_TEXT = "strncpy_from_kernel_nofault", "strncpy_from_user_nofault"
CLOCK = "ktime_get_mono_fast_ns"
RESCHEDULE = "preempt_schedule_notrace_thunk"
ON_ITS_WAY = frozenset({"preempt_schedule_notrace", RESCHEDULE})
"""Functions in which no handler may run: it would call them again and again."""
FUNCTIONS = (READ, READ_USER, READ_TEXT, READ_USER_TEXT, CLOCK)
"""Functions of the kernel that handlers are given values by; each may be called in every context but an NMI."""
_READING = frozenset({"read", "read_text"})
"""Routines that call them."""
STACK_LIMIT = 1024
"""Bytes of a kernel's stack that a handler may take, of sixteen thousand that all callers share."""
PLACE = {"ip": 3, "func": 10}
"""Where, from the end of a patch's call on, the displacement stands by which the patch tells an address."""
POP_BYTES = 8
"""Bytes of the instruction that takes the argument from the stack, where there is one."""
_ALWAYS_SAVED = ("rax", "flags", "rdi")
"""What every call changes; ``flags`` are kept as ``lahf`` and ``seto`` have them."""
_USER_ACCESS = 1 << 18
"""The flag AC: user memory may be accessed, which is no state to be preempted in."""
_INTERRUPT, _SOFT = 0x00FF0000, 1
"""Bits of the count of ``preempt_disable``: in an interrupt or NMI; of its second byte: in a softirq."""
_COMM_BYTES = 16
_BY_CALL = ("rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10")
"""What a function of the kernel may change and a handler's routine may not."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """Where in a kernel is what handlers ask for: offsets from ``gs``, offsets in structures, functions."""

    preempt_count: int
    processor: int
    """Where the number of the processor is."""
    task: int
    """Where the address of the running task's structure is."""
    members: Mapping[str, int] = field(default_factory=dict)
    """Offsets in ``task_struct`` (``pid``, ``tgid``, ``comm``, ``cred``) and ``cred`` (``uid``, ``gid``)."""
    functions: Mapping[str, int] = field(default_factory=dict)
    """Addresses of those of ``FUNCTIONS`` that there are."""
    nanoseconds: int = 0
    """Nanoseconds per tick of the TSC, times two to the 32; 0: the kernel's clock is called."""
    since: int = 0
    """What is added to that for the kernel's monotonic clock."""
    reschedule: int = 0
    """Address of what gives the processor to a task that waits, and preserves all registers; 0: none is needed."""


@dataclass(frozen=True, slots=True)
class KernelHandler:
    """A compiled handler, and where in the kernel what it needs is."""

    code: NativeCode
    storages: tuple[int, ...] = ()
    """Addresses of its storages."""
    misses: int = 0
    """Address of the counters of what goes wrong."""
    guard: int = 0
    """Offset from ``gs`` of three bytes: whether a handler runs in a task, a softirq, an interrupt."""
    lost: int = 0
    """Address of the first counter of hits that ran no handler, to which the argument is added."""
    calls: int = 0
    """Address of the data of calls under way; 0: it has none."""
    enters: bool = False
    """Whether calls begin where it runs."""
    calls_clock: bool = False
    """Whether the kernel's clock has to be called for ``ctx.now``."""
    calls_at_once: int = 0
    """How many calls are followed at a time; 0: as many as there is room for."""

    @property
    def guarded(self) -> bool:
        """Whether it calls functions of the kernel, so that it may be hit inside itself."""
        asks = any(each.kind is InputKind.CONTEXT and each.name == "now" for each in self.code.inputs)
        reads = any(each.kind is InputKind.ROUTINE and each.name in _READING for each in self.code.inputs)
        return reads or (asks and self.calls_clock)

    @property
    def asks_place(self) -> bool:
        """Whether it asks where it runs, so that patches say so after the call."""
        return any(each.kind is InputKind.CONTEXT and each.name in PLACE for each in self.code.inputs)

    @property
    def bytes(self) -> int:
        """An upper bound of the size of the routine and the handler."""
        return len(self.code.code) + 64 * len(self.code.inputs) + 1024


def assemble(kernel: Kernel, handler: KernelHandler, address: int) -> bytes:
    """Return the code of a routine and its handler at an address; the routine comes first.

    Raises:
        UnsupportedTarget: the handler takes too much of the stack, or asks for what this kernel does not have.
    """
    if handler.code.vectors:
        raise UnsupportedTarget("handlers in the kernel compute with whole numbers")
    if handler.code.stack > STACK_LIMIT:
        raise UnsupportedTarget(
            f"the handler takes {handler.code.stack} bytes of the kernel's stack, more than {STACK_LIMIT}"
        )
    return _Writer(kernel, handler).run(address)


class _Writer(Filling):
    def __init__(self, kernel: Kernel, handler: KernelHandler) -> None:
        self.asm = Assembler()
        self._kernel, self._handler, self._code = kernel, handler, handler.code
        self._guarded = handler.guarded
        self._saved = self._registers()
        self._size = 8 * len(handler.code.inputs)
        self._extra = 8 * self._guarded
        """Bytes between the words and the saved registers: all flags, of which functions of the kernel may clear AC."""

    def _registers(self) -> Sequence[str]:
        changed = {name for name in self._code.clobbers if name in NUMBERS}
        if self._guarded:
            changed.add("rbx")
        for each in self._code.inputs:
            if each.kind is InputKind.CONTEXT and each.name == "now":
                changed |= {"rcx", "rdx", "rsi", "r8", "r9", "r10", "r11"}
            elif each.kind is InputKind.ROUTINE:
                changed.add("r11")
            elif each.kind is InputKind.INSTANCE:
                changed |= call_data.CHANGED
        return (*_ALWAYS_SAVED, *sorted(changed - set(_ALWAYS_SAVED), key=NUMBERS.__getitem__))

    def run(self, address: int) -> bytes:
        asm, kernel = self.asm, self._kernel
        asm.code("push rax; lahf; seto al; push rax")
        for name in self._saved[2:]:
            asm.code(f"push {name}")
        if self._guarded:
            asm.code("pushfq")
        asm.code("inc dword gs:[count]", count=kernel.preempt_count)
        if self._guarded:
            self._guard()
        asm.code("sub rsp, size", size=self._size)
        # what needs registers for itself comes last: the others are still where they were
        order = sorted(enumerate(self._code.inputs), key=lambda item: _turn(item[1]))
        for index, each in order:
            self._word(index, each)
        asm.code("mov rdi, rsp; call handler")
        if self._handler.calls and not self._handler.enters:
            self._end_of_call()
        asm.label("over")
        asm.code("add rsp, size", size=self._size)
        if self._guarded:
            asm.code("mov byte gs:[rbx], 0")
        asm.label("out")
        asm.code("dec dword gs:[count]", count=kernel.preempt_count)
        if kernel.reschedule:
            asm.code("jz waited_for\n resumed:")  # the count has a bit that is 0 if another task waits
        if self._guarded:
            asm.code("popfq")
        for name in reversed(self._saved[2:]):
            asm.code(f"pop {name}")
        asm.code("pop rax; add al, 0x7f; sahf; pop rax; ret")
        if kernel.reschedule:
            asm.code(
                f"""
                waited_for:
                    pushfq; test dword [rsp], {_USER_ACCESS}; lea rsp, [rsp+8]; jnz resumed
                    call reschedule; jmp resumed
                """,
                reschedule=kernel.reschedule,
            )
        if self._guarded:
            self._rare()
        names = {each.name for each in self._code.inputs if each.kind is InputKind.ROUTINE}
        _Routines(asm, kernel).emit(names)
        asm.code("int3\n" * (-len(asm) % 16))
        asm.label("handler")
        asm.raw(self._code.code, "the handler")
        return asm.finish(address)

    # -- one at a time

    def _guard(self) -> None:
        """Emit: rbx = the byte of this context, which is taken."""
        self.asm.code(
            f"""
                mov rbx, guard; mov eax, gs:[count]
                test eax, {_INTERRUPT}; jnz interrupt
                test ah, {_SOFT}; jnz soft
            level:
                cmp byte gs:[rbx], 0; jne nested
                mov byte gs:[rbx], 1
            """,
            guard=self._handler.guard,
            count=self._kernel.preempt_count,
        )

    def _rare(self) -> None:
        self.asm.code(
            """
            interrupt:
                inc rbx
            soft:
                inc rbx; jmp level
            nested:
                mov rbx, lost; mov rax, [rsp+argument]
                lock inc qword [rbx+rax]; jmp out
            """,
            lost=self._handler.lost,
            argument=self._extra + 8 * len(self._saved) + 8,
        )

    # -- words

    @property
    def _addresses(self) -> KernelHandler:
        return self._handler

    def _word(self, index: int, each: Input) -> None:
        if each.written:
            raise UnsupportedTarget("handlers in the kernel change nothing of what it computes")
        super()._word(index, each)

    def _unwinding(self) -> int:
        raise UnsupportedTarget(f"there is no {InputKind.UNWINDING} in the kernel")

    def _thread_number(self) -> None:
        self.asm.code("mov eax, gs:[processor]; inc eax", processor=self._kernel.processor)

    def _saved_place(self, name: str) -> int:
        """Return where a saved register is, from the words on."""
        return self._size + self._extra + 8 * (len(self._saved) - 1 - self._saved.index(name))

    @property
    def _site(self) -> int:
        """Where the site's stack pointer points, from the words on; the return address is before the argument."""
        return self._size + self._extra + 8 * len(self._saved) + (16 if self._guarded else 8)

    def _load(self, register: str, place: int) -> None:
        self.asm.code(f"mov {register}, [rsp+place]", place=place)

    def _register(self, index: int, name: str) -> None:
        if name == "rsp":
            self.asm.code("lea rax, [rsp+site]", site=self._site)
        elif name in {"rax", "rbx", "flags"} and name in self._saved:
            self._load("rax", self._saved_place(name))
        elif name in NUMBERS:
            self._set(index, name)
            return
        else:
            raise UnsupportedTarget(f"there is no register {name} in the kernel's handlers")
        self._set(index, "rax")

    def _parameter(self, index: int, place: str) -> None:
        if place.startswith("saved+"):  # of a system call, whose function is passed the saved registers
            self.asm.code("mov rax, [rdi+place]", place=int(place.removeprefix("saved+")))
        elif place.startswith("stack+"):
            self._load("rax", self._site + int(place.removeprefix("stack+")))
        else:
            self._register(index, place)
            return
        self._set(index, "rax")

    def _context(self, index: int, name: str) -> None:
        asm, kernel = self.asm, self._kernel
        match name:
            case "retval":
                self._load("rax", self._saved_place("rax"))
            case "caller":
                self._load("rax", self._site)
            case "cpu":
                asm.code("mov eax, gs:[processor]", processor=kernel.processor)
            case "tid" | "pid":
                self._task()
                asm.code("mov eax, [rax+member]", member=self._member("pid" if name == "tid" else "tgid"))
            case "uid" | "gid":
                self._task()
                asm.code("mov rax, [rax+cred]", cred=self._member("cred"))
                asm.code("mov eax, [rax+member]", member=self._member(name))
            case "now":
                self._now()
            case "ip" | "func":
                at = PLACE[name] + POP_BYTES * self._guarded
                self._load("rax", self._size + self._extra + 8 * len(self._saved))
                asm.code(f"movsxd rdi, dword [rax+{at}]; lea rax, [rax+rdi+{at + 4}]")
            case _:
                raise UnsupportedTarget(f"splices tell no ctx.{name}: fentry and kprobe do")
        self._set(index, "rax")

    def _task(self) -> None:
        self.asm.code("mov rax, gs:[task]", task=self._kernel.task)

    def _member(self, name: str) -> int:
        if name not in self._kernel.members:
            raise UnsupportedTarget(f"the kernel's types do not tell where a task's {name} is")
        return self._kernel.members[name]

    def _now(self) -> None:
        asm, kernel = self.asm, self._kernel
        if kernel.nanoseconds:
            asm.code(
                """
                    rdtsc; shl rdx, 32; or rax, rdx
                    mov rdx, nanoseconds; mul rdx; shrd rax, rdx, 32
                    mov rdx, since; add rax, rdx
                """,
                nanoseconds=kernel.nanoseconds,
                since=kernel.since & (1 << 64) - 1,
            )
        else:
            asm.code("call clock", clock=function_of(kernel, CLOCK))

    # -- the data of calls

    def _instance(self) -> None:
        if not self._handler.calls:
            raise InternalError("a handler of calls without their data")
        self.asm.code("lea rdx, [rsp+site]", site=self._site)
        if self._handler.enters:
            call_data.emit_claim(self.asm, self._handler.calls, "over", self._handler.calls_at_once)
        else:
            call_data.emit_find(self.asm, self._handler.calls, "over")

    def _end_of_call(self) -> None:
        index = next((at for at, each in enumerate(self._code.inputs) if each.kind is InputKind.INSTANCE), None)
        if index is not None:
            self._load("rax", 8 * index)
            call_data.emit_release(self.asm, self._handler.calls, self._handler.calls_at_once)


def _turn(each: Input) -> int:
    """Return when a word's turn is: what asks functions comes last, what changes registers before, the rest first."""
    if each.kind is InputKind.CONTEXT:
        return {"now": 3, "ip": 2, "func": 2}.get(each.name, 0)
    return 1 if each.kind is InputKind.INSTANCE else 0


def function_of(kernel: Kernel, name: str) -> int:
    """Return the address of a function of the kernel; raise ``UnsupportedTarget`` where there is none."""
    if name not in kernel.functions:
        raise UnsupportedTarget(f"this kernel has no {name}")
    return kernel.functions[name]


class _Routines:
    """What handlers call: ``rdi``, ``rsi`` and ``rdx`` are arguments, all registers but ``rax`` and ``r11`` stay."""

    def __init__(self, asm: Assembler, kernel: Kernel) -> None:
        self._asm, self._kernel = asm, kernel

    def emit(self, names: set[str]) -> None:
        for name in sorted(names):
            match name:
                case "read":
                    self._by_half("read", READ, READ_USER)
                case "read_text":
                    self._text()
                case "comm":
                    self._comm()
                case _:
                    raise UnsupportedTarget(f"there is no {name} in the kernel's handlers")

    def _by_half(self, name: str, kernel: str, user: str) -> None:
        """Emit a routine that calls one of two functions, by the half of the addresses that rsi is in."""
        asm = self._asm
        asm.label(name)
        for each in _BY_CALL:
            asm.code(f"push {each}")
        asm.code(
            f"""
                test rsi, rsi; js {name}_kernel
                call user; jmp {name}_out
            {name}_kernel:
                call kernel
            {name}_out:
            """,
            user=function_of(self._kernel, user),
            kernel=function_of(self._kernel, kernel),
        )
        for each in reversed(_BY_CALL):
            asm.code(f"pop {each}")
        asm.code("ret")

    def _text(self) -> None:
        """Emit ``read_text(to, from, limit)``: the length without the NUL, which is written; negative for none."""
        self._asm.code("""
        read_text:
            push rdx; inc rdx; call read_text_bytes; pop rdx
            dec rax; ret
        """)
        self._by_half("read_text_bytes", READ_TEXT, READ_USER_TEXT)

    def _comm(self) -> None:
        """Emit ``comm(to)``: the task's name of at most 15 bytes and zeros up to 16; its length."""
        comm = self._kernel.members.get("comm")
        if comm is None:
            raise UnsupportedTarget("the kernel's types do not tell where a task's name is")
        self._asm.code(
            f"""
            comm:
                mov rax, gs:[task]
                mov r11, [rax+comm]; mov [rdi], r11
                mov r11, [rax+comm+8]; mov [rdi+8], r11
                xor eax, eax
            comm_scan:
                cmp byte [rdi+rax], 0; je comm_out
                inc eax; cmp eax, {_COMM_BYTES}; jne comm_scan
            comm_out:
                ret
            """,
            task=self._kernel.task,
            comm=comm,
        )
