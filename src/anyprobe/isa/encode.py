"""Assembly text to machine code, in the encoder's forms of iced: what generated code is written with.

A listing has one instruction for each ``;`` or line, in Intel syntax. A line that ends in ``:`` is a label, a comment
begins with ``#``. A name that is neither a register nor a label stands for a value that comes beside the text.

How long an instruction is depends on the text alone, never on a value or on where the code will lie: a number that is
written out takes the shortest form, a named value the widest (``mov rax, name`` has eight bytes of immediate), and
branches have 32 bits unless they say ``short``. Of two forms that do the same, ``.s`` after the mnemonic takes the one
that loads (``mov.s rax, rbx`` is ``48 8b c3``). So a listing is assembled once, however often it is used.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, lru_cache
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from iced_x86 import Code, Encoder, Instruction, MemoryOperand, Register, RegisterExt

from anyprobe.core.errors import InternalError

if TYPE_CHECKING:
    from iced_x86 import Register_

CONDITIONS = ("o", "no", "b", "ae", "e", "ne", "be", "a", "s", "ns", "p", "np", "l", "ge", "le", "g")
"""The names of conditions by their numbers in opcodes."""
_OTHER_NAMES = {"c": 2, "nae": 2, "nb": 3, "nc": 3, "z": 4, "nz": 5, "na": 6, "nbe": 7, "nge": 12, "nl": 13, "ng": 14}
_CONDITIONS = {name: number for number, name in enumerate(CONDITIONS)} | _OTHER_NAMES
_NEAR = {"jmp": b"\xe9", "call": b"\xe8"} | {f"j{name}": bytes((0x0F, 0x80 | n)) for name, n in _CONDITIONS.items()}
_SHORT = {"jmp": b"\xeb"} | {f"j{name}": bytes((0x70 | number,)) for name, number in _CONDITIONS.items()}
_ALWAYS_SHORT = {"loop": b"\xe2", "jrcxz": b"\xe3"}
_NAMES = {"ret": "RETNQ", "setz": "SETE", "setnz": "SETNE", "cmovz": "CMOVE", "cmovnz": "CMOVNE"}
_SIZES = {"byte": 8, "word": 16, "dword": 32, "qword": 64, "xmmword": 128}
_ACCUMULATORS = frozenset({"al", "eax", "rax"})
_COMMENT = re.compile("#.*")
_TERM = re.compile(r"[+-]?[^+-]+")
_WIDE = 0x11223344
"""Stands in the place of a value until it is known; it takes the widest form."""


class Hole(NamedTuple):
    """Where a named value goes."""

    at: int
    size: int
    name: str
    add: int


class Fixup(NamedTuple):
    """Where the distance to a label, or to an address that a name stands for, goes."""

    at: int
    size: int
    end: int
    """Where distances are counted from."""
    target: str | int


class Encoded(NamedTuple):
    """One instruction, with its places from its own beginning."""

    text: str
    content: bytes
    holes: tuple[Hole, ...] = ()
    fixups: tuple[Fixup, ...] = ()


class _Sum(NamedTuple):
    number: int
    name: str = ""


class _Memory(NamedTuple):
    size: int
    """In bits; 0: as the other operand."""
    segment: str
    base: str
    scaled: str
    scale: int
    displacement: _Sum
    mode: str
    """``rel``: named by its distance, ``abs``: by all 64 bits of its address."""


_Operand = str | _Memory | _Sum
"""A register's name, a place in memory or an immediate."""


@lru_cache(maxsize=4096)
def encode(text: str) -> Encoded:
    """Return one instruction.

    Raises:
        InternalError: There is no such instruction.
    """
    mnemonic, _, rest = text.partition(" ")
    if mnemonic in _NEAR or mnemonic in _ALWAYS_SHORT:
        target = rest.strip()
        if "[" not in target and target not in _registers():
            return _branch(text, mnemonic, target)
    if mnemonic == "lock":
        plain = encode(rest)
        holes = tuple(hole._replace(at=hole.at + 1) for hole in plain.holes)
        fixups = tuple(each._replace(at=each.at + 1, end=each.end + 1) for each in plain.fixups)
        return Encoded(text, b"\xf0" + plain.content, holes, fixups)
    return _encode(text, mnemonic, [_operand(each.strip()) for each in rest.split(",")] if rest else [])


@cache
def head(text: str) -> bytes:
    """Return instructions without the four bytes that the last one ends in, which are a named value or a distance."""
    *others, last = statements(text)
    one = encode(last)
    places = [each[:2] for each in one.holes] + [each[:2] for each in one.fixups]
    if places != [(len(one.content) - 4, 4)]:
        raise InternalError(f"does not end in four bytes of a value: {text}")
    return machine_code("; ".join(others)) + one.content[:-4]


@cache
def machine_code(text: str) -> bytes:
    """Return the bytes of instructions that name nothing."""
    parts = [encode(each) for each in statements(text)]
    if any(part.holes or part.fixups for part in parts):
        raise InternalError(f"not known by itself: {text}")
    return b"".join(part.content for part in parts)


def statements(listing: str) -> list[str]:
    """Return the instructions and labels of a listing."""
    plain = _COMMENT.sub("", listing) if "#" in listing else listing
    return [text for each in plain.replace("\n", ";").split(";") if (text := each.strip())]


def _branch(text: str, mnemonic: str, target: str) -> Encoded:
    if mnemonic in _ALWAYS_SHORT or target.startswith("short "):
        opcode, size = (_ALWAYS_SHORT.get(mnemonic) or _SHORT[mnemonic]), 1
        target = target.removeprefix("short ")
    else:
        opcode, size = _NEAR[mnemonic], 4
    end = len(opcode) + size
    return Encoded(text, opcode + bytes(size), (), (Fixup(len(opcode), size, end, target),))


@cache
def _encoder() -> Encoder:
    return Encoder(64)


@cache
def _registers() -> "dict[str, Register_]":
    return {name.lower(): getattr(Register, name) for name in dir(Register) if name.isupper() and name != "NONE"}


@lru_cache(maxsize=1024)
def _operand(text: str) -> _Operand:
    if text.endswith("]"):
        return _memory(text)
    return text if text in _registers() else _sum(_TERM.findall(text))


def _sum(terms: Sequence[str]) -> _Sum:
    number, name = 0, ""
    for term in terms:
        digits = term.lstrip("+-").strip()
        if digits[0].isdigit():
            number += int(digits, 0) * (-1 if term[0] == "-" else 1)
        elif name or term[0] == "-" or not digits.isidentifier():
            raise InternalError(f"not an operand: {''.join(terms)}")
        else:
            name = digits
    return _Sum(number, name)


def _memory(text: str) -> _Memory:
    head, _, inside = text[:-1].partition("[")
    size, _, segment = head.rpartition(" ")
    if head in _SIZES:
        size, segment = head, ""
    mode, _, terms = inside.rpartition(" ") if inside[:4] in ("rel ", "abs ") else ("", "", inside)
    base, index, scale, others = "", "", 1, []
    for term in _TERM.findall(terms):
        register, _, times = term.lstrip("+").strip().partition("*")
        if register not in _registers():
            others.append(term)
        elif times or base:
            index, scale = register, int(times or "1")
        else:
            base = register
    bits = _SIZES.get(size.strip(), 0)
    return _Memory(bits, segment.strip(": "), base, index, scale, _sum(others), mode)


@cache
def _size(register: str) -> int:
    return 8 * RegisterExt.size(_registers()[register])


def _encode(text: str, mnemonic: str, operands: list[_Operand]) -> Encoded:
    size = next((_size(each) for each in operands if isinstance(each, str)), 0)
    size = size or next((each.size for each in operands if isinstance(each, _Memory)), 0)
    kinds = tuple([_kind(each, size) for each in operands])
    form = _form(mnemonic, kinds)
    if form is None:
        raise InternalError(f"there is no such instruction: {text}")
    code, maker = form
    named, arguments = _arguments(operands, size)
    encoder = _encoder()
    try:
        encoder.encode(getattr(Instruction, maker)(code, *arguments), 0)
    except ValueError as error:
        encoder.take_buffer()
        raise InternalError(f"there is no such instruction: {text}") from error
    content = encoder.take_buffer()
    if not named:
        return Encoded(text, content)
    places = encoder.get_constant_offsets()
    holes, fixups = [], []
    for each in named:
        if isinstance(each, _Sum):
            holes.append(Hole(places.immediate_offset, places.immediate_size, each.name, each.number))
        elif each.mode == "rel":
            name = each.displacement.name
            fixups.append(Fixup(places.displacement_offset, 4, len(content), name))
        else:
            name, add = each.displacement.name, each.displacement.number
            holes.append(Hole(places.displacement_offset, places.displacement_size, name, add))
    return Encoded(text, content, tuple(holes), tuple(fixups))


def _arguments(operands: list[_Operand], size: int) -> tuple[list[_Memory | _Sum], list[object]]:
    """Return the operands that have a name in them, and all as the encoder takes them; ``size``: of what is changed."""
    named: list[_Memory | _Sum] = []
    arguments: list[object] = []
    for each in operands:
        if isinstance(each, str):
            arguments.append(_registers()[each])
        elif isinstance(each, _Sum):
            if each.name:
                named.append(each)
            arguments.append(0 if each.name else _signed(each.number, size))
        else:
            if each.displacement.name:
                named.append(each)
            arguments.append(_place(each))
    return named, arguments


def _signed(number: int, size: int) -> int:
    """Return an immediate as signed: of 32 bits if it fits there, and 64 are not meant."""
    bits = 32 if number < 1 << 32 and size != 64 else 64
    return number - (1 << bits) if number >> (bits - 1) == 1 else number


def _place(memory: _Memory) -> MemoryOperand:
    numbers = _registers()
    displacement = _WIDE if memory.displacement.name else memory.displacement.number
    short = 1 if displacement else 0
    wide = memory.displacement.name or not (memory.base or memory.scaled)
    return MemoryOperand(
        Register.RIP if memory.mode == "rel" else numbers.get(memory.base, Register.NONE),
        numbers.get(memory.scaled, Register.NONE),
        memory.scale,
        displacement,
        8 if wide else short,
        seg=numbers.get(memory.segment, Register.NONE),
    )


@cache
def _register_kind(register: str) -> str:
    known = register in _ACCUMULATORS or register == "cl"
    return f"{register if known else 'xmm' if register.startswith('xmm') else 'r'} {_size(register)}"


def _kind(operand: _Operand, size: int) -> str:
    """Return what matters of an operand for the choice of a form; ``size``: of what is changed."""
    if isinstance(operand, str):
        return _register_kind(operand)
    if isinstance(operand, _Memory):
        return f"{'abs' if operand.mode == 'abs' else 'm'} {operand.size or size}"
    value = _signed(operand.number, size)
    if operand.name:
        return "name"
    return "1" if value == 1 else "byte" if -128 <= value < 128 else "int" if -(1 << 31) <= value < 1 << 31 else "long"


@cache
def _form(mnemonic: str, kinds: tuple[str, ...]) -> tuple[int, str] | None:
    """Return the encoder's code and what makes its instruction: of the first form that exists."""
    plain = mnemonic.removesuffix(".s")
    name, codes = _NAMES.get(plain, plain.upper()), vars(Code)
    forms: Iterable[str] = _forms(kinds)
    if plain != mnemonic:
        forms = reversed(_forms(kinds))
    if mnemonic in ("push", "pop") and kinds[0] in ("r 64", "rax 64"):
        forms = ("_R64",)
    elif mnemonic == "push" and " " not in kinds[0]:
        name = "PUSHQ"
    elif mnemonic == "nop" and not kinds:
        name = "NOPD"
    elif kinds[-1:] == ("abs 64",):
        forms = ("_RAX_MOFFS64",)
    for form in forms:
        code = codes.get(name + form)
        if code is not None:
            maker = _maker(kinds)
            return code, maker.replace("i32", "i64") if form.endswith("_IMM64") else maker
    return None


@cache
def _maker(kinds: tuple[str, ...]) -> str:
    """Return the name of what makes an instruction of such operands."""
    shapes = ["mem" if kind[:2] in ("m ", "ab") else "reg" if " " in kind else "i32" for kind in kinds]
    return "_".join(("create", *shapes))


@cache
def _forms(kinds: tuple[str, ...]) -> tuple[str, ...]:
    """Return the ways to write operands, as the names of the encoder's codes end, the shortest instruction's first."""
    return tuple(["".join(["_" + each for each in form]) for form in _ways(kinds)])


def _ways(kinds: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Return the ways to write operands, the shortest instruction's first."""
    if not kinds or " " in kinds[-1]:
        yield from product(*map(_alternatives, kinds))
        return
    *others, immediate = kinds
    if not others:
        yield from ((each,) for each in ("IMM8", "IMM32", "IMM16")[immediate not in ("1", "byte") :])
        return
    register, _, bits = others[0].partition(" ")
    size = "IMM" + str(min(int(bits), 32))
    ways = list(product(*map(_alternatives, others)))
    if immediate == "1":
        yield from ((*way, "1") for way in ways)
    if immediate in ("1", "byte") and bits != "8":
        yield from ((*way, "IMM8") for way in ways)
    if register in _ACCUMULATORS and immediate != "long":
        yield register.upper(), size
    if bits == "64" and immediate in ("long", "name"):
        yield "R64", "IMM64"
    if immediate != "long":
        yield from ((*way, size) for way in reversed(ways))
        yield from ((*way, "IMM8") for way in ways)


def _alternatives(kind: str) -> list[str]:
    """Return how a register or a place in memory may be named in a form, the one to take first."""
    what, _, bits = kind.partition(" ")
    match what:
        case "m":
            return [f"RM{bits}", "M", f"M{bits}", *(f"XMMM{each}" for each in (128, 64, 32))]
        case "xmm":
            return ["XMM", "XMMM128", "XMMM64", "XMMM32"]
        case "cl":
            return ["R8", "RM8", "CL"]
        case _:
            return [f"RM{bits}", f"R{bits}"]
