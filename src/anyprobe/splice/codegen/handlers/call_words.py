"""What a handler wants to know, filled in by the generated routine that calls it (``call``), and what it changes."""

from collections.abc import Iterator, Sequence

from anyprobe.core.code import Input, InputKind
from anyprobe.core.errors import InternalError
from anyprobe.data.layouts.layout import COPY, TID_OFFSET
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.codegen.handlers import stack_move
from anyprobe.splice.codegen.handlers.call_ends import SCRATCH
from anyprobe.splice.codegen.handlers.facts import (
    INSTANCE_DATA,
    PLACE,
    CallEnd,
    HandlerFacts,
)
from anyprobe.splice.codegen.handlers.filling import Filling
from anyprobe.splice.codegen.handlers.goroutine_calls import emit_goroutine_call
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
from anyprobe.splice.codegen.routines import RoutineFacts
from anyprobe.splice.codegen.stub_directory import emit_true_caller
from anyprobe.splice.codegen.timing.instance_pool import emit_claim, emit_decline, emit_find, emit_release

_PASSED_BY = 144
"""From the routine's return address to the site's stack pointer."""
_CHANGED = frozenset({"rax", "rbx"})
"""Registers that are no longer the program's when the words are filled in."""


class WordWriter(Filling):
    """Writes what fills in a handler's words, and takes over what the handler has left in them."""

    def __init__(self, facts: RoutineFacts, handlers: Sequence[HandlerFacts]) -> None:
        """Begin with nothing."""
        self.asm = Assembler()
        handler = handlers[0]
        self._facts, self._handler, self._handlers = facts, handler, handlers
        self._turn = 0
        """The turn of the handler that is written just now."""
        self._numbers = 0
        code = handler.code
        self._elsewhere = bool(facts.near and handler.stacks)
        """Whether it runs on a stack of its own."""
        self._strings, self._aligned = "df" in code.clobbers, code.vectors or self._elsewhere
        more = SCRATCH if handler.ends is not None else ()
        self._saved = saved_by([each.code for each in handlers], more, based=self._aligned)
        self._passed_by = _PASSED_BY + 8 * (handler.is_told_more or len(handlers) - 1)
        self._passed_by -= 8 * (handler.ends is CallEnd.IN_CALLER)  # as at the function's ``ret``
        self._base, self._pushed = ("rbp", 0) if self._aligned else ("rsp", 8 * self._strings)

    def _turns(self, first: int = 0) -> Iterator[None]:
        """Have each handler's turn come; in the end it is that of the first one again."""
        for turn in range(first, len(self._handlers)):
            self._turn, self._handler = turn, self._handlers[turn]
            yield
        self._turn, self._handler = 0, self._handlers[0]

    def _own(self, label: str) -> str:
        """Return the label as it is called in the turn of this handler."""
        return f"{label}_{self._turn}" if self._turn else label

    def _argument(self) -> None:
        """Emit: rax = the offset of the counters of the handler whose turn it is."""
        self._load("rax", self._above + 8 + 8 * self._turn + self._pushed)
        if self._handler.ends is not None:
            self.asm.code("and rax, -8")

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

    # -- words

    def _word_of(self, index: int) -> None:
        """Emit: rax is what a word is."""
        self.asm.code("mov rax, [rsp+word]", word=8 * index)

    @property
    def _addresses(self) -> HandlerFacts:
        return self._handler

    def _unwinding(self) -> int:
        return self._handler.unwinding

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
        return (self._turn > 0 or self._handler.ends is not None) and name in self._saved

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
            case "trap" | "address":
                self._load("rax", self._above + 16 + self._pushed)
            case "ip" if handler.ends is CallEnd.IN_CALLER:
                asm.code("mov rax, r9")
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
        if self._elsewhere and handler.go_calls is not None:
            self._address_of_site("rdx")
            emit_goroutine_call(asm, handler.go_calls, enters=handler.enters, data=INSTANCE_DATA)
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
        emit_instances_number(asm, self._facts, handler)
        self._address_of_site("rdx")
        emit_own_instance(asm, handler)

    def _pooled(self) -> None:
        """Emit: rdx = address of the data of the call, by an instance of the pool, 0 if there is none."""
        asm, handler = self.asm, self._handler
        self._address_of_site("rdx")
        forked = self._facts.adopted > 0
        if forked:
            asm.code("mov rcx, copy; mov rcx, [rcx]; shl rcx, 48; or rdx, rcx", copy=self._facts.data + COPY)
        if handler.enters:
            emit_claim(
                self.asm, handler.instances, handler.pool,
                tid_offset=TID_OFFSET, may_read=handler.system_calls, forked=forked,
            )  # fmt: skip
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
