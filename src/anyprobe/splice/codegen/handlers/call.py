"""The generated routine between patches and a compiled handler: it fills in what the handler wants to know.

Patches call it as they call all routines: the stack is ``[rsp]`` return address, ``[rsp+8]`` argument (the offset of
the hook's two counters: hits, missed hits), and the site's own stack pointer is ``rsp + 144``. Every register and flag
is preserved, but for those that the handler is to change.

A hit inside a handler runs no handler and is counted as missed: while one runs, the thread's block holds its stack
pointer. That is forgotten once the stack is above it (a signal handler that a handler was interrupted by has left with
``siglongjmp``), or after ``PATIENCE`` misses in a row, if the stack has only ever been below it since. Threads without
a block (fork children, where nothing is timed) run handlers unguarded, with number 0: what handlers change is safe
under interruption.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from anyprobe.core.code import SKIP, Input, InputKind
from anyprobe.core.errors import InternalError
from anyprobe.data.layout import BLOCK_GUARD, BLOCK_REFUSED, FORKED
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen.handlers import context_routines, spare_stacks, stack_move
from anyprobe.splice.codegen.handlers.facts import (
    INSTANCE_DATA,
    PLACE,
    TID_OFFSET,
    HandlerFacts,
)
from anyprobe.splice.codegen.handlers.memory_routines import emit_memory_routines
from anyprobe.splice.codegen.handlers.words import (
    emit_asked_tid,
    emit_errno,
    emit_instances_number,
    emit_nanoseconds,
    emit_own_instance,
    emit_process_number,
    emit_set_errno,
    emit_shared_instance,
    emit_thread_number,
    saved_by,
)
from anyprobe.splice.codegen.instance_pool import emit_claim, emit_decline, emit_find, emit_release
from anyprobe.splice.codegen.routines import RoutineFacts, emit_acquire
from anyprobe.splice.codegen.stub_directory import emit_true_caller

_PASSED_BY = 144
"""From the routine's return address to the site's stack pointer."""
_IN_REGISTERS = frozenset({InputKind.PARAMETER, InputKind.REGISTER})
_CHANGED = frozenset({"rax", "rbx"})
"""Registers that are no longer the program's when the words are filled in."""
PATIENCE = 1 << 16
"""Misses in a row after which the handler that causes them is taken to be gone; if it is not, no harm is done."""
MISSED = 8
"""Where hits that ran no handler are counted, behind the hits."""


class CallWriter:
    """Writes one routine, which calls one handler, or several by turns (``handlerchain``)."""

    def __init__(self, facts: RoutineFacts, handlers: Sequence[HandlerFacts]) -> None:
        """Begin with nothing."""
        self.asm = Assembler()
        handler = handlers[0]
        self._facts, self._handler, self._handlers = facts, handler, handlers
        self._turn = 0
        """Of the handler that is written just now."""
        self._numbers = 0
        code = handler.code
        self._elsewhere = bool(facts.near and handler.stacks)
        """Whether it runs on a stack of its own."""
        self._strings, self._aligned = "df" in code.clobbers, code.vectors or self._elsewhere
        self._saved = saved_by([each.code for each in handlers], based=self._aligned)
        self._passed_by = _PASSED_BY + 8 * (handler.takes_target or handler.takes_trap or len(handlers) - 1)
        self._base, self._pushed = ("rbp", 0) if self._aligned else ("rsp", 8 * self._strings)

    def run(self, address: int) -> bytes:
        """Return the code at an address."""
        asm, facts, handler = self.asm, self._facts, self._handler
        if not facts.near:
            emit_acquire(asm, facts)
        asm.label("handler_call")
        if handler.moves_stack:
            asm.code(stack_move.ROOM)
        asm.code("push rax; lahf; seto al; push rax")
        for name in self._saved[2:]:
            asm.code(f"push {name}")
        if self._aligned:
            asm.code("mov rbp, rsp")
        if self._strings:
            asm.code("pushfq; cld")
        if self._elsewhere:
            spare_stacks.emit_take(asm, handler.stacks)
        (self._without_block if facts.near else self._with_block)()
        self._call()
        for _ in self._turns(first=1):
            self._next()
        if handler.moves_stack:
            stack_move.emit_frame(asm, self._base, self._above + self._pushed, self._passed_by - 8)
            self._end("moved", stack_move.LEAVE)
        self._end("done", stack_move.RETURN if handler.moves_stack else "ret")
        if handler.redirects and handler.moves_stack:
            asm.label("redirected")
            stack_move.emit_frame(asm, self._base, self._above + self._pushed, 0)
            self._end("leave", stack_move.LEAVE)
        elif handler.redirects:
            asm.label("redirected")
            # the return address is where to go, and the stack pointer becomes the site's
            self._end("leave", f"ret {self._passed_by - 8}")
        if not facts.near:
            self._rare()
        if self._elsewhere:
            self._without_stack()
        inputs = [each for one in self._handlers for each in one.code.inputs]
        names = frozenset(each.name for each in inputs if each.kind is InputKind.ROUTINE)
        if handler.skips:
            asm.label(SKIP)
            asm.code("ret")
        names -= {SKIP}
        if any(each.pool and each.enters and each.system_calls for each in self._handlers):
            names |= {"read"}
        known = next((each.reading for each in self._handlers if each.calls_routines), handler.reading)
        reading = replace(known, slot=facts.slot, gate=facts.gate)
        if facts.near and not self._elsewhere:  # nothing tells a fork child from its parent
            reading = replace(reading, pid=0)
        emit_memory_routines(asm, names - context_routines.NAMES, reading)
        context_routines.emit_context_routines(asm, names & context_routines.NAMES, reading)
        for _ in self._turns():
            asm.code("int3\n" * (-len(asm) % 16))
            asm.label(self._own("handler"))
            asm.raw(self._handler.code.code, "the handler")
        return asm.finish(address)

    def _with_block(self) -> None:
        """Emit: rbx = the thread's block, and the hit is counted there; a hit inside a handler goes elsewhere."""
        asm = self.asm
        asm.code(
            f"""
                mov rbx, fs:[slot]; mov rax, gate; test [rax], rbx; jz first
            block:
                mov rax, [rbx+{BLOCK_GUARD}]; cmp rsp, rax; jb nested
            free:
                mov [rbx+{BLOCK_GUARD}], rsp
            """,
            slot=self._facts.slot,
            gate=self._facts.gate,
        )
        self._argument()
        asm.code("inc qword [rbx+rax]")

    def _without_block(self) -> None:
        """Emit: rbx = 0, and the hit is counted for all threads."""
        self.asm.code("xor ebx, ebx; mov rdi, shared", shared=self._facts.shared)
        self._argument()
        self.asm.code("lock inc qword [rdi+rax]")
        self._load("rdi", self._place_of("rdi"))

    def _turns(self, first: int = 0) -> Iterator[None]:
        """Have each handler's turn come; in the end it is that of the first one again."""
        for turn in range(first, len(self._handlers)):
            self._turn, self._handler = turn, self._handlers[turn]
            yield
        self._turn, self._handler = 0, self._handlers[0]

    def _own(self, label: str) -> str:
        """Return the label as it is called in the turn of this handler."""
        return f"{label}_{self._turn}" if self._turn else label

    def _next(self) -> None:
        """Emit: another handler's turn; everything but its words is as it was for the first one."""
        asm = self.asm
        asm.code(f"test rbx, rbx; jz {self._own('shared')}")
        self._argument()
        asm.code("inc qword [rbx+rax]")
        self._call()

    def _end(self, label: str, leave: str) -> None:
        """Emit: the handler is over, everything is as it was. ``label``: where nothing is to be said to the block."""
        asm = self.asm
        if self._elsewhere:
            spare_stacks.emit_give_back(asm)
        else:
            asm.code(
                f"""
                    test rbx, rbx; jz {label}
                    mov qword [rbx+{BLOCK_GUARD}], 0
                    mov dword [rbx+{BLOCK_REFUSED}], 0
                """,
            )
        asm.label(label)
        if self._aligned:
            asm.code("lea rsp, [rbp-8]" if self._strings else "lea rsp, [rbp]")
        if self._strings:
            asm.code("popfq")
        for name in reversed(self._saved[2:]):
            asm.code(f"pop {name}")
        asm.code(f"pop rax; add al, 0x7f; sahf; pop rax; {leave}")

    def _without_stack(self) -> None:
        """Emit: no stack is free, so the hit is missed."""
        self.asm.label("no_stack")
        self.asm.code("mov rdi, shared", shared=self._facts.shared)
        self._argument()
        self.asm.code(f"lock inc qword [rdi+rax+{MISSED}]; jmp done")

    def _rare(self) -> None:
        asm, facts = self.asm, self._facts
        asm.code(f"""
        nested:
            inc dword [rbx+{BLOCK_REFUSED}]
            cmp dword [rbx+{BLOCK_REFUSED}], {PATIENCE}; jae free
        """)
        for _ in self._turns():
            self._argument()
            asm.code(f"inc qword [rbx+rax+{MISSED}]")
        asm.code("""
            jmp done
        first:
            push rcx; push rdx
            call acquire
            mov rbx, rcx; pop rdx; pop rcx
            test rbx, rbx; jnz block
        """)
        for _ in self._turns():
            asm.code(
                f"""
                {self._own("shared")}:
                    mov rdi, shared
                """,
                shared=facts.shared,
            )
            self._argument()
            asm.code("lock inc qword [rdi+rax]")
            self._load("rdi", self._place_of("rdi"))
            asm.code(f"jmp {self._own('run')}")

    def _argument(self) -> None:
        """Emit: rax = the offset of the counters of the handler whose turn it is."""
        self._load("rax", self._above + 8 + 8 * self._turn + self._pushed)

    def _load(self, register: str, offset: int) -> None:
        """Emit: a register gets the word at an offset from the base."""
        self.asm.code(f"mov {register}, [{self._base}+offset]", offset=offset)

    def _store(self, offset: int) -> None:
        """Emit: the word at an offset from the base becomes rax."""
        self.asm.code(f"mov [{self._base}+offset], rax", offset=offset)

    def _place_of(self, name: str) -> int:
        """Return where a saved register is, relative to the base."""
        return 8 * (len(self._saved) - 1 - self._saved.index(name)) + self._pushed

    @property
    def _above(self) -> int:
        """Return how far above the saved registers the return address is."""
        return 8 * len(self._saved) + stack_move.ROOM_BYTES * self._handler.moves_stack

    def _address_of_site(self, register: str) -> None:
        """Emit: a register gets the site's stack pointer."""
        self.asm.code(f"lea {register}, [{self._base}+site]", site=self._site)

    @property
    def _site(self) -> int:
        """Where the site's stack pointer points, relative to the base."""
        return self._above + self._passed_by + self._pushed

    def _call(self) -> None:
        """Emit: fill in the words, call the handler, take over what it changes. rbx = the block, or 0."""
        asm, code = self.asm, self._handler.code
        asm.label(self._own("run"))
        size = (8 * len(code.inputs) + 15) & -16
        if self._aligned:
            asm.code("and rsp, -16")
        else:
            self._pushed += size
        asm.code("sub rsp, size", size=size)
        # what needs registers for itself comes last: the others are still where they were
        for index, each in sorted(enumerate(code.inputs), key=lambda item: item[1].kind not in _IN_REGISTERS):
            self._word(index, each)
        asm.code(f"mov rdi, rsp; call {self._own('handler')}")
        for index, each in enumerate(code.inputs):
            if each.written:
                self._take_over(index, each)
        if any(each.kind is InputKind.INSTANCE for each in code.inputs) and not self._handler.enters:
            self._release()
        elif any(each.kind is InputKind.INSTANCE for each in code.inputs) and self._handler.pool:
            self._decline()
        if self._handler.redirects:
            self._redirect(size)
        if not self._aligned:
            self._pushed -= size
            asm.code("add rsp, size", size=size)

    def _redirect(self, size: int) -> None:
        """Emit: where the handler has said so, the thread goes elsewhere; a call that is skipped is over."""
        asm, inputs = self.asm, self._handler.code.inputs
        index = next(at for at, each in enumerate(inputs) if each.written and each.name == "rip")
        self._word_of(index)
        asm.code("test rax, rax; jz stays")
        self._store(self._above + self._pushed)
        if self._handler.enters and self._handler.skips and any(each.kind is InputKind.INSTANCE for each in inputs):
            asm.code("lea rdi, [rel skip]; cmp rax, rdi; jne released", skip=SKIP)
            self._release()
        if not self._aligned:
            asm.code("add rsp, size", size=size)
        asm.code("""
            jmp redirected
        stays:
        """)

    # -- words

    def _set(self, index: int, register: str) -> None:
        """Emit: a word becomes what a register is."""
        self.asm.code("mov [rsp+word], " + register, word=8 * index)

    def _word_of(self, index: int) -> None:
        """Emit: rax is what a word is."""
        self.asm.code("mov rax, [rsp+word]", word=8 * index)

    def _constant(self, index: int, value: int) -> None:
        self.asm.code("mov rax, value", value=value)
        self._set(index, "rax")

    def _word(self, index: int, each: Input) -> None:
        handler = self._handler
        match each.kind:
            case InputKind.PARAMETER:
                self._parameter(index, each.place)
            case InputKind.REGISTER:
                self._register(index, each.name)
            case InputKind.CONTEXT:
                self._context(index, each.name)
            case InputKind.STORAGE:
                self._constant(index, handler.storages[each.index])
            case InputKind.UNWINDING:
                self._constant(index, handler.unwinding)
            case InputKind.MISSES:
                self._constant(index, handler.misses)
            case InputKind.ROUTINE:
                self.asm.code("lea rax, [rel name]", name=each.name)
                self._set(index, "rax")
            case InputKind.THREAD:
                self._thread_number()
                self._set(index, "rax")
            case InputKind.INSTANCE:
                self._instance()
                self._set(index, "rdx")

    def _parameter(self, index: int, place: str) -> None:
        """Emit: one parameter of the function, by where the System V convention has it at the entry."""
        if place.startswith("xmm"):
            self.asm.code(f"movq [rsp+word], {place}", word=8 * index)
        elif place.startswith("stack"):
            self._load("rax", self._site + int(place.removeprefix("stack+")))
            self._set(index, "rax")
        else:
            self._register(index, place)

    def _register(self, index: int, name: str) -> None:
        if name == "rip":
            self._constant(index, 0)
        elif name.startswith("xmm"):
            self._parameter(index, name)
        elif name == "rsp":
            self._address_of_site("rax")
            self._set(index, "rax")
        elif name in _CHANGED or name == "flags" or (name == "rbp" and self._aligned) or self._is_lost(name):
            self._load("rax", self._place_of(name))
            self._set(index, "rax")
        else:
            self._set(index, name)

    def _is_lost(self, name: str) -> bool:
        """Return whether another handler may have changed a register before."""
        return self._turn > 0 and name in self._saved

    def _context(self, index: int, name: str) -> None:
        asm, handler = self.asm, self._handler
        match name:
            case "retval":
                self._load("rax", self._place_of("rax"))
            case "caller" | "true_caller":
                self._load("rax", self._site)
                if name == "true_caller":
                    emit_true_caller(asm, handler.stubs)
            case "tid" if self._elsewhere:
                emit_asked_tid(asm, handler)
            case "tid":
                asm.code(f"mov eax, fs:[{TID_OFFSET}]")
            case "pid":
                emit_process_number(asm, self._facts, handler)
            case "cpu":
                asm.code("rdtscp; mov eax, ecx; and eax, 0xfff")
            case "now":
                emit_nanoseconds(asm, handler)
            case "trap":
                self._load("rax", self._above + 16 + self._pushed)
            case "ip" if handler.takes_target:
                self._load("rax", self._above + 16 + self._pushed)
            case "ip" | "func":
                at = PLACE[name]
                self._load("rax", self._above + self._pushed)
                asm.code(f"movsxd rdi, dword [rax+{at}]; lea rax, [rax+rdi+{at + 4}]")
            case "errno":
                emit_errno(asm, handler)
            case _:
                raise InternalError(f"no code for ctx.{name}")
        self._set(index, "rax")

    def _thread_number(self) -> None:
        """Emit: rax = the thread's number, 0 without a block."""
        self._numbers += 1
        emit_thread_number(self.asm, self._facts, f"number_{self._numbers}")

    def _instance(self) -> None:
        """Emit: rdx = address of the data of the call with this stack pointer, 0 if there is none.

        A thread's instances are a table by stack pointer, in which eight places are looked at. Where a call begins, one
        of a call that never came back may be taken over: it has the same stack pointer, so it is over.
        """
        asm, handler = self.asm, self._handler
        if handler.pool:
            self._pooled()
            return
        self._thread_number()
        asm.code("xor edx, edx; test rax, rax")
        if self._facts.adopted:
            asm.code("jnz numbered; test rbx, rbx; jz no_instance")
            self._address_of_site("rdx")
            emit_shared_instance(asm, self._facts, handler)
            asm.label("numbered")
        else:
            asm.code("jz no_instance")
        emit_instances_number(asm, self._facts)
        self._address_of_site("rdx")
        emit_own_instance(asm, handler)

    def _pooled(self) -> None:
        """Emit: rdx = address of the data of the call, by an instance of the pool, 0 if there is none."""
        asm, handler = self.asm, self._handler
        self._address_of_site("rdx")
        if self._facts.adopted:  # who has one of these is known by what is the same in parent and child
            forked = self._facts.data + FORKED
            asm.code("mov rcx, forked; cmp qword [rcx], 0; jne pool_none", forked=forked)
        if handler.enters:
            may_read = handler.system_calls
            emit_claim(self.asm, handler.instances, handler.pool, tid_offset=TID_OFFSET, may_read=may_read)
        else:
            emit_find(self.asm, handler.instances, handler.pool)

    def _decline(self) -> None:
        """Emit: the call's instance is given back if the entry's handler has said so."""
        index = next(at for at, each in enumerate(self._handler.code.inputs) if each.kind is InputKind.INSTANCE)
        self._word_of(index)
        emit_decline(self.asm)

    def _release(self) -> None:
        """Emit: the call is over, its instance is free."""
        index = next(at for at, each in enumerate(self._handler.code.inputs) if each.kind is InputKind.INSTANCE)
        self._word_of(index)
        self.asm.code("test rax, rax; jz released")
        if self._handler.pool:
            emit_release(self.asm)
        else:
            self.asm.code(f"mov qword [rax-{INSTANCE_DATA}], 0")
        self.asm.label("released")

    def _take_over(self, index: int, each: Input) -> None:
        """Emit: a register gets what the handler has left in its word."""
        name = "rax" if each.kind is InputKind.CONTEXT else each.name
        if name == "rip":
            return
        self._word_of(index)
        if name == "rsp":
            self._store(self._above + self._pushed + stack_move.STACK_POINTER)
            return
        if each.kind is InputKind.CONTEXT and each.name == "errno":
            emit_set_errno(self.asm, self._handler)
            return
        if name in self._saved:
            self._store(self._place_of(name))
        else:
            self.asm.code(f"mov.s {name}, rax")
