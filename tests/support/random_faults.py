"""Random functions whose instructions fault; the handler knows each of them, mends what was wrong or skips it."""

from support.random_functions import Function
from support.random_instructions import NothingFitsError, narrow

_BASES = ("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rdi", "rsi", "rbp", "rbx", "rdx", "rax", "rcx")
_RATE = 0.12
_SKIP, _MEND, _DIVIDE, _SKIPPED = range(4)
"""What the handler does; of ``int3`` it is told when that is over."""


class FaultingFunction(Function):
    """One function."""

    faults = 0

    def __init__(self, random, number, functions):
        super().__init__(random, number, functions)
        self.calls = 1  # a fault takes microseconds, and two calls in each function are thousands in all

    def straight(self):
        if self.random.random() >= _RATE:
            super().straight()
            return
        kind = self.random.choice((self.load, self.load_again, self.store, self.change, self.divide, self.trap))
        try:
            kind()
        except NothingFitsError:
            super().straight()

    def faulting(self, text, what, base="r8"):
        """Emit an instruction of which the handler knows."""
        self.faults += 1
        label = f".LF{self.number}_{self.faults}"
        self.emit(f"{label}: {text}", f"{label}_end:")
        entry = f".quad {label} - f0, {what}, {_BASES.index(base)}, {label}_end - {label}"
        self.tables += ['.section faults, \\"a\\"', entry, ".text"]

    def nowhere(self):
        """Return a register that leads nowhere, and an operand in memory with it."""
        base = self.target()
        self.emit(self.random.choice((f"mov {narrow(base, 32)}, 24", f"lea {base}, [1000]", f"lea {base}, [0]")))
        self.defined.add(base)
        if self.random.random() < 0.3:
            self.reserved.add(base)
            self.some(2)
            self.reserved.discard(base)
        return base, f"[{base}{self.random.choice(('', '', '+8', '+0x100'))}]"

    def load(self):
        _, place = self.nowhere()
        name = self.target(64, defined=True)
        texts = [f"mov {name}, {place}", f"mov {narrow(name, 8)}, byte ptr {place}", f"mov {narrow(name, 32)}, {place}"]
        self.faulting(self.random.choice(texts + [f"add {name}, {place}"] * self.flags), _SKIP)

    def load_again(self):
        base, place = self.nowhere()
        name = self.target()
        self.faulting(f"mov {name}, {place}", _MEND, base)
        self.defined.add(name)

    def store(self):
        _, place = self.nowhere()
        size = self.random.choice(("qword", "dword", "byte"))
        self.faulting(self.random.choice((f"mov {size} ptr {place}, 5", f"mov {place}, {self.read()}")), _SKIP)

    def change(self):
        if not self.flags:
            raise NothingFitsError
        base, place = self.nowhere()
        other = self.target(64, defined=True)
        texts = (f"inc qword ptr {place}", f"lock add dword ptr {place}, 3", f"xchg {place}, {other}")
        self.faulting(self.random.choice(texts), _MEND, base)

    def divide(self):
        if {"rax", "rcx", "rdx"} & self.reserved:
            raise NothingFitsError
        self.emit(f"mov rax, {self.read()}", "xor edx, edx", "xor ecx, ecx", *["nop"] * (self.random.random() < 0.3))
        self.faulting("div rcx", self.random.choice((_SKIP, _DIVIDE)))
        self.emit("cmp rcx, rax")
        self.defined |= {"rax", "rcx", "rdx"}
        self.flags = True

    def trap(self):
        text = self.random.choice(("ud2", "hlt", "int3"))
        self.faulting(text, _SKIPPED if text == "int3" else _SKIP)
