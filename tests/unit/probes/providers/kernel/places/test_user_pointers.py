"""Which parameters lead to the memory of programs: by the kernel's types, of system calls, and of known functions."""

import pytest

from anyprobe.handlers.types.annotations import PointerType, i8, i32, u64
from anyprobe.handlers.types.btf_types import types_of
from anyprobe.probes.providers.kernel.places.user_pointers import declared
from anyprobe.target.kernel.btf import Btf
from anyprobe.target.kernel.types import Tag
from support.btf_blobs import Blob

TEXT, OTHER = PointerType(i8), PointerType(u64)


def test_what_types_say():
    blob = Blob()
    char = blob.integer("char", 1)
    ours, theirs = (
        blob.add(Tag.PTR, "", blob.add(Tag.CONST, "", each)) for each in (char, blob.add(Tag.TYPE_TAG, "user", char))
    )
    nothing = blob.add(Tag.PTR, "", blob.add(Tag.TYPE_TAG, "user", 0))
    blob.function("f", 0, ("to", ours), ("from", theirs), ("where", nothing))
    types = Btf(blob.content())
    found = types_of(types).prototype("f", types.function("f")[1])
    assert [(name, kind.user) for name, kind in found.parameters] == [("to", False), ("from", True), ("where", True)]


@pytest.mark.parametrize("name", ["__do_sys_openat", "__se_sys_openat", "__do_compat_sys_openat"])
def test_all_pointers_of_system_calls(name):
    found = declared(name, [("dfd", i32), ("filename", TEXT), ("buffer", OTHER)])
    assert [getattr(kind, "user", None) for _, kind in found] == [None, True, True]


def test_functions_that_are_known():
    found = declared("vfs_read", [("file", OTHER), ("buf", TEXT), ("count", u64)])
    assert [getattr(kind, "user", None) for _, kind in found] == [False, True, None]
    assert declared("vfs_read.constprop.0", [("buf", TEXT)])[0][1].user
    assert not declared("__x64_sys_openat", [("regs", OTHER)])[0][1].user
    assert not declared("of_another_driver", [("buf", TEXT)])[0][1].user
