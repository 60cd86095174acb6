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

from dataclasses import replace

from anyprobe.core.code import SKIP, InputKind
from anyprobe.data.layouts.layout import BLOCK_GUARD, BLOCK_REFUSED, CALL_UNSEEN, FORKED
from anyprobe.splice.codegen.handlers import context_routines, spare_stacks, stack_move
from anyprobe.splice.codegen.handlers.call_ends import PATIENCE, emit_ended, emit_left, emit_next_end
from anyprobe.splice.codegen.handlers.call_words import WordWriter
from anyprobe.splice.codegen.handlers.facts import CallEnd
from anyprobe.splice.codegen.handlers.memory_routines import emit_memory_routines
from anyprobe.splice.codegen.routines import emit_acquire

_IN_REGISTERS = frozenset({InputKind.PARAMETER, InputKind.REGISTER})
MISSED = 8
"""Where hits that ran no handler are counted, after the hits."""


class CallWriter(WordWriter):
    """Writes one routine, which calls one handler, or several by turns (``handlerchain``)."""

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
        reads_clock = facts.dark > 0 and handler.reads_clock
        if reads_clock:
            asm.code("mov rax, dark; cmp dword [rax], 0; jne in_the_dark", dark=facts.dark)
        (self._without_block if facts.near else self._with_block)()
        if handler.ends is not CallEnd.AT_ENTRY:
            self._call()
        for _ in self._turns(first=1):
            self._next()
        if handler.ends is CallEnd.IN_CALLER:
            asm.code("lea rsp, [rbp-room]" if self._aligned else "", room=8 * self._strings)
            emit_next_end(asm)
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
        if reads_clock:
            self._in_the_dark()
        inputs = [each for one in self._handlers for each in one.code.inputs]
        names = frozenset(each.name for each in inputs if each.kind is InputKind.ROUTINE)
        if handler.skips:
            asm.label(SKIP)
            asm.code("ret")
        names -= {SKIP}
        if any(each.pool and each.enters and each.system_calls for each in self._handlers):
            names |= {"read"}
        known = next((each.reading for each in self._handlers if each.calls_routines), handler.reading)
        forked = facts.data + FORKED if facts.adopted else 0
        reading = replace(known, slot=facts.slot, gate=facts.gate, forked=forked)
        if facts.near and not self._elsewhere:  # nothing tells a fork child from its parent
            reading = replace(reading, pid=0)
        emit_memory_routines(asm, names - context_routines.NAMES, reading)
        context_routines.emit_context_routines(asm, names & context_routines.NAMES, reading)
        for _ in self._turns() if handler.ends is not CallEnd.AT_ENTRY else ():
            asm.code("int3\n" * (-len(asm) % 16))
            asm.label(self._own("handler"))
            asm.raw(self._handler.code.code, "the handler")
        return asm.finish(address)

    def _with_block(self) -> None:
        """Emit: rbx = the thread's block, and the hit is counted there; a hit inside a handler goes elsewhere."""
        asm, ends = self.asm, self._handler.ends
        first = "done" if ends is CallEnd.IN_CALLER else "first"  # without a block no call was noted
        asm.code(
            f"mov rbx, fs:[slot]; mov rax, gate; test [rax], rbx; jz {first}",
            slot=self._facts.slot,
            gate=self._facts.gate,
        )
        if ends is CallEnd.IN_CALLER:
            emit_ended(asm, self._base, self._above + 8 + self._pushed, self._site)
            return
        asm.code(f"""
        block:
            mov rax, [rbx+{BLOCK_GUARD}]; cmp rsp, rax; jb nested
        free:
        """)
        if ends is not None:
            emit_left(asm, self._facts, self._handler, self._base, self._above + 8 + self._pushed, self._site)
        asm.code(f"mov [rbx+{BLOCK_GUARD}], rsp")
        self._argument()
        asm.code("inc qword [rbx+rax]")

    def _without_block(self) -> None:
        """Emit: rbx = 0, and the hit is counted for all threads."""
        self.asm.code("xor ebx, ebx; mov rdi, shared", shared=self._facts.shared)
        self._argument()
        if self._handler.ends is not None:
            self.asm.code(f"lock inc qword [rdi+rax+{CALL_UNSEEN}]")
        if self._handler.ends is CallEnd.AT_ENTRY:
            self.asm.code("jmp done")
        self.asm.code("lock inc qword [rdi+rax]")
        self._load("rdi", self._place_of("rdi"))

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

    def _in_the_dark(self) -> None:
        """Emit: the time cannot be read any more, so the hit is missed."""
        self.asm.label("in_the_dark")
        self.asm.code("mov rdi, shared", shared=self._facts.shared)
        for _ in self._turns():
            self._argument()
            self.asm.code(f"lock inc qword [rdi+rax+{MISSED}]")
        self.asm.code("jmp done")

    def _rare(self) -> None:
        asm, facts, ends = self.asm, self._facts, self._handler.ends
        if ends is CallEnd.IN_CALLER:
            return
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
            if ends is not None:
                asm.code(f"lock inc qword [rdi+rax+{CALL_UNSEEN}]")
            if ends is CallEnd.AT_ENTRY:
                asm.code("jmp done")
                continue
            asm.code("lock inc qword [rdi+rax]")
            self._load("rdi", self._place_of("rdi"))
            asm.code(f"jmp {self._own('run')}")

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
