"""Random instructions for functions that read nothing undefined: see ``random_functions``."""

from contextlib import contextmanager

WIDE = ("rax", "rcx", "rdx", "rbx", "rsi", "rdi", "rbp", *(f"r{number}" for number in range(8, 16)))
ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
PRESERVED = ("rbx", "rbp", "r12", "r13", "r14", "r15")
RESULTS = ("rax", "rdx")
CONDITIONS = ("o", "no", "b", "ae", "e", "ne", "be", "a", "s", "ns", "p", "np", "l", "ge", "le", "g")
_LOW = dict(zip(WIDE[:7], ("al", "cl", "dl", "bl", "sil", "dil", "bpl"), strict=True))
MEMORY = 256
SLOTS = 8
"""Words of a function's own on the stack."""
COUNTERS = 3
"""How many of them count loops."""


def narrow(register, size):
    """Return the name of a register's low part."""
    if size == 64:
        return register
    if register[1:].isdigit():
        return register + {32: "d", 16: "w", 8: "b"}[size]
    return {32: "e" + register[1:], 16: register[1:], 8: _LOW[register]}[size]


class NothingFitsError(Exception):
    """No such instruction can stand here."""


class Straight:
    """The text of a function as it grows, and what is defined at its end."""

    def __init__(self, random, number, functions):
        self.random, self.number = random, number
        self.callees = range(number + 1, functions)
        self.lines, self.tables = [], []
        self.framed = random.random() < 0.7
        self.base = "rbx" if self.framed else "rdi"
        self.saved = ["rbx", *(name for name in PRESERVED[1:] if random.random() < 0.5)] if self.framed else []
        self.reserved = {self.base}
        self.pushed, self.labels, self.depth, self.slots, self.calls = 0, 0, 0, 0, 0
        self.writable = [name for name in WIDE if name not in PRESERVED or name in self.saved]
        self.defined = {*ARGUMENTS, self.base}
        self.vectors = {0, 1, 2, 3}
        self.flags = False

    # -- what there is

    def emit(self, *lines):
        self.lines += lines

    def label(self):
        self.labels += 1
        return f".L{self.number}_{self.labels}"

    def read(self, size=64):
        return narrow(self.random.choice(sorted(self.defined)), size)

    def target(self, size=64, *, defined=False):
        """Return a register to write; one that is written in part only must be defined."""
        partly = defined or size < 32
        names = [name for name in self.writable if name not in self.reserved and (name in self.defined or not partly)]
        if not names:
            raise NothingFitsError
        return self.random.choice(names)

    def slot(self, number=None):
        number = self.random.randrange(SLOTS - COUNTERS) if number is None else number
        return f"qword ptr [rsp{8 * number + self.pushed:+}]" if self.framed else f"qword ptr [rsp-{8 * number + 8}]"

    def place(self, size, step=1):
        """Return an operand in memory. What is locked had better be aligned: the kernel makes split locks slow."""
        name = {8: "byte", 16: "word", 32: "dword", 64: "qword"}[size]
        if self.random.random() < 0.4 and size == 64:
            return self.slot()
        return f"{name} ptr [{self.base}+{self.random.randrange(0, MEMORY - 16, step)}]"

    def source(self, size):
        kind = self.random.random()
        if kind < 0.5:
            return self.read(size)
        return self.place(size) if kind < 0.75 else str(self.random.choice((0, 1, -1, 5, 127, 77)))

    # -- straight

    def straight(self):
        kind = self.random.choice(STRAIGHT)
        try:
            getattr(self, "do_" + kind)()
        except NothingFitsError:
            self.emit("nop")

    def some(self, most):
        for _ in range(self.random.randint(0, most)):
            self.straight()

    def do_move(self):
        size = self.random.choice((64, 64, 32, 32, 16, 8))
        name = self.target(size)
        self.emit(f"mov {narrow(name, size)}, {self.source(size)}")
        self.defined.add(name)

    def do_store(self):
        size = self.random.choice((64, 32, 16, 8))
        self.emit(f"mov {self.place(size)}, {self.read(size)}")

    def do_operate(self):
        size = self.random.choice((64, 64, 32, 32, 16, 8))
        name = self.target(size, defined=True)
        operations = ["add", "sub", "and", "or", "xor", "cmp", "test"] + (["adc", "sbb"] if self.flags else [])
        operation = self.random.choice(operations)
        if operation == "test":
            self.emit(f"test {narrow(name, size)}, {self.read(size)}")
        elif self.random.random() < 0.25:
            self.emit(f"{operation} {self.place(size)}, {self.read(size)}")
        else:
            self.emit(f"{operation} {narrow(name, size)}, {self.source(size)}")
        self.flags = True

    def do_count(self):
        size = self.random.choice((64, 32, 16, 8))
        name = self.target(size, defined=True)
        operation = self.random.choice(("inc", "dec", "neg", "not"))
        self.emit(f"{operation} {narrow(name, size)}")
        self.flags = self.flags or operation == "neg"

    def do_shift(self):
        size = self.random.choice((64, 32, 16, 8))
        name = self.target(size, defined=True)
        operations = ["shl", "shr", "sar", "rol", "ror"] + (["rcl", "rcr"] if self.flags else [])
        by = "cl" if "rcx" in self.defined and self.random.random() < 0.4 else self.random.choice((0, 1, 3, 7))
        if not self.flags:
            self.emit(f"test {narrow(name, 64)}, {narrow(name, 64)}")
        self.emit(f"{self.random.choice(operations)} {narrow(name, size)}, {by}")
        self.flags = True

    def do_double_shift(self):
        name = self.target(64, defined=True)
        if not self.flags:
            self.emit(f"add {name}, 3")
        self.emit(f"{self.random.choice(('shld', 'shrd'))} {name}, {self.read()}, {self.random.randrange(64)}")
        self.flags = True

    def do_compute_address(self):
        name = self.target()
        self.emit(f"lea {name}, [{self.read()}+{self.read()}*{self.random.choice((1, 2, 4, 8))}-9]")
        self.defined.add(name)

    def do_extend(self):
        name = self.target()
        kind, size = self.random.choice((("movzx", 8), ("movzx", 16), ("movsx", 8), ("movsx", 16), ("movsxd", 32)))
        self.emit(f"{kind} {name}, {self.random.choice((self.read(size), self.place(size)))}")
        self.defined.add(name)

    def do_multiply(self):
        name = self.target(64, defined=True)
        self.emit(f"imul {name}, {self.random.choice((self.read(), self.place(64)))}")
        self.emit("test eax, eax" if "rax" in self.defined else f"test {name}, {name}")
        self.flags = True

    def do_divide(self):
        if {"rax", "rcx", "rdx"} & self.reserved:
            raise NothingFitsError
        self.emit(f"mov rax, {self.read()}", f"mov ecx, {self.read(32)}", "or ecx, 5", "xor edx, edx", "div rcx")
        self.defined |= {"rax", "rcx", "rdx"}
        self.emit("cmp rdx, 7")
        self.flags = True

    def do_condition(self):
        if not self.flags:
            raise NothingFitsError
        condition = self.random.choice(CONDITIONS)
        if self.random.random() < 0.5:
            name = self.target(64, defined=True)
            self.emit(f"cmov{condition} {name}, {self.random.choice((self.read(), self.place(64)))}")
        else:
            self.emit(f"set{condition} {self.random.choice((narrow(self.target(8), 8), self.place(8)))}")

    def do_carry(self):
        if not self.flags:
            raise NothingFitsError
        self.emit(self.random.choice(("stc", "clc", "cmc")))

    def do_bits(self):
        name = self.target(64, defined=True)
        if not self.flags:
            self.emit(f"sub {name}, 1")
        kind = self.random.choice(("bt", "bts", "btr", "btc"))
        self.emit(f"{kind} {self.random.choice((name, self.place(64)))}, {self.random.randrange(64)}")
        self.flags = True

    def do_scan(self):
        name = self.target(64, defined=True)
        if not self.flags:
            self.emit(f"or {name}, 2")
        self.emit(f"{self.random.choice(('bsf', 'bsr', 'tzcnt', 'lzcnt', 'popcnt'))} {name}, {self.read()}")
        self.emit(f"cmp {name}, {self.read()}")
        self.flags = True

    def do_swap(self):
        name, other = self.target(64, defined=True), self.target(64, defined=True)
        lock = "lock " if self.random.random() < 0.3 else ""
        if not self.flags:
            self.emit(f"test {name}, {other}")
        self.flags = True
        self.emit(self.random.choice((
            f"xchg {name}, {other}", f"bswap {name}", f"xchg {self.place(64, 8)}, {name}",
            f"{lock}xadd {self.place(64, 8)}, {name}", f"{lock}add {self.place(32, 4)}, 3",
        )))  # fmt: skip

    def do_compare_and_swap(self):
        if {"rax", "rdx"} & self.reserved or not {"rax", "rdx", "rcx", "rbx"} <= self.defined:
            raise NothingFitsError
        if self.random.random() < 0.5:
            self.emit(f"lock cmpxchg {self.place(64, 8)}, rcx")
            self.flags = True
        elif self.flags:
            self.emit(f"lock cmpxchg16b xmmword ptr [{self.base}+{16 * self.random.randrange(8)}]")

    def do_keep_flags(self):
        if not self.flags:
            raise NothingFitsError
        if self.random.random() < 0.5 and "rax" in self.defined and "rax" not in self.reserved:
            self.emit(self.random.choice(("lahf", "sahf")))
        elif self.framed:
            with self.kept("pushfq", "popfq"):
                self.some(3)
            self.flags = True

    def do_push(self):
        if not self.framed:
            raise NothingFitsError
        name = self.target()
        with self.kept(f"push {self.random.choice((self.read(), self.slot(), '5'))}", f"pop {name}"):
            self.some(4)
        self.defined.add(name)

    @contextmanager
    def kept(self, push, pop):
        self.emit(push, ".cfi_adjust_cfa_offset 8")
        self.pushed += 8
        yield
        self.pushed -= 8
        self.emit(pop, ".cfi_adjust_cfa_offset -8")

    def do_fill(self):
        if {"rax", "rcx", "rsi", "rdi"} & self.reserved:
            raise NothingFitsError
        self.emit(
            f"lea rdi, [{self.base}+{self.random.randrange(64, 100)}]",
            f"lea rsi, [{self.base}+{self.random.randrange(100)}]",
        )
        self.emit(f"mov ecx, {self.random.randrange(9)}", f"mov rax, {self.read()}")
        self.defined |= {"rax", "rcx", "rsi", "rdi"}
        down = self.random.random() < 0.3
        kind = self.random.choice(("rep stosb", "rep movsb", "rep movsq", "stosd", "movsw", "lodsb", "rep stosw"))
        self.emit(*(["std"] if down and kind not in ("rep movsq", "rep stosw") else []), kind, "cld")

    def do_vector(self):
        one, other = self.random.randrange(8), self.random.choice(sorted(self.vectors))
        self.emit(self.random.choice((
            f"movaps xmm{one}, xmm{other}", f"movups xmm{one}, [{self.base}+{self.random.randrange(200)}]",
            f"cvtsi2sd xmm{other}, {self.read()}\nmovaps xmm{one}, xmm{other}", f"movq xmm{one}, {self.read()}",
            f"pxor xmm{one}, xmm{one}",
        )))  # fmt: skip
        self.vectors.add(one)

    def do_float(self):
        one, other = (self.random.choice(sorted(self.vectors)) for _ in range(2))
        self.emit(self.random.choice((
            f"addsd xmm{one}, xmm{other}", f"mulsd xmm{one}, xmm{other}", f"paddq xmm{one}, xmm{other}",
            f"movups [{self.base}+{self.random.randrange(200)}], xmm{one}", f"sqrtsd xmm{one}, xmm{other}",
            f"pshufd xmm{one}, xmm{other}, 0x4e", f"xorps xmm{one}, xmm{other}",
        )))  # fmt: skip

    def do_float_to_number(self):
        name, one = self.target(), self.random.choice(sorted(self.vectors))
        self.emit(f"{self.random.choice(('cvtsd2si', 'cvttsd2si', 'movq'))} {name}, xmm{one}")
        self.defined.add(name)

    def do_float_compare(self):
        one, other = (self.random.choice(sorted(self.vectors)) for _ in range(2))
        self.emit(f"{self.random.choice(('comisd', 'ucomisd'))} xmm{one}, xmm{other}")
        self.flags = True

    def do_rounding(self):
        """Convert in another rounding mode."""
        slot, name, one = self.slot(0), self.target(), self.random.choice(sorted(self.vectors))
        word = slot.replace("qword", "dword")
        self.emit(f"stmxcsr {word}", f"xor {word}, 0x4000", f"ldmxcsr {word}", f"cvtsd2si {name}, xmm{one}")
        self.defined.add(name)
        self.flags = True
        self.emit(f"xor {word}, 0x4000", f"ldmxcsr {word}", f"and {word}, 0")

    def do_x87(self):
        """Push, compute and pop, other things in between."""
        place = f"[{self.base}+{self.random.randrange(MEMORY - 16)}]"
        pushes = [self.random.choice((f"fild qword ptr {place}", "fld1", "fldz", "fldpi", f"fild dword ptr {place}"))
                  for _ in range(self.random.randint(2, 4))]  # fmt: skip
        for push in pushes:
            self.emit(push)
            self.some(2)
        depth = len(pushes)
        while depth > 1:
            kind = self.random.choice(
                ("faddp", "fmulp", "fxch", "fsub st, st(1)", "fcomip st, st(1)", "fabs", "fstp st(1)", "fcompp")
            )
            if kind == "fcompp" and depth < 3:
                continue
            self.emit(kind)
            depth -= {"faddp": 1, "fmulp": 1, "fcomip st, st(1)": 1, "fstp st(1)": 1, "fcompp": 2}.get(kind, 0)
            self.flags = self.flags or kind.startswith("fcomip")
            self.some(2)
        self.emit(f"fstp qword ptr {place}" if self.random.random() < 0.7 else "fstp st(0)")

    def do_nothing(self):
        self.emit(self.random.choice(("nop", "nop dword ptr [rax+rax*1+0]", "endbr64", "data16 nop", "pause")))


STRAIGHT = [name.removeprefix("do_") for name in dir(Straight) if name.startswith("do_")]
