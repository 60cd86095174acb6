"""The generated routine between patches and a compiled handler: it fills in what the handler wants to know.

Patches call it as they call all routines: the stack is ``[rsp]`` return address, ``[rsp+8]`` argument (the offset of
the hook's two counters: hits, missed hits), and the site's own stack pointer is ``rsp + 144``. Every register and flag
is preserved, but for those that the handler is to change.

A hit inside a handler runs no handler and is counted as missed: while one runs, the thread's block holds its stack
pointer. That is forgotten once the stack is above it (a signal handler that a handler was interrupted by has left with
``siglongjmp``), or after ``PATIENCE`` misses in a row, if the stack has only ever been below it since. Threads without
a block (fork children) run handlers unguarded, with number 0: what handlers change is safe under interruption.
"""

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

from iced_x86 import Code, Encoder, Instruction, MemoryOperand, Register

from anyprobe.core.code import SKIP, Input, InputKind, NativeCode
from anyprobe.core.errors import InternalError
from anyprobe.data.layout import BLOCK_GUARD, BLOCK_REFUSED
from anyprobe.isa import disassemble
from anyprobe.isa.assemble import Assembler, i32, u64
from anyprobe.isa.registers import NUMBERS
from anyprobe.splice.codegen.handlers import context_routines, stack_move
from anyprobe.splice.codegen.handlers.facts import (
    INSTANCE_BYTES,
    INSTANCE_DATA,
    INSTANCE_THREADS,
    INSTANCES,
    PLACE,
    TID_OFFSET,
    HandlerFacts,
)
from anyprobe.splice.codegen.handlers.memory_routines import emit_memory_routines
from anyprobe.splice.codegen.handlers.words import emit_errno, emit_set_errno, emit_thread_number
from anyprobe.splice.codegen.instance_pool import emit_claim, emit_decline, emit_find, emit_release
from anyprobe.splice.codegen.routines import RoutineFacts, emit_acquire
from anyprobe.splice.codegen.stub_directory import emit_true_caller

if TYPE_CHECKING:
    from iced_x86 import Register_

_ALWAYS_SAVED = ("rax", "flags", "rbx", "rdi")
"""What every handler's call changes; ``flags`` are kept as ``lahf`` and ``seto`` have them."""
_PASSED_BY = 144
"""From the routine's return address to the site's stack pointer."""
_SCRATCH = {"now": {"rdx"}, "cpu": {"rcx", "rdx"}, "true_caller": {"rcx", "rdx"}}
"""What finding out attributes of ``ctx`` changes."""
_IN_REGISTERS = frozenset({InputKind.PARAMETER, InputKind.REGISTER})
_CHANGED = frozenset({"rax", "rbx"})
"""Registers that are no longer the program's when the words are filled in."""
PATIENCE = 1 << 16
"""Misses in a row after which the handler that causes them is taken to be gone; if it is not, no harm is done."""
MISSED = 8
"""Where hits that ran no handler are counted, behind the hits."""
_PROBES = 8


def assemble_handler_call(facts: RoutineFacts, handler: HandlerFacts, address: int) -> tuple[bytes, int, str]:
    """Return the code of the routine and the handler at ``address``, where the routine begins, and the listing."""
    writer = CallWriter(facts, (handler,))
    code = writer.run(address)
    return code, address + writer.asm.offset_of("handler_call"), writer.asm.listing(address)


class CallWriter:
    """Writes one routine, which calls one handler, or several by turns (``handlerchain``)."""

    def __init__(self, facts: RoutineFacts, handlers: Sequence[HandlerFacts]) -> None:
        """Begin with nothing."""
        self.asm = Assembler()
        handler = handlers[0]
        self._facts, self._handler, self._handlers = facts, handler, handlers
        self._turn = 0
        """Of the handler that is written just now."""
        self._encoder = Encoder(64)
        self._numbers = 0
        code = handler.code
        self._strings, self._aligned = "df" in code.clobbers, code.vectors
        self._saved = _saved_by([each.code for each in handlers])
        self._passed_by = _PASSED_BY + 8 * (handler.takes_target or handler.takes_trap or len(handlers) - 1)
        self._base, self._pushed = (Register.RBP, 0) if self._aligned else (Register.RSP, 8 * self._strings)

    def run(self, address: int) -> bytes:
        """Return the code at an address."""
        asm, facts, handler = self.asm, self._facts, self._handler
        emit_acquire(asm, facts)
        asm.label("handler_call")
        if handler.moves_stack:
            asm.emit(*stack_move.ROOM)
        asm.emit(b"\x50\x9f\x0f\x90\xc0\x50", "push rax; lahf; seto al; push rax")
        for name in self._saved[2:]:
            self._one(Instruction.create_reg(Code.PUSH_R64, _register_of(name)))
        if self._aligned:
            asm.emit(b"\x48\x89\xe5", "mov rbp, rsp")
        if self._strings:
            asm.emit(b"\x9c\xfc", "pushfq; cld")
        asm.emit(b"\x64\x48\x8b\x1c\x25" + i32(facts.slot), "mov rbx, fs:[slot]")
        asm.emit(b"\x48\xb8" + u64(facts.gate), "mov rax, &gate")
        asm.emit(b"\x48\x85\x18", "test [rax], rbx")
        asm.jump(b"\x0f\x84", "first", "jz first")
        asm.label("block")
        asm.emit(b"\x48\x8b\x43" + bytes([BLOCK_GUARD]), "mov rax, [rbx+BLOCK_GUARD]")
        asm.emit(b"\x48\x39\xc4", "cmp rsp, rax")
        asm.jump(b"\x0f\x82", "nested", "jb nested")
        asm.label("free")
        asm.emit(b"\x48\x89\x63" + bytes([BLOCK_GUARD]), "mov [rbx+BLOCK_GUARD], rsp")
        self._argument()
        asm.emit(b"\x48\xff\x04\x03", "inc qword [rbx+rax]")
        self._call()
        for _ in self._turns(first=1):
            self._next()
        if handler.moves_stack:
            stack_move.emit_frame(asm, self._at_return_address, self._passed_by - 8)
            self._end("moved", *stack_move.LEAVE)
        self._end("done", *(stack_move.RETURN if handler.moves_stack else (b"\xc3", "ret")))
        if handler.redirects and handler.moves_stack:
            asm.label("redirected")
            stack_move.emit_frame(asm, self._at_return_address, 0)
            self._end("leave", *stack_move.LEAVE)
        elif handler.redirects:
            asm.label("redirected")
            # the return address is where to go, and the stack pointer becomes the site's
            popped = self._passed_by - 8
            self._end("leave", b"\xc2" + struct.pack("<H", popped), f"ret {popped}")
        self._rare()
        inputs = [each for one in self._handlers for each in one.code.inputs]
        names = frozenset(each.name for each in inputs if each.kind is InputKind.ROUTINE)
        if handler.skips:
            asm.label(SKIP)
            asm.emit(b"\xc3", "ret")
        names -= {SKIP}
        if any(each.pool and each.enters and each.system_calls for each in self._handlers):
            names |= {"read"}
        known = next((each.reading for each in self._handlers if each.calls_routines), handler.reading)
        reading = replace(known, slot=facts.slot, gate=facts.gate)
        emit_memory_routines(asm, names - context_routines.NAMES, reading)
        context_routines.emit_context_routines(asm, names & context_routines.NAMES, reading)
        for _ in self._turns():
            asm.emit(b"\xcc" * (-len(asm) % 16), "padding")
            asm.label(self._own("handler"))
            asm.emit(self._handler.code.code, "the handler")
        return asm.finish(address)

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
        asm.emit(b"\x48\x85\xdb", "test rbx, rbx")
        asm.jump(b"\x0f\x84", self._own("shared"), "jz shared")
        self._argument()
        asm.emit(b"\x48\xff\x04\x03", "inc qword [rbx+rax]")
        self._call()

    def _end(self, label: str, leave: bytes, text: str) -> None:
        """Emit: the handler is over, everything is as it was. ``label``: where nothing is to be said to the block."""
        asm = self.asm
        asm.emit(b"\x48\x85\xdb", "test rbx, rbx")
        asm.jump(b"\x0f\x84", label, f"jz {label}")
        asm.emit(b"\x48\xc7\x43" + bytes([BLOCK_GUARD]) + i32(0), "mov qword [rbx+BLOCK_GUARD], 0")
        asm.emit(b"\xc7\x43" + bytes([BLOCK_REFUSED]) + i32(0), "mov dword [rbx+BLOCK_REFUSED], 0")
        asm.label(label)
        if self._aligned:
            asm.emit(b"\x48\x8d\x65" + (b"\xf8" if self._strings else b"\x00"), "lea rsp, [saved registers]")
        if self._strings:
            asm.emit(b"\x9d", "popfq")
        for name in reversed(self._saved[2:]):
            self._one(Instruction.create_reg(Code.POP_R64, _register_of(name)))
        asm.emit(b"\x58\x04\x7f\x9e\x58" + leave, f"pop rax; add al, 0x7f; sahf; pop rax; {text}")

    def _rare(self) -> None:
        asm, facts = self.asm, self._facts
        asm.label("nested")
        asm.emit(b"\xff\x43" + bytes([BLOCK_REFUSED]), "inc dword [rbx+BLOCK_REFUSED]")
        asm.emit(b"\x81\x7b" + bytes([BLOCK_REFUSED]) + i32(PATIENCE), "cmp dword [rbx+BLOCK_REFUSED], PATIENCE")
        asm.jump(b"\x0f\x83", "free", "jae free")
        for _ in self._turns():
            self._argument()
            asm.emit(b"\x48\xff\x44\x03" + bytes([MISSED]), "inc qword [rbx+rax+MISSED]")
        asm.jump(b"\xe9", "done", "jmp done")
        asm.label("first")
        asm.emit(b"\x51\x52", "push rcx; push rdx")
        asm.jump(b"\xe8", "acquire", "call acquire")
        asm.emit(b"\x48\x89\xcb\x5a\x59", "mov rbx, rcx; pop rdx; pop rcx")
        asm.emit(b"\x48\x85\xdb", "test rbx, rbx")
        asm.jump(b"\x0f\x85", "block", "jnz block")
        for _ in self._turns():
            asm.label(self._own("shared"))
            asm.emit(b"\x48\xbf" + u64(facts.shared), "mov rdi, shared block")
            self._argument()
            asm.emit(b"\xf0\x48\xff\x04\x07", "lock inc qword [rdi+rax]")
            self._one(Instruction.create_reg_mem(Code.MOV_R64_RM64, Register.RDI, self._at(self._place_of("rdi"))))
            asm.jump(b"\xe9", self._own("run"), "jmp run")

    def _argument(self) -> None:
        """Emit: rax = the offset of the counters of the handler whose turn it is."""
        self._get(self._base, self._above + 8 + 8 * self._turn + self._pushed)

    def _at(self, offset: int) -> MemoryOperand:
        return MemoryOperand(self._base, displ=offset, displ_size=8)

    def _place_of(self, name: str) -> int:
        """Return where a saved register is, relative to the base."""
        return 8 * (len(self._saved) - 1 - self._saved.index(name)) + self._pushed

    def _at_return_address(self, offset: int) -> MemoryOperand:
        return self._at(self._above + self._pushed + offset)

    @property
    def _above(self) -> int:
        """Return how far above the saved registers the return address is."""
        return 8 * len(self._saved) + stack_move.ROOM_BYTES * self._handler.moves_stack

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
            asm.emit(b"\x48\x83\xe4\xf0", "and rsp, -16")
        else:
            self._pushed += size
        asm.emit(b"\x48\x81\xec" + i32(size), f"sub rsp, {size}")
        # what needs registers for itself comes last: the others are still where they were
        for index, each in sorted(enumerate(code.inputs), key=lambda item: item[1].kind not in _IN_REGISTERS):
            self._word(index, each)
        asm.emit(b"\x48\x89\xe7", "mov rdi, rsp")
        asm.jump(b"\xe8", self._own("handler"), "call handler")
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
            asm.emit(b"\x48\x81\xc4" + i32(size), f"add rsp, {size}")

    def _redirect(self, size: int) -> None:
        """Emit: where the handler has said so, the thread goes elsewhere; a call that is skipped is over."""
        asm, inputs = self.asm, self._handler.code.inputs
        index = next(at for at, each in enumerate(inputs) if each.written and each.name == "rip")
        self._get(Register.RSP, 8 * index)
        asm.emit(b"\x48\x85\xc0", "test rax, rax")
        asm.jump(b"\x0f\x84", "stays", "jz stays")
        back = self._at(self._above + self._pushed)
        self._one(Instruction.create_mem_reg(Code.MOV_RM64_R64, back, Register.RAX))
        if self._handler.enters and self._handler.skips and any(each.kind is InputKind.INSTANCE for each in inputs):
            asm.relative(b"\x48\x8d\x3d", 4, b"", SKIP, "lea rdi, [skip]")
            asm.emit(b"\x48\x39\xf8", "cmp rax, rdi")
            asm.jump(b"\x0f\x85", "released", "jne released")
            self._release()
        if not self._aligned:
            asm.emit(b"\x48\x81\xc4" + i32(size), f"add rsp, {size}")
        asm.jump(b"\xe9", "redirected", "jmp redirected")
        asm.label("stays")

    # -- words

    def _one(self, instruction: Instruction) -> None:
        """Append an instruction that iced encodes."""
        size = self._encoder.encode(instruction, 0)
        raw = self._encoder.take_buffer()
        assert len(raw) == size
        self.asm.emit(raw, disassemble.format_instruction(instruction))

    def _set(self, index: int, register: "Register_") -> None:
        operand = MemoryOperand(Register.RSP, displ=8 * index, displ_size=8)
        self._one(Instruction.create_mem_reg(Code.MOV_RM64_R64, operand, register))

    def _get(self, base: "Register_", offset: int) -> None:
        operand = MemoryOperand(base, displ=offset, displ_size=8)
        self._one(Instruction.create_reg_mem(Code.MOV_R64_RM64, Register.RAX, operand))

    def _constant(self, index: int, value: int) -> None:
        self.asm.emit(b"\x48\xb8" + u64(value), f"mov rax, {value:#x}")
        self._set(index, Register.RAX)

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
                self.asm.relative(b"\x48\x8d\x05", 4, b"", each.name, f"lea rax, [{each.name}]")
                self._set(index, Register.RAX)
            case InputKind.THREAD:
                self._thread_number()
                self._set(index, Register.RAX)
            case InputKind.INSTANCE:
                self._instance()
                self._set(index, Register.RDX)

    def _parameter(self, index: int, place: str) -> None:
        """Emit: one parameter of the function, by where the System V convention has it at the entry."""
        if place.startswith("xmm"):
            operand = MemoryOperand(Register.RSP, displ=8 * index, displ_size=8)
            self._one(
                Instruction.create_mem_reg(
                    Code.MOVQ_XMMM64_XMM, operand, cast("Register_", Register.XMM0 + int(place[3:]))
                )
            )
        elif place.startswith("stack"):
            self._get(self._base, self._site + int(place.removeprefix("stack+")))
            self._set(index, Register.RAX)
        else:
            self._register(index, place)

    def _register(self, index: int, name: str) -> None:
        if name == "rip":
            self._constant(index, 0)
        elif name.startswith("xmm"):
            self._parameter(index, name)
        elif name == "rsp":
            self._one(Instruction.create_reg_mem(Code.LEA_R64_M, Register.RAX, self._at(self._site)))
            self._set(index, Register.RAX)
        elif name in _CHANGED or name == "flags" or (name == "rbp" and self._aligned) or self._is_lost(name):
            self._get(self._base, self._place_of(name))
            self._set(index, Register.RAX)
        else:
            self._set(index, _register_of(name))

    def _is_lost(self, name: str) -> bool:
        """Return whether another handler may have changed a register before."""
        return self._turn > 0 and name in self._saved

    def _context(self, index: int, name: str) -> None:
        asm, handler = self.asm, self._handler
        match name:
            case "retval":
                self._get(self._base, self._place_of("rax"))
            case "caller" | "true_caller":
                self._get(self._base, self._site)
                if name == "true_caller":
                    emit_true_caller(asm, handler.stubs)
            case "tid":
                asm.emit(b"\x64\x8b\x04\x25" + i32(TID_OFFSET), "mov eax, fs:[TID]")
            case "pid":
                self._constant(index, handler.pid)
                return
            case "cpu":
                asm.emit(b"\x0f\x01\xf9\x89\xc8\x25" + i32(0xFFF), "rdtscp; mov eax, ecx; and eax, 0xfff")
            case "now":
                asm.emit(b"\x0f\x31\x48\xc1\xe2\x20\x48\x09\xd0", "rdtsc; shl rdx, 32; or rax, rdx")
                asm.emit(b"\x48\xba" + u64(handler.nanoseconds), "mov rdx, nanoseconds per tick")
                asm.emit(b"\x48\xf7\xe2\x48\x0f\xac\xd0\x20", "mul rdx; shrd rax, rdx, 32")
            case "trap":
                self._get(self._base, self._above + 16 + self._pushed)
            case "ip" if handler.takes_target:
                self._get(self._base, self._above + 16 + self._pushed)
            case "ip" | "func":
                at = PLACE[name]
                self._get(self._base, self._above + self._pushed)
                asm.emit(b"\x48\x63\x78" + bytes([at]), f"movsxd rdi, dword [rax+{at}]")
                asm.emit(b"\x48\x8d\x44\x38" + bytes([at + 4]), f"lea rax, [rax+rdi+{at + 4}]")
            case "errno":
                emit_errno(asm, handler)
            case _:
                raise InternalError(f"no code for ctx.{name}")
        self._set(index, Register.RAX)

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
        asm.emit(b"\x31\xd2\x48\x85\xc0", "xor edx, edx; test rax, rax")
        asm.jump(b"\x0f\x84", "no_instance", "jz no_instance")
        if self._facts.numbered + self._facts.layout.blocks > INSTANCE_THREADS:
            asm.emit(b"\x48\x3d" + i32(INSTANCE_THREADS), "cmp rax, last number with instances")
            asm.jump(b"\x0f\x87", "no_instance", "ja no_instance")
        asm.emit(b"\x48\x69\xc0" + i32(INSTANCES * INSTANCE_BYTES), "imul rax, rax, bytes of a thread")
        asm.emit(b"\x48\xb9" + u64(handler.instances) + b"\x48\x01\xc1", "mov rcx, instances; add rcx, rax")
        self._one(Instruction.create_reg_mem(Code.LEA_R64_M, Register.RDX, self._at(self._site)))
        asm.emit(b"\x48\x89\xd0\x48\xc1\xe8\x04\x25" + i32(INSTANCES - 1), "mov rax, rdx; shr rax, 4; and eax, last")
        asm.emit(b"\x41\xbb" + i32(_PROBES), "mov r11d, probes")
        asm.label("probe")
        asm.emit(b"\x89\xc7\xc1\xe7\x07\x48\x01\xcf", "mov edi, eax; shl edi, 7; add rdi, rcx")
        asm.emit(b"\x48\x39\x17", "cmp [rdi], rdx")
        asm.jump(b"\x0f\x84", "instance", "je instance")
        if handler.enters:
            asm.emit(b"\x48\x83\x3f\x00", "cmp qword [rdi], 0")
            asm.jump(b"\x0f\x84", "instance", "je instance")
        asm.emit(b"\xff\xc0\x25" + i32(INSTANCES - 1), "inc eax; and eax, last")
        asm.emit(b"\x41\xff\xcb", "dec r11d")
        asm.jump(b"\x0f\x85", "probe", "jnz probe")
        asm.emit(b"\x31\xd2", "xor edx, edx")
        asm.jump(b"\xe9", "no_instance", "jmp no_instance")
        asm.label("instance")
        if handler.enters:
            asm.emit(b"\x48\x89\x17", "mov [rdi], rdx")
            for at in range(INSTANCE_DATA, INSTANCE_BYTES, 8):
                asm.emit(b"\x48\xc7\x47" + bytes([at]) + i32(0), f"mov qword [rdi+{at}], 0")
        asm.emit(b"\x48\x8d\x57" + bytes([INSTANCE_DATA]), "lea rdx, [rdi+INSTANCE_DATA]")
        asm.label("no_instance")

    def _pooled(self) -> None:
        """Emit: rdx = address of the data of the call, by an instance of the pool, 0 if there is none."""
        handler = self._handler
        self._one(Instruction.create_reg_mem(Code.LEA_R64_M, Register.RDX, self._at(self._site)))
        if handler.enters:
            may_read = handler.system_calls
            emit_claim(self.asm, handler.instances, handler.pool, tid_offset=TID_OFFSET, may_read=may_read)
        else:
            emit_find(self.asm, handler.instances, handler.pool)

    def _decline(self) -> None:
        """Emit: the call's instance is given back if the entry's handler has said so."""
        index = next(at for at, each in enumerate(self._handler.code.inputs) if each.kind is InputKind.INSTANCE)
        self._get(Register.RSP, 8 * index)
        emit_decline(self.asm)

    def _release(self) -> None:
        """Emit: the call is over, its instance is free."""
        index = next(at for at, each in enumerate(self._handler.code.inputs) if each.kind is InputKind.INSTANCE)
        self._get(Register.RSP, 8 * index)
        self.asm.emit(b"\x48\x85\xc0", "test rax, rax")
        self.asm.jump(b"\x0f\x84", "released", "jz released")
        if self._handler.pool:
            emit_release(self.asm)
        else:
            self.asm.emit(b"\x48\xc7\x40" + bytes([256 - INSTANCE_DATA]) + i32(0), "mov qword [rax-INSTANCE_DATA], 0")
        self.asm.label("released")

    def _take_over(self, index: int, each: Input) -> None:
        """Emit: a register gets what the handler has left in its word."""
        name = "rax" if each.kind is InputKind.CONTEXT else each.name
        if name == "rip":
            return
        self._get(Register.RSP, 8 * index)
        if name == "rsp":
            place = self._at_return_address(stack_move.STACK_POINTER)
            self._one(Instruction.create_mem_reg(Code.MOV_RM64_R64, place, Register.RAX))
            return
        if each.kind is InputKind.CONTEXT and each.name == "errno":
            emit_set_errno(self.asm, self._handler)
            return
        if name in self._saved:
            operand = self._at(self._place_of(name))
            self._one(Instruction.create_mem_reg(Code.MOV_RM64_R64, operand, Register.RAX))
        else:
            self._one(Instruction.create_reg_reg(Code.MOV_R64_RM64, _register_of(name), Register.RAX))


def _saved_by(codes: Sequence[NativeCode]) -> tuple[str, ...]:
    """Return what has to be saved: what the handlers change, and what filling in their words does."""
    changed = {name for code in codes for name in code.clobbers if name in NUMBERS}
    for each in (each for code in codes for each in code.inputs):
        if each.kind is InputKind.CONTEXT:
            changed |= _SCRATCH.get(each.name, set())
        elif each.kind is InputKind.INSTANCE:
            changed |= {"rcx", "rdx", "r11"}
    others = sorted(changed - set(_ALWAYS_SAVED) - {"rbp"}, key=NUMBERS.__getitem__)
    return (*_ALWAYS_SAVED, *others, *(("rbp",) if codes[0].vectors else ()))


def _register_of(name: str) -> "Register_":
    return cast("Register_", Register.RAX + NUMBERS[name])
