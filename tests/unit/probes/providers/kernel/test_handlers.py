"""What BTF says of a function, as handlers have it."""

import pytest

from anyprobe import i32, u8, u16, u64
from anyprobe.core.code import Input, InputKind
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.handlers.types.annotations import PointerType, boolean, i8, u32
from anyprobe.handlers.types.btf_types import types_of
from anyprobe.handlers.types.layouts import ArrayType, OpaqueType, StructType
from anyprobe.probes.providers.kernel.passing import by_type, prototype
from anyprobe.probes.providers.kernel.places.sites import FunctionType, KernelSite
from anyprobe.target.kernel.btf import Btf
from anyprobe.target.kernel.types import Tag
from support.btf_blobs import Blob

SITE = KernelSite("kernel:vmlinux:f:entry", "vmlinux", "f", "entry")


def type_of(blob, name="f"):
    types = Btf(blob.content())
    return FunctionType(types, types.number_of_function(name))


def test_parameters_have_types():
    blob = Blob()
    number, byte = blob.integer("int"), blob.integer("unsigned char", 1, 0)
    size = blob.add(Tag.TYPEDEF, "size_t", blob.integer("unsigned long", 8, 0))
    buffer = blob.add(Tag.PTR, "", byte)
    file = blob.add(Tag.PTR, "", blob.structure("file", 8, []))
    blob.function("f", number, ("file", file), ("buffer", buffer), ("count", size))
    found = prototype(SITE, type_of(blob))
    (_, pointer), *others = found.parameters
    assert isinstance(pointer.element, StructType)
    assert pointer.element.name == "struct file"
    assert others == [("buffer", PointerType(u8)), ("count", u64)]
    assert found.result == i32


def test_function_without_a_result():
    blob = Blob()
    blob.function("f", 0)
    assert prototype(SITE, type_of(blob)).result is None


def test_booleans_and_enumerations():
    blob = Blob()
    truth = blob.integer("_Bool", 1, 4)
    which = blob.add(Tag.ENUM, "which", 2, [blob.text("A"), 0], 1)
    types = types_of(Btf(blob.content()))
    assert types.of(truth) == boolean
    assert types.of(which) == u16


def test_members_at_any_depth():
    blob = Blob()
    byte, word = blob.integer("char", 1, 1), blob.integer("unsigned int", 4, 0)
    eight = blob.add(Tag.ARRAY, "", 0, [byte, word, 8])
    inner = blob.structure(
        "", 8, [("port", word, 0), ("low", word, 32 | 3 << 24), ("high", word, 35 | 5 << 24)], flag=True
    )
    both = blob.structure("", 8, [("whole", eight, 0), ("", inner, 0)], tag=Tag.UNION)
    node = blob.number
    blob.structure("node", 24, [("next", node + 1, 0), ("name", eight, 64), ("", both, 128)])
    blob.add(Tag.PTR, "", node)
    kind = types_of(Btf(blob.content())).named("struct node")
    assert isinstance(kind, StructType)
    assert kind.size == 24
    assert kind.member("next").kind.element is kind
    name = kind.member("name")
    assert isinstance(name.kind, ArrayType)
    assert (name.kind.element, name.kind.count, name.offset) == (i8, 8, 64)
    high = kind.member("high")
    assert (high.kind, high.offset, high.bits) == (u32, 128 + 35, 5)
    assert kind.member("whole").offset == kind.member("port").offset == 128


def test_a_structure_that_is_passed_takes_as_many_words_as_it_has():
    blob = Blob()
    word = blob.integer("long", 8)
    pair = blob.structure("pair", 16, [("a", word, 0), ("b", word, 64)])
    pointer = blob.add(Tag.PTR, "", pair)
    blob.function("f", word, ("first", word), ("both", pair), ("where", pointer))
    passed = by_type(SITE, type_of(blob))
    parameters = [
        Input(InputKind.PARAMETER, name, index) for name, index in (("i64", 0), ("p", 1), ("p@8", 1), ("q", 2))
    ]
    assert [passed.word(each) for each in parameters] == [0, 1, 2, 3]
    assert passed.word(Input(InputKind.CONTEXT, "retval")) == 4
    assert passed.pointers == {3}


def test_what_handlers_have_no_type_for_is_said():
    blob = Blob()
    blob.function("f", 0, ("value", blob.integer("__int128", 16)))
    ((_, kind),) = prototype(SITE, type_of(blob)).parameters
    assert isinstance(kind, OpaqueType)
    with pytest.raises(UnsupportedTarget, match="no type of f alone"):
        prototype(SITE, None)
    with pytest.raises(UnsupportedTarget, match="no type gone"):
        types_of(Btf(blob.content())).named("gone")
