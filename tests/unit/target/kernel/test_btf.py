"""Types of kernels, from records that the tests write."""

import os
import time
from pathlib import Path

import pytest

from anyprobe.target.kernel import btf
from anyprobe.target.kernel.btf import Btf, KernelTypes, TypesUnavailable
from anyprobe.target.kernel.types import Array, Enum, Forward, Int, Member, Pointer, Prototype, Qualified, Struct, Tag
from support.btf_blobs import Blob

RUNNING = Path("/sys/kernel/btf/vmlinux")


@pytest.fixture
def blob():
    return Blob()


def test_function_has_its_parameters(blob):
    number = blob.integer("int")
    text = blob.add(Tag.PTR, "", blob.add(Tag.CONST, "", blob.integer("char", 1, 2)))
    function = blob.function("open_it", number, ("name", text), ("flags", number))
    found, prototype = Btf(blob.content()).function("open_it")
    assert found == function
    assert prototype == Prototype(number, (("name", text), ("flags", number)))
    assert Btf(blob.content()).described(text) == "const char *"


def test_variadic_function(blob):
    number = blob.integer("int")
    blob.function("printk", number, ("format", number), ("", 0))
    assert Btf(blob.content()).function("printk")[1] == Prototype(number, (("format", number),), variadic=True)


def test_unknown_and_ambiguous_functions_are_none(blob):
    blob.function("twice", 0)
    blob.function("twice", 0)
    types = Btf(blob.content())
    assert types.function("twice") is None
    assert types.function("never") is None
    assert list(types.names(Tag.FUNC)) == ["twice", "twice"]


def test_name_that_ends_another_one_is_told_from_it(blob):
    blob.function("vfs_read", 0)
    read = blob.function("read", 0)
    assert Btf(blob.content()).function("read")[0] == read


def test_names_may_share_texts(blob):
    # as linkers merge texts: "read" is the end of "vfs_read"
    blob.function("vfs_read", 0)
    shared = blob.texts.index(b"vfs_read") + len("vfs_")
    plain, blob.text = blob.text, lambda name: shared if name == "read" else plain(name)
    read = blob.function("read", 0)
    assert Btf(blob.content()).function("read")[0] == read


def test_bit_fields(blob):
    number = blob.integer("unsigned int", 4, 0)
    blob.structure(
        "flags", 8, [("plain", number, 0), ("a", number, 3 << 24 | 32), ("b", number, 29 << 24 | 35)], flag=True
    )
    types = Btf(blob.content())
    structure = types.structure("flags")
    assert types.member(structure, "plain") == Member("plain", number, 0, 0)
    assert types.member(structure, "a") == Member("a", number, 32, 3)
    assert types.member(structure, "b") == Member("b", number, 35, 29)
    assert types.member(structure, "b").offset == 4


def test_members_of_what_has_no_name_are_found(blob):
    port, number = blob.integer("short", 2), blob.integer("int")
    pair = blob.structure("", 4, [("dport", port, 0), ("num", port, 16)])
    union = blob.structure("", 4, [("ports", number, 0), ("", pair, 0)], Tag.UNION)
    blob.structure("common", 12, [("address", number, 0), ("", union, 64)])
    types = Btf(blob.content())
    structure = types.structure("common")
    assert types.member(structure, "num") == Member("num", port, 80)
    assert types.member(structure, "missing") is None


def test_arrays_and_sizes_through_typedefs(blob):
    char = blob.integer("char", 1, 2)
    array = blob.add(Tag.ARRAY, "", 0, [char, char, 16])
    name = blob.add(Tag.TYPEDEF, "name_t", blob.add(Tag.VOLATILE, "", array))
    types = Btf(blob.content())
    assert types.type(array) == Array(char, 16)
    assert isinstance(types.type(name), Qualified)
    assert types.bare(name) == (array, Array(char, 16))
    assert types.size_of(name) == 16
    assert types.described(array) == "char[16]"
    assert types.size_of(0) is None


def test_enumerations(blob):
    signed = blob.add(Tag.ENUM, "how", 4, [blob.text("NO"), 0xFFFFFFFF, blob.text("YES"), 1], 2, flag=True)
    large = blob.add(Tag.ENUM64, "wide", 8, [blob.text("TOP"), 5, 1 << 31], 1)
    types = Btf(blob.content())
    assert types.type(signed) == Enum("how", 4, (("NO", -1), ("YES", 1)), signed=True)
    assert types.type(large) == Enum("wide", 8, (("TOP", 1 << 63 | 5),))


def test_records_of_all_kinds_are_stepped_over(blob):
    number = blob.integer("int")
    blob.add(Tag.FWD, "later", flag=True)
    blob.add(Tag.VAR, "counter", number, [1])
    blob.add(Tag.DATASEC, ".data", 8, [3, 0, 4, 3, 4, 4], 2)
    blob.add(Tag.FLOAT, "double", 8)
    blob.add(Tag.DECL_TAG, "tag", number, [0])
    blob.add(Tag.TYPE_TAG, "user", number)
    blob.add(Tag.RESTRICT, "", number)
    last = blob.function("last", 0)
    types = Btf(blob.content())
    assert types.function("last")[0] == last
    assert types.end == last + 1
    assert types.type(2) == Forward("later", is_union=True)


def test_modules_types_continue_the_kernels(blob):
    number = blob.integer("int")
    blob.function("of_the_kernel", number)
    kernel = Btf(blob.content())
    more = Blob(kernel.end, kernel.end_of_texts)
    pointer = more.add(Tag.PTR, "", number)
    function = more.function("of_the_module", pointer, ("self", pointer))
    module = Btf(more.content(), kernel, "module")
    assert module.function("of_the_module") == (function, Prototype(pointer, (("self", pointer),)))
    assert module.described(pointer) == "int *"
    assert module.function("of_the_kernel") is None, "what a module defines is asked of it alone"
    assert module.type(number) == kernel.type(number) == Int("int", 4, signed=True)


@pytest.mark.parametrize("cut", [0, 3, 23, 30, -5])
def test_what_is_cut_is_refused(blob, cut):
    blob.function("f", 0, ("a", blob.integer("int")))
    content = blob.content()
    with pytest.raises(TypesUnavailable):
        Btf(content[:cut])


def test_where_records_begin_is_kept_by_build(blob, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    numbers = [blob.function(f"f{each}", 0, *[("a", 1)] * (each % 5)) for each in range(300)]
    content = blob.content()
    found = [Btf(content, build=build).function("f217") for build in (b"", b"one", b"one", b"another")]
    assert [number for number, _ in found] == [numbers[217]] * 4
    assert len(os.listdir(tmp_path / "anyprobe")) == 1


def test_record_that_reaches_beyond_the_end_is_refused(blob):
    blob.add(Tag.STRUCT, "s", 4, [], count=3)
    with pytest.raises(TypesUnavailable, match="cut"):
        Btf(blob.content()).function("f")


def test_random_bytes_are_no_types():
    with pytest.raises(TypesUnavailable, match="no BTF"):
        Btf(b"\0\1" + os.urandom(4000))


def test_kernel_without_types_is_said(tmp_path):
    with pytest.raises(TypesUnavailable, match="CONFIG_DEBUG_INFO_BTF"):
        _ = KernelTypes(str(tmp_path)).kernel
    (tmp_path / "vmlinux").write_bytes(Blob().content())
    assert KernelTypes(str(tmp_path)).module("absent") is None


@pytest.mark.skipif(not RUNNING.exists(), reason="this kernel was built without BTF")
def test_types_of_the_running_kernel():
    start = time.process_time()
    types = KernelTypes().kernel
    prototype = types.function("vfs_read")[1]
    task = types.structure("task_struct")
    taken = time.process_time() - start
    assert [name for name, _ in prototype.parameters] == ["file", "buf", "count", "pos"]
    assert types.described(prototype.parameters[0][1]) == "struct file *"
    assert isinstance(types.bare(prototype.parameters[0][1])[1], Pointer)
    comm = types.member(task, "comm")
    assert types.described(comm.type) == "char[16]"
    assert comm.offset < task.size
    assert isinstance(types.type(types.find("sock", Tag.STRUCT)[0]), Struct)
    assert taken < 1.0


def test_functions_are_found_by_an_index_as_by_a_search(blob):
    numbers = {f"function_{each}": blob.function(f"function_{each}", 0) for each in range(50)}
    blob.function("twice", 0)
    blob.function("twice", 0)
    types = Btf(blob.content())
    assert {name: types.function(name)[0] for name in numbers} == numbers
    assert types.function("twice") is None
    assert types.function("never") is None


def test_numbers_of_functions_are_kept_by_build(blob, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(btf, "_FOLDER", str(tmp_path))
    monkeypatch.setattr(btf, "_build", lambda: b"one")
    number = blob.function("f", blob.integer("int"))
    (tmp_path / "vmlinux").write_bytes(blob.content())
    assert KernelTypes(str(tmp_path)).kernel.number_of_function("f") == number
    (tmp_path / "vmlinux").write_bytes(blob.content()[:2])
    types = KernelTypes(str(tmp_path)).kernel
    assert types.number_of_function("f") == number, "no more of the file is read"
    assert types.number_of_function("g") is None
    with pytest.raises(TypesUnavailable, match="no BTF"):
        types.prototype(number)
    (tmp_path / "vmlinux").write_bytes(b"")
    with pytest.raises(TypesUnavailable, match="no BTF"):
        _ = KernelTypes(str(tmp_path)).kernel
    (tmp_path / "vmlinux").unlink()
    with pytest.raises(TypesUnavailable, match="tells no types"):
        _ = KernelTypes(str(tmp_path)).kernel
