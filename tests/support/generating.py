"""Generates well-typed handlers as source text, and parameters to run them with."""

import itertools
import linecache
from dataclasses import dataclass

from hypothesis import strategies as st

from anyprobe.handlers.types import annotations
from anyprobe.handlers.types.annotations import f32, f64, i8, i16, i32, i64, ptr, u8, u16, u32, u64

KINDS = (i64, u64, i32, u32, i16, u16, i8, u8, f64, f32)
WIDE = {"i": i64, "u": u64, "f": f64}
EDGES = (
    0,
    1,
    2,
    3,
    7,
    63,
    64,
    65,
    127,
    128,
    255,
    256,
    32767,
    65535,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    (1 << 63) - 1,
    1 << 63,
)
FLOATS = (
    0.0,
    -0.0,
    1.0,
    -1.5,
    0.1,
    3e9,
    -3e9,
    1e300,
    1e-300,
    float("inf"),
    float("-inf"),
    float("nan"),
    2.0**63,
    2.0**64,
)
_numbers = itertools.count()


@dataclass(frozen=True)
class Generated:
    """A handler, its parameters' types, and rows of values for them."""

    text: str
    function: object
    kinds: tuple
    rows: tuple


class Writer:
    """Writes one handler; ``i``, ``u``, ``f`` and ``b`` are expressions of type i64 (or narrower), u64, float, bool."""

    def __init__(self, draw, kinds, *, floats, memory, collecting):
        self.draw, self.floats, self.memory, self.collecting = draw, floats, memory, collecting
        self.names = {"i": [], "u": [], "f": [], "b": []}
        self.variables = {"i": [], "u": [], "f": [], "b": []}
        for index, kind in enumerate(kinds):
            self.names[family(kind)].append(f"p{index}")
        self.lines = []
        self.count = 0

    def pick(self, *choices):
        return self.draw(st.sampled_from(choices))

    def small(self, low, high):
        return self.draw(st.integers(low, high))

    def expr(self, family, depth):
        if depth <= 0 or self.small(0, 5) == 0:
            return self.leaf(family)
        return getattr(self, "_" + family)(depth - 1)

    def leaf(self, family):
        names = self.names[family]
        if names and self.small(0, 3):
            return self.pick(*names)
        if family == "i":
            return f"i64({self.pick(0, 1, -1, 5, 100, -(1 << 63), (1 << 63) - 1)})"
        if family == "u":
            return f"u64({self.pick(0, 1, 2, 255, (1 << 63), (1 << 64) - 1)})"
        if family == "f":
            return f"f64({self.pick('0.5', '-2.0', '1e10', '3')})"
        return self.pick("True", "False")

    def any(self, depth):
        return self.expr(self.pick("i", "u"), depth)

    def constant(self, *values):
        return str(self.pick(*values))

    def _i(self, depth):
        symbol = self.pick("+", "-", "*", "//", "%", "&", "|", "^", "<<", ">>")
        forms = [
            lambda: f"({self.expr('i', depth)} {symbol} {self.expr('i', depth)})",
            lambda: f"({self.expr('i', depth)} {symbol} {self.constant(1, 2, 3, 8, 10, 60)})",
            lambda: (
                f"({self.constant(0, 1, 5, -7, 100)} {self.pick('+', '-', '*', '//', '%')} {self.expr('i', depth)})"
            ),
            lambda: f"({self.expr('i', depth)} {self.pick('<<', '>>')} {self.any(depth)})",
            lambda: f"({self.pick('-', '~', '+')}{self.expr('i', depth)})",
            lambda: f"{self.pick('i8', 'i16', 'i32', 'i64', 'u8', 'u16', 'u32')}({self.any(depth)})",
            lambda: f"{self.pick('min', 'max')}({self.expr('i', depth)}, {self.expr('i', depth)})",
            lambda: f"{self.pick('min', 'max')}({self.expr('i', depth)}, {self.constant(0, 1, -5, 1000)})",
            lambda: f"abs({self.expr('i', depth)})",
            lambda: f"({self.expr('i', depth)} if {self.expr('b', depth)} else {self.expr('i', depth)})",
            lambda: f"({self.expr('b', depth)} + {self.expr('i', depth)})",
            lambda: f"twice({self.any(depth)})",
        ]
        if self.floats:
            forms.append(lambda: f"{self.pick('i64', 'i32', 'u8')}({self.expr('f', depth)})")
        if self.memory:
            forms.append(lambda: f"q[{self.expr('i', depth)} & 15]")
            forms.append(lambda: f"bad[{self.constant(0, 1)}]")
        return self.pick(*forms)()

    def _u(self, depth):
        symbol = self.pick("+", "-", "*", "//", "%", "&", "|", "^", "<<", ">>")
        wrapping = self.pick("+", "-", "*", "&", "|", "^")
        forms = [
            lambda: f"({self.expr('u', depth)} {symbol} {self.expr('u', depth)})",
            lambda: f"({self.expr('u', depth)} {symbol} {self.constant(1, 2, 3, 8, 10, 60)})",
            lambda: f"({self.expr('u', depth)} {wrapping} {self.expr('i', depth)})",
            lambda: f"({self.expr('i', depth)} {wrapping} {self.expr('u', depth)})",
            lambda: f"u64({self.expr('i', depth)})",
            lambda: f"{self.pick('min', 'max')}({self.expr('u', depth)}, {self.expr('u', depth)})",
            lambda: f"({self.pick('-', '~')}{self.expr('u', depth)})",
            lambda: f"({self.expr('u', depth)} if {self.expr('b', depth)} else {self.constant(0, 7)})",
            lambda: f"larger({self.expr('u', depth)}, {self.expr('i', depth)})",
        ]
        if self.floats:
            forms.append(lambda: f"u64({self.expr('f', depth)})")
        return self.pick(*forms)()

    def _f(self, depth):
        symbol = self.pick("+", "-", "*", "/")
        forms = [
            lambda: f"({self.expr('f', depth)} {symbol} {self.expr('f', depth)})",
            lambda: f"({self.expr('f', depth)} {symbol} {self.any(depth)})",
            lambda: f"({self.constant(0.5, 2, -3)} {symbol} {self.expr('f', depth)})",
            lambda: f"{self.pick('f32', 'f64', 'float')}({self.pick(self.any, lambda d: self.expr('f', d))(depth)})",
            lambda: f"(-{self.expr('f', depth)})",
            lambda: f"abs({self.expr('f', depth)})",
            lambda: f"({self.expr('f', depth)} if {self.expr('b', depth)} else {self.expr('f', depth)})",
            lambda: f"{self.pick('min', 'max')}({self.expr('f', depth)}, {self.expr('f', depth)})",
        ]
        return self.pick(*forms)()

    def _b(self, depth):
        symbol = self.pick("==", "!=", "<", "<=", ">", ">=")
        forms = [
            lambda: f"({self.any(depth)} {symbol} {self.any(depth)})",
            lambda: f"({self.any(depth)} {symbol} {self.constant(0, 1, -1, 64, 1 << 63)})",
            lambda: f"({self.constant(0, 5)} {symbol} {self.any(depth)} {self.pick('<', '<=', '!=')} {self.leaf('i')})",
            lambda: f"({self.expr('b', depth)} {self.pick('and', 'or')} {self.expr('b', depth)})",
            lambda: f"(not {self.any(depth)})",
            lambda: f"(not {self.expr('b', depth)})",
            lambda: f"bool({self.any(depth)})",
            lambda: f"({self.expr('i', depth)} in (0, 1, {self.leaf('i')}))",
        ]
        if self.floats:
            forms.append(lambda: f"({self.expr('f', depth)} {symbol} {self.expr('f', depth)})")
            forms.append(lambda: f"({self.expr('f', depth)} {symbol} {self.any(depth)})")
        return self.pick(*forms)()

    # -- statements

    def families(self):
        return ("i", "u", "b", "f") if self.floats else ("i", "u", "b")

    def say(self, indent, text):
        self.lines.append("    " * indent + text)

    def body(self, indent, depth, statements):
        scope = {family: list(names) for family, names in self.names.items()}
        for _ in range(statements):
            self.statement(indent, depth)
        self.names = scope

    def collect(self, indent):
        key = f"({self.expr('i', 1)}, {self.expr('u', 1)}, {self.expr('b', 1)})"
        self.say(
            indent,
            self.pick(
                "calls.add()",
                f"sums.add({self.expr('i', 2)}, key={key})",
                f"sums[{key[1:-1]}].add({self.expr('i', 1)})",
                f"values.add({self.expr('u', 2)})",
            ),
        )

    def statement(self, indent, depth):
        if self.collecting and self.small(0, 2) == 0:
            self.collect(indent)
            return
        kind = self.small(0, 9 if depth else 4)
        if kind <= 3:
            self.assignment(indent)
        elif kind == 4:
            family = self.pick("i", "u")
            names = [name for name in self.names[family] if name.startswith("v")]
            if names:
                self.say(indent, f"{self.pick(*names)} {self.pick('+', '-', '*', '^', '|')}= {self.expr(family, 2)}")
        elif kind <= 6:
            self.say(indent, f"if {self.expr('b', 2)}:")
            self.branch(indent, depth)
            if self.small(0, 1):
                self.say(indent, "else:")
                self.branch(indent, depth)
        elif kind == 7:
            bounds = self.pick("5", "1, 4", "7, -3, -2", f"{self.expr('u', 1)} & 7", f"min({self.expr('i', 1)}, 6)")
            if "min" in bounds:
                bounds = f"0, {bounds}"
            self.count += 1
            name = f"k{self.count}"
            self.say(indent, f"for {name} in range({bounds}):")
            self.branch(indent, depth, looping=True, name=name, family="u" if "& 7" in bounds else "i")
        elif kind == 8:
            self.count += 1
            name = f"w{self.count}"
            self.say(indent, f"{name} = {self.expr('u', 1)} & 0xFF")
            self.say(indent, f"while {name}{self.pick('', ' > 3', ' and ' + self.expr('b', 1))}:")
            self.say(indent + 1, f"{name} {self.pick('>>= 1', '//= 2', '>>= 3')}")
            self.branch(indent, depth, looping=True, name=name, family="u")
        else:
            self.say(indent, f"if {self.expr('b', 1)}:")
            self.say(indent + 1, f"return {self.expr(self.result, 1)}")

    def branch(self, indent, depth, *, looping=False, name="", family="i"):
        scope = {each: list(names) for each, names in self.names.items()}
        if name:
            self.names[family].append(name)
        self.say(indent + 1, "pass")
        self.body(indent + 1, depth - 1, self.small(1, 2))
        if looping and self.small(0, 2) == 0:
            self.say(indent + 1, f"if {self.expr('b', 1)}:")
            self.say(indent + 2, self.pick("break", "continue"))
        self.names = scope

    def assignment(self, indent):
        family = self.pick(*self.families())
        known = [name for name in self.names[family] if name.startswith("v")]
        if known and self.small(0, 1):
            name = self.pick(*known)
        else:
            self.count += 1
            name = f"v{self.count}"
        value = self.expr(family, 3)
        if family == "f" and name not in self.names[family]:
            value = f"f64({value})"
        if family == "f" and name in self.names[family]:
            value = f"f64({value})"
        self.say(indent, f"{name} = {value}")
        if name not in self.names[family]:
            self.names[family].append(name)


def family(kind):
    return "f" if isinstance(kind, annotations.FloatType) else "u" if kind == u64 else "i"


HELPERS = """
def twice(x):
    if x > 100:
        return 7
    return i64(x * 2)

def larger(x: u64, y: i64) -> u64:
    if y < 0:
        return x
    for k in range(3):
        if x > u64(y) + k:
            return x - k
    return u64(y)

"""


def define(text, name, **more):
    """Execute source text so that its source can be found again."""
    file = f"<generated {next(_numbers)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space = {
        each: getattr(annotations, each)
        for each in ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f32", "f64", "ptr")
    }
    space |= more
    exec(compile(text, file, "exec"), space)  # noqa: S102 - what has just been generated
    return space[name]


@st.composite
def handlers(draw, *, floats=True, memory=False, **collecting):
    """Generate a handler with two to four parameters and four rows of values."""
    pool = KINDS if floats else KINDS[:8]
    kinds = tuple(draw(st.lists(st.sampled_from(pool), min_size=2, max_size=4)))
    writer = Writer(draw, kinds, floats=floats, memory=memory, collecting=bool(collecting))
    writer.result = draw(st.sampled_from(writer.families()))
    parameters = [f"p{index}: {kind}" for index, kind in enumerate(kinds)]
    if memory:
        parameters += ["q: ptr[i16]", "bad: ptr[u32]"]
    writer.body(1, 2, draw(st.integers(1, 3)))
    result = writer.expr(writer.result, 3)
    if writer.result == "f":
        writer.lines = [
            line.replace("return ", "return f64(", 1) + ")" if "return " in line else line for line in writer.lines
        ]
        result = f"f64({result})"
    if writer.result == "i":
        writer.lines = [
            line.replace("return ", "return i64(", 1) + ")" if "return " in line else line for line in writer.lines
        ]
        result = f"i64({result})"
    text = (
        HELPERS + f"def handler({', '.join(parameters)}):\n" + "\n".join([*writer.lines, f"    return {result}"]) + "\n"
    )
    rows = tuple(tuple(draw(values(kind)) for kind in kinds) for _ in range(4))
    return Generated(text, define(text, "handler", **collecting), kinds, rows)


def values(kind):
    if isinstance(kind, annotations.FloatType):
        return st.sampled_from([kind(value) for value in FLOATS])
    return st.sampled_from([kind.wrap(value) for value in (*EDGES, *(-value for value in EDGES))])


__all__ = ["Generated", "define", "handlers", "ptr"]
