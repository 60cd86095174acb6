"""Members of structs: laid out as C does it, read as the interpreter reads them, taken out of words."""

import ctypes
import random
import struct

import pytest

from anyprobe.core.code import InputKind
from anyprobe.core.errors import HandlerError, UsageError
from anyprobe.handlers.compiler import intermediate
from anyprobe.handlers.frontend.lowering import Setting, lower
from anyprobe.handlers.ir import check
from anyprobe.handlers.types.annotations import boolean, f32, f64, i8, i16, i32, i64, ptr, u8, u16, u32, u64
from anyprobe.handlers.types.calling_convention import places, result_places
from anyprobe.handlers.types.layouts import Array, Field, OpaqueType, Struct, StructType, Union
from anyprobe.handlers.x86.native import compile_native
from support.reference.interpreter import Interpreter
from support.running import Runner, unword
from unit.handlers.test_differential import OwnMemory

C_TYPES = {
    i8: ctypes.c_int8, i16: ctypes.c_int16, i32: ctypes.c_int32, i64: ctypes.c_int64, u8: ctypes.c_uint8,
    u16: ctypes.c_uint16, u32: ctypes.c_uint32, u64: ctypes.c_uint64, f32: ctypes.c_float, f64: ctypes.c_double,
    ptr: ctypes.c_void_p, boolean: ctypes.c_bool,
}  # fmt: skip


def random_struct(choose, depth=0):
    """Return the members of a random struct as ours and as those of ctypes."""
    ours, theirs = {}, []
    for index in range(choose.randrange(1, 7)):
        name = f"m{index}"
        if depth < 2 and choose.random() < 0.25:
            union = choose.random() < 0.3
            inner, fields = random_struct(choose, depth + 1)
            base = ctypes.Union if union else ctypes.Structure
            ours[name] = (Union if union else Struct)("inner", **inner)
            theirs.append((name, type("Inner", (base,), {"_fields_": fields})))
            continue
        kind = choose.choice(list(C_TYPES))
        count = choose.choice([0, 0, 0, 3])
        ours[name] = Array(kind, count) if count else kind
        theirs.append((name, C_TYPES[kind] * count if count else C_TYPES[kind]))
    return ours, theirs


def test_structs_are_laid_out_as_c_does_it():
    choose = random.Random(3)
    for _ in range(300):
        ours, theirs = random_struct(choose)
        made, known = Struct("made", **ours), type("Known", (ctypes.Structure,), {"_fields_": theirs})
        assert (made.size, made.alignment) == (ctypes.sizeof(known), ctypes.alignment(known))
        for each in made.members():
            assert each.offset == 8 * getattr(known, each.name).offset


def test_what_is_no_type_is_refused():
    for wrong in (int, 3, "u8", None):
        with pytest.raises(UsageError, match="no type of fixed width"):
            Struct("wrong", x=wrong)
    with pytest.raises(UsageError, match="no array"):
        Array(u8, -1)


class Address(ctypes.Structure):
    _fields_ = (("port", ctypes.c_uint16), ("pad", ctypes.c_int32))


class Node(ctypes.Structure):
    pass


Node._fields_ = (
    ("flag", ctypes.c_bool), ("next", ctypes.POINTER(Node)), ("address", Address), ("numbers", ctypes.c_int16 * 4),
    ("ratio", ctypes.c_float), ("bits", ctypes.c_uint64), ("letters", ctypes.c_char * 8),
)  # fmt: skip


def node_type():
    address = Struct("address", port=u16, pad=i32)
    fields = {name: 8 * getattr(Node, name).offset for name, *_ in Node._fields_}
    bits = StructType(
        "bits", 8, (
            Field("low", u32, 0, 3), Field("high", i32, 3, 7), Field("wide", u64, 10, 40), Field("one", i8, 50, 1),
        ),
    )  # fmt: skip
    made = StructType("node", ctypes.sizeof(Node), lambda: members)
    members = (
        Field("flag", boolean, fields["flag"]), Field("next", ptr[made], fields["next"]),
        Field("address", address, fields["address"]), Field("numbers", Array(i16, 4), fields["numbers"]),
        Field("ratio", f32, fields["ratio"]), Field("", bits, fields["bits"]),
        Field("letters", Array(i8, 8), fields["letters"]),
    )  # fmt: skip
    return made


node = node_type()


def simple(p: ptr[node], n: i32):
    return p.address.port + n


def chained(p: ptr[node], n: i32):
    return p.next.next.address.pad + n


def indexed(p: ptr[node], n: i32):
    total = 0
    for index in range(4):
        total += p.next.numbers[index] * (n + index)
    return total


def of_arrays(p: ptr[node], n: i32):
    second = p[1]
    return second.address.port if second.flag else -n


def bits(p: ptr[node], n: i32):
    return p.low + p.high * 8 + p["wide"] * 1024 + p.one * n


def asked(p: ptr[node], n: i32):
    found = p.next.next.next.address.port
    if found is None:
        return n
    return found


def floats(p: ptr[node], n: i32):
    return p.ratio * n


def kept(p: ptr[node], n: i32):
    here = p
    for _ in range(3):
        following = here.next
        if following is None or following == 0:
            return here.address.port * n
        here = following
    return 0


@pytest.fixture(scope="module")
def nodes():
    made = (Node * 3)()
    choose = random.Random(5)
    for index, each in enumerate(made):
        each.flag, each.ratio = index != 0, index + 0.5
        each.address.port, each.address.pad = 65000 + index, -index - 1
        for at in range(4):
            each.numbers[at] = choose.randrange(-32768, 32768)
        each.bits = 5 - index | (-64 + index & 127) << 3 | (1 << 39) + index << 10 | 1 << 50
    made[0].next, made[1].next = ctypes.pointer(made[1]), ctypes.pointer(made[2])
    return made


@pytest.mark.parametrize("handler", [simple, chained, indexed, of_arrays, bits, asked, floats, kept])
def test_members_are_read_as_the_interpreter_reads_them(handler, nodes):
    found = lower(handler)
    check.check(found.function)
    runner = Runner(compile_native(intermediate(handler)))
    interpreter = Interpreter(handler, found.notes, OwnMemory())
    for address in (ctypes.addressof(nodes), ctypes.addressof(nodes[1]), 8, 1 << 47):
        for n in (-7, 0, 3):
            before = dict(runner.misses)
            for miss in interpreter.record.counts:
                interpreter.record.counts[miss] = 0
            wanted = interpreter.run(address, n)
            got = runner.run(address, n & (1 << 64) - 1)
            assert unword(got, found.function.result) == (0 if wanted is None else wanted.value)
            counted = {name: count - before[name] for name, count in runner.misses.items()}
            assert counted == {miss.value: count for miss, count in interpreter.record.counts.items()}


def filled(code, where):
    """Return a runner whose words are filled by place."""
    runner = Runner(code)
    for index, each in enumerate(code.inputs):
        place = each.place or each.name
        assert each.kind in {InputKind.PARAMETER, InputKind.REGISTER, InputKind.CONTEXT}
        runner.words[index] = where[place]
    return runner


packed = StructType(
    "packed", 12, (Field("a", i8, 0), Field("far", u64, 8), Field("low", u32, 72, 11), Field("high", i32, 83, 9)),
    alignment=1,
)  # fmt: skip
mixed = Struct("mixed", a=i16, x=f32, inner=Struct("inner", b=i8, c=Array(i8, 3)), d=u32)


def test_a_struct_is_taken_out_of_words():
    raw = struct.pack("<hxxf", -5, 2.5) + bytes([0xFF, 1, 0xFE, 3]) + struct.pack("<I", 0xFFFFFFF0)
    words = [int.from_bytes(raw[at : at + 8], "little") for at in (0, 8)]

    def whole(m: mixed, n: i64):
        return m.a + m.inner.b * 100 + m.inner.c[1] * 10_000 + m.d * 1_000_000 + n

    def fraction(m: mixed):
        return m.x

    assert [each for kind in (mixed,) for each in places([kind, i64])] == [("rdi", "rsi"), ("rdx",)]
    code = compile_native(intermediate(whole))
    runner = filled(code, {"rdi": words[0], "rsi": words[1], "rdx": 7})
    result = runner._call(ctypes.addressof(runner.words))
    assert unword(result, i64) == -5 - 100 - 20_000 + 0xFFFFFFF0 * 1_000_000 + 7
    runner = filled(compile_native(intermediate(fraction)), {"rdi": words[0], "rsi": words[1]})
    assert unword(runner._call(ctypes.addressof(runner.words)), f32) == 2.5


def test_packed_members_lie_across_words():
    raw = bytes([0x80]) + struct.pack("<Q", 0x1122334455667788) + (0x155 | -200 % 512 << 11).to_bytes(3, "little")
    words = [int.from_bytes(raw[at : at + 8].ljust(8, b"\0"), "little") for at in (0, 8)]

    def far(p: packed):
        return p.far

    def others(p: packed):
        return p.a * 1_000_000 + p.low * 1000 + p.high

    assert places([packed]) == [("stack+8", "stack+16")]
    for handler, wanted in ((far, 0x1122334455667788), (others, -128 * 1_000_000 + 0x155 * 1000 - 200)):
        runner = filled(compile_native(intermediate(handler)), {"stack+8": words[0], "stack+16": words[1]})
        result = runner._call(ctypes.addressof(runner.words))
        assert unword(result, i64) == wanted


def test_places_of_parameters_and_results():
    pair, large = Struct("pair", x=f64, y=f64), Struct("large", a=Array(i64, 3))
    wide = OpaqueType("long double", 16, ("X87", "X87"))
    assert places([u64, f64, i32, f32]) == [("rdi",), ("xmm0",), ("rsi",), ("xmm1",)]
    assert places([large, u8]) == [("stack+8", "stack+16", "stack+24"), ("rdi",)]
    assert places([u64] * 5 + [Struct("two", a=i64, b=i64), u64, u64]) == [
        ("rdi",), ("rsi",), ("rdx",), ("rcx",), ("r8",), ("stack+8", "stack+16"), ("r9",), ("stack+24",),
    ]  # fmt: skip
    assert places([u64] * 7 + [wide])[-2:] == [("stack+8",), ("stack+24", "stack+32")]
    assert places([f64] * 7 + [pair, f64])[-2:] == [("stack+8", "stack+16"), ("xmm7",)]
    assert places([u64], hidden=True) == [("rsi",)]
    assert result_places(pair) == ("xmm0", "xmm1")
    assert result_places(Struct("both", x=f64, n=i8)) == ("xmm0", "rax")
    assert result_places(large) is None
    assert result_places(Union("either", x=f64, n=i32)) == ("rax",)


def test_a_struct_is_returned():
    both = Struct("both", x=f64, n=i8)

    def result(ctx):
        return ctx.retval.n

    code = compile_native(intermediate(result, Setting(retval=both)))
    runner = filled(code, {"retval": 0xFE, "xmm0": 0})
    assert unword(runner._call(ctypes.addressof(runner.words)), i64) == -2
    assert [each.name for each in code.inputs] == ["retval"]


def mistakes():
    def unknown(p: ptr[node]):
        return p.adress  # p.adress | node has no adress | address

    def scalar(n: u64):
        return n.port  # n.port | u64 has no port |

    def untyped(p: ptr):
        return p.port  # p.port | points at no struct | Struct(

    def by_value(m: mixed):
        return m.inner.c[4]  # m.inner.c[4] | items 0 to 2 |

    def computed(m: mixed):
        return m + 1  # m + 1 | mixed |

    def changed(p: ptr[node]):
        p.ratio = 1.0  # p.ratio | changes what the program computes | unsafe=True

    def array(a: Array(u8, 3)):  # Array(u8, 3) | by their address | ptr[u8]
        return 0

    return [unknown, scalar, untyped, by_value, computed, changed, array]


@pytest.mark.parametrize("handler", mistakes(), ids=lambda each: each.__name__)
def test_mistakes_are_shown_where_they_are(handler):
    import inspect

    (line,) = (each for each in inspect.getsource(handler).splitlines() if "  # " in each)
    marked, message, instead = (each.strip() for each in line.split("  # ")[1].split("|"))
    with pytest.raises(HandlerError) as caught:
        intermediate(handler)
    assert message in str(caught.value)
    assert instead in str(caught.value)
    assert caught.value.source[caught.value.column - 1 :].startswith(marked)
