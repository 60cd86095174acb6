"""Programs of random functions that check themselves: each call must come to what it came to before any probe.

The functions keep to the calling convention and read nothing that is not defined; all else is left to chance: what they
do to registers, flags, memory, x87, MXCSR and stack, how they branch, loop, switch, call and return.
"""

from random import Random

from support.random_instructions import (
    ARGUMENTS,
    CONDITIONS,
    COUNTERS,
    PRESERVED,
    RESULTS,
    SLOTS,
    Straight,
    narrow,
)

TEXT = """
#include "{header}"
enum {{ FUNCTIONS = {functions}, CALLS = {calls} }};
{declarations}
static void (*functions[])(void) = {{{names}}};
asm(".intel_syntax noprefix\\n"
{body}
".att_syntax\\n");
#include "random_functions.h"
"""


class Function(Straight):
    """One function."""

    def text(self):
        name = f"f{self.number}"
        self.emit(f".p2align {self.random.choice((0, 0, 4))}", f".globl {name}", f".type {name},@function")
        self.emit(f"{name}:", ".cfi_startproc")
        if self.random.random() < 0.2:
            self.emit("endbr64")
        if self.random.random() < 0.15:
            self.entry_loop()
        for saved in self.saved:
            self.emit(f"push {saved}", ".cfi_adjust_cfa_offset 8", f".cfi_rel_offset {saved}, 0")
        if self.framed:
            self.emit(f"sub rsp, {8 * SLOTS}", f".cfi_adjust_cfa_offset {8 * SLOTS}", "mov rbx, rdi")
        for slot in range(SLOTS):
            self.emit(f"mov {self.slot(slot)}, {self.read()}")
        self.statements(self.random.randint(3, 9))
        self.leave(last=True)
        self.emit(".cfi_endproc", f".size {name}, . - {name}", *self.tables)
        return self.lines

    # -- control flow

    def statements(self, number):
        for _ in range(number):
            kind = self.random.random()
            if self.depth < 3 and kind < 0.5:
                self.depth += 1
                kinds = (self.branch, self.loop, self.switch, self.call, self.tiny_jumps, self.return_early)
                self.random.choice((*kinds, self.branch))()
                self.depth -= 1
            else:
                self.some(5)

    def state(self):
        return set(self.defined), set(self.vectors), self.flags

    def resume(self, *states):
        self.defined = set.intersection(*(state[0] for state in states))
        self.vectors = set.intersection(*(state[1] for state in states))
        self.flags = all(state[2] for state in states)

    def compare(self):
        if not self.flags or self.random.random() < 0.6:
            size = self.random.choice((8, 32))
            self.emit(f"{self.random.choice(('cmp', 'test'))} {self.read(size)}, {self.read(size)}")
            self.flags = True

    def branch(self):
        otherwise, end = self.label(), self.label()
        if self.random.random() < 0.15 and "rcx" in self.defined:
            self.emit(f"jrcxz {otherwise}_near", f"jmp {otherwise}_on")
            self.emit(f"{otherwise}_near: jmp {otherwise}", f"{otherwise}_on:")
        else:
            self.compare()
            self.emit(f"j{self.random.choice(CONDITIONS)} {otherwise}")
        before = self.state()
        self.statements(self.random.randint(0, 2))
        if self.random.random() < 0.5:
            then = self.state()
            self.emit(f"{otherwise}:")
            self.resume(before, then)
            return
        then = self.state()
        self.emit(f"jmp {end}", f"{otherwise}:")
        self.resume(before)
        self.statements(self.random.randint(0, 2))
        self.emit(f"{end}:")
        self.resume(self.state(), then)

    def loop(self):
        top = self.label()
        if self.slots < COUNTERS and self.random.random() < 0.6:
            slot = self.slot(SLOTS - 1 - self.slots)
            self.emit(f"mov {slot}, {self.random.randint(1, 4)}")
            self.slots += 1
            before = self.state()
            self.emit(f"{top}:")
            self.statements(self.random.randint(1, 2))
            self.emit(f"dec {slot}", f"jg {top}")
            self.slots -= 1
        else:
            name = self.target()
            self.emit(f"mov {narrow(name, 32)}, {self.random.randint(1, 4)}")
            self.defined.add(name)
            before = self.state()
            self.emit(f"{top}:")
            self.reserved.add(name)
            calls, self.callees = self.callees, ()
            self.some(4)
            self.callees = calls
            self.reserved.discard(name)
            if name == "rcx" and self.random.random() < 0.5:
                self.emit(f"loop {top}_again", f"jmp {top}_out", f"{top}_again: jmp {top}", f"{top}_out:")
            else:
                self.emit(f"dec {narrow(name, 32)}", f"jnz {top}")
                self.flags = True
        after = self.state()
        self.resume(before, after)
        self.defined = before[0]
        self.flags = after[2]

    def switch(self):
        """A jump table as compilers make them."""
        names = [name for name in ("rax", "rdx", "r10", "r11", "rcx") if name not in self.reserved]
        index, table = self.random.sample(names, 2)
        cases = [self.label() for _ in range(self.random.randint(4, 6))]
        end, where, default = self.label(), self.label(), self.label()
        low = narrow(index, 32)
        self.emit(f"mov {low}, {self.read(32)}", f"and {low}, 7", f"cmp {low}, {len(cases) - 1}", f"ja {default}")
        self.emit(f"lea {table}, [rip+{where}]", f"movsxd {index}, dword ptr [{table}+{index}*4]")
        self.emit(f"add {index}, {table}", f"jmp {index}")
        words = (f".long {case} - {where}" for case in cases)
        self.tables += [".section .rodata", ".p2align 2", f"{where}:", *words, ".text"]
        self.defined -= {index, table}
        self.flags = False
        before, ends = self.state(), []
        for case in [*cases, default]:
            self.emit(f"{case}:")
            self.resume(before)
            self.some(3)
            ends.append(self.state())
            if case != default:
                self.emit(f"jmp {end}")
        self.emit(f"{end}:")
        self.resume(*ends)

    def pass_arguments(self):
        self.emit(*(f"mov {name}, {self.read()}" for name in ARGUMENTS[1:] if name not in self.defined))
        for number in {0, 1, 2, 3} - self.vectors:
            self.emit(f"pxor xmm{number}, xmm{number}")
        if self.base != "rdi":
            self.emit("mov rdi, rbx")

    def call(self):
        if not self.framed or not self.callees or self.slots or self.reserved - {self.base} or self.calls == 2:
            self.some(4)
            return
        self.calls += 1
        self.pass_arguments()
        callee = f"f{self.random.choice(self.callees)}"
        if self.random.random() < 0.6:
            self.emit(f"call {callee}")
        else:
            self.emit(f"lea r11, [rip+{callee}]", "call r11")
        self.defined = (self.defined & set(PRESERVED)) | {*RESULTS}
        self.vectors, self.flags = {0, 1}, False

    def tiny_jumps(self):
        """Blocks of one and two bytes, jumped into from around."""
        first, second, third = self.label(), self.label(), self.label()
        self.compare()
        condition = self.random.choice(CONDITIONS)
        self.emit(f"j{condition} {second}", "nop", f"{first}:", self.random.choice(("nop", "cmc")))
        self.emit(f"{second}:", "clc", f"jc {first}", f"jmp {third}", "int3", f"{third}:")
        self.flags = True

    def return_early(self):
        if self.reserved - {self.base} or self.pushed:
            return
        on = self.label()
        self.compare()
        self.emit(f"j{self.random.choice(CONDITIONS)} {on}")
        before = self.state()
        self.leave(last=False)
        self.emit(f"{on}:")
        self.resume(before)

    def entry_loop(self):
        inside = self.label()
        self.emit("and esi, 3", f"jz {inside}", "dec esi", "add r8, rsi", f"jmp f{self.number}", f"{inside}:")

    def leave(self, *, last):
        """Return, or jump to another function, with the stack as it was."""
        tail = self.callees and self.random.random() < 0.3
        if tail:
            self.pass_arguments()
        else:
            self.emit(*(f"mov {name}, {self.read()}" for name in RESULTS if name not in self.defined))
            self.emit(*(f"pxor xmm{number}, xmm{number}" for number in (0, 1) if number not in self.vectors))
        if not last:
            self.emit(".cfi_remember_state")
        if self.framed:
            self.emit(f"add rsp, {8 * SLOTS}", f".cfi_adjust_cfa_offset -{8 * SLOTS}")
            for name in reversed(self.saved):
                self.emit(f"pop {name}", ".cfi_adjust_cfa_offset -8", f".cfi_restore {name}")
        ends = [f"jmp f{number}" for number in self.callees] if tail else ["ret", "ret", "repz ret"]
        self.emit(self.random.choice(ends))
        if not last:
            self.emit(".cfi_restore_state")
        if last and self.random.random() < 0.3:
            self.emit("int3")


def program(seed, functions=12, calls=24, kind=Function, header="protocol.h"):
    """Return the text of a program; ``kind``: what its functions are like, which may need a header of its own."""
    random = Random(seed)
    lines = [line for number in range(functions) for line in kind(random, number, functions).text()]
    names = [f"f{number}" for number in range(functions)]
    body = "\n".join(f'"{line}\\n"' for statement in lines for line in statement.split("\n"))
    declarations = " ".join(f"void {name}(void);" for name in names)
    facts = {"functions": functions, "calls": calls, "names": ", ".join(names), "header": header}
    return TEXT.format(declarations=declarations, body=body, **facts)
