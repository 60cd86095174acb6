"""What BTF says of a function, as handlers have it."""

import pytest

from anyprobe import i32, ptr, u8, u16, u64
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.handlers.types.annotations import PointerType, boolean
from anyprobe.probes.providers.kernel.handlers import known_type, prototype
from anyprobe.probes.providers.kernel.sites import FunctionType, KernelSite
from anyprobe.target.kernel.btf import Btf
from anyprobe.target.kernel.types import Tag
from support.btf_blobs import Blob

SITE = KernelSite("kernel:vmlinux:f:entry", "vmlinux", "f", "entry")


def type_of(blob, name="f"):
    types = Btf(blob.content())
    return FunctionType(types, *types.function(name))


def test_parameters_have_types():
    blob = Blob()
    number, byte = blob.integer("int"), blob.integer("unsigned char", 1, 0)
    size = blob.add(Tag.TYPEDEF, "size_t", blob.integer("unsigned long", 8, 0))
    buffer = blob.add(Tag.PTR, "", byte)
    file = blob.add(Tag.PTR, "", blob.structure("file", 8, []))
    blob.function("f", number, ("file", file), ("buffer", buffer), ("count", size))
    found = prototype(SITE, type_of(blob))
    assert found.parameters == (("file", ptr), ("buffer", PointerType(u8)), ("count", u64))
    assert found.result == i32


def test_function_without_a_result():
    blob = Blob()
    blob.function("f", 0)
    assert prototype(SITE, type_of(blob)).result is None


def test_booleans_and_enumerations():
    blob = Blob()
    truth = blob.integer("_Bool", 1, 4)
    which = blob.add(Tag.ENUM, "which", 2, [blob.text("A"), 0], 1)
    types = Btf(blob.content())
    assert known_type(types, truth) == boolean
    assert known_type(types, which) == u16


def test_what_handlers_have_no_type_for_is_said():
    blob = Blob()
    blob.function("f", 0, ("value", blob.structure("pair", 16, [])))
    with pytest.raises(UnsupportedTarget, match="struct pair"):
        prototype(SITE, type_of(blob))
    with pytest.raises(UnsupportedTarget, match="no type of f alone"):
        prototype(SITE, None)
