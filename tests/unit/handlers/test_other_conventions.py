"""Where Go and Rust pass values, by their types alone."""

import pytest

from anyprobe.handlers.types.annotations import boolean, f32, f64, i8, i64, ptr, u8, u16, u32, u64
from anyprobe.handlers.types.calling_convention import parameter_name
from anyprobe.handlers.types.go_convention import go_places
from anyprobe.handlers.types.layouts import Array, Field, Struct, StructType, Variants
from anyprobe.handlers.types.rust_convention import rust_places, rust_result

string = Struct("string", str=ptr, len=i64)
small = Struct("small", a=i8, b=u16, c=f64, d=string)


def shown(pieces):
    return [(each.place, each.offset, each.bits) for each in pieces]


def test_go_gives_each_part_a_register():
    (first, second), (result,) = go_places((small, f32), (string,))
    assert shown(first) == [
        ("rax", 0, 8), ("rbx", 16, 16), ("xmm0", 64, 64), ("rcx", 128, 64), ("rdi", 192, 64),
    ]  # fmt: skip
    assert shown(second) == [("xmm1", 0, 32)]
    assert shown(result) == [("rax", 0, 64), ("rbx", 64, 64)]


def test_go_passes_a_value_whole_or_on_the_stack():
    """What does not fit goes to the stack, and what comes later may still fit; results are behind all of it."""
    parameters, results = go_places((*(string,) * 5, i64, i8, boolean), (Array(i64, 2), i64))
    assert [each.place for each in parameters[3]] == ["r9", "r10"]
    assert [each.place for each in parameters[4]] == ["stack+8", "stack+16"]
    assert [each.place for each in parameters[5]] == ["r11"]
    assert shown(parameters[6]) == [("stack+24", 0, 8)]
    assert shown(parameters[7]) == [("stack+25", 0, 8)]
    assert [each.place for each in results[0]] == ["stack+32", "stack+40"]
    assert [each.place for each in results[1]] == ["rax"]


def test_go_passes_arrays_of_one_value_as_that_value():
    ((one, two, none), _) = go_places((Array(u32, 1), Array(u32, 2), Array(u32, 0)))
    assert shown(one) == [("rax", 0, 32)]
    assert shown(two) == [("stack+8", 0, 64)]
    assert shown(none) == []


def enum(size, discriminant, **alternatives):
    made = {name: (value, Field(name, kind, 0)) for name, (value, kind) in alternatives.items()}
    fields = tuple(field for _, field in made.values())
    variants = Variants(Field("", discriminant, 0), made)
    return StructType("enum", size, fields, variants=lambda: variants)


def payload(kind, at, size):
    return StructType("variant", size, (Field("__0", kind, 8 * at),))


nothing = StructType("None", 16, ())
option = enum(16, u64, none=(0, nothing), some=(1, payload(u64, 8, 16)))
reference = enum(8, u64, none=(0, nothing), some=(None, payload(ptr, 0, 8)))
fault = enum(8, u32, missing=(0, nothing), code=(1, payload(u32, 4, 8)))
result = enum(8, u32, ok=(2, payload(u32, 4, 8)), err=(None, payload(fault, 0, 8)))


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (string, [("rax", 0, 64), ("rdx", 64, 64)]),
        (Struct("point", x=u32, y=f64), [("rax", 0, 32), ("xmm0", 64, 64)]),
        (option, [("rax", 0, 64), ("rdx", 64, 64)]),
        (reference, [("rax", 0, 64)]),
        (result, [("rax", 0, 64)]),
        (Array(u8, 7), [("rax", 0, 56)]),
    ],
)
def test_rust_returns_one_or_two_numbers_in_registers(kind, expected):
    assert shown(rust_result(kind)) == expected


def test_rust_passes_the_address_of_what_is_larger():
    different = enum(16, u32, ok=(0, payload(ptr, 8, 16)), err=(1, payload(u32, 4, 16)))
    assert [rust_result(each) for each in (Array(u8, 12), Array(u64, 2), different)] == [None] * 3
    large = Struct("large", a=u64, b=u64, c=u64)
    assert rust_result(large) is None
    assert [shown(each) for each in rust_places((large, f64, string), hidden=True)] == [
        [("rsi", 0, 64)], [("xmm0", 0, 64)], [("rdx", 0, 64), ("rcx", 64, 64)],
    ]  # fmt: skip


def test_names_that_mean_something_else_have_a_line_after_them():
    names = ["ctx", "from", "arg0", "argument", "_", "", "path"]
    assert [parameter_name(name, at) for at, name in enumerate(names)] == [
        "ctx_", "from_", "arg0_", "argument", "parameter4", "parameter5", "path",
    ]  # fmt: skip
