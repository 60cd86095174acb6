"""Names that were stripped away and kept elsewhere."""

import shutil
import struct
import zlib

import pytest
import zstandard

from anyprobe.binary.images.image import Image
from anyprobe.binary.objects import cache
from anyprobe.core.errors import UnsupportedTarget

SOURCE = """
static int __attribute__((noinline, used)) secret(int x) { return x * 7; }
int main(int argc, char **argv) { return secret(argc); }
"""


@pytest.fixture
def split(build, tmp_path):
    """A stripped program and its debug file, in an otherwise empty place."""
    whole = build(SOURCE, "-O1", "-g")
    program, debug = tmp_path / "bin" / "program", tmp_path / "program.debug"
    program.parent.mkdir()
    shutil.copy(whole, program)
    build.run("objcopy", "--only-keep-debug", program, debug)
    build.run("strip", program)
    assert not Image.open(str(program)).functions.lookup("secret")
    return program, debug, Image.open(str(whole))


def secret(program, **options):
    return Image.open(str(program), **options).functions.lookup("secret")


def by_build_id(root, image):
    return root / ".build-id" / image.build_id[:2] / f"{image.build_id[2:]}.debug"


@pytest.mark.parametrize("within_root", [False, True])
def test_by_build_id(split, tmp_path, within_root):
    program, debug, whole = split
    place = by_build_id(tmp_path / "root" / "dbg" if within_root else tmp_path / "dbg", whole)
    place.parent.mkdir(parents=True)
    shutil.move(debug, place)
    if within_root:
        found = secret(program, debug_roots=("/dbg",), root=str(tmp_path / "root"))
    else:
        found = secret(program, debug_roots=(str(tmp_path / "dbg"),))
    assert found == whole.functions.lookup("secret")


@pytest.mark.parametrize("where", ["bin/program.debug", "bin/.debug/program.debug"])
def test_by_debug_link(split, build, tmp_path, where):
    program, debug, whole = split
    build.run("objcopy", f"--add-gnu-debuglink={debug}", program)
    (tmp_path / where).parent.mkdir(exist_ok=True)
    shutil.move(debug, tmp_path / where)
    assert secret(program) == whole.functions.lookup("secret")


def test_another_builds_debug_file_is_not_believed(split, build, tmp_path):
    program, _, whole = split
    other = build(SOURCE.replace("7", "9"), "-O0")
    place = by_build_id(tmp_path / "dbg", whole)
    place.parent.mkdir(parents=True)
    shutil.copy(other, place)
    assert secret(program, debug_roots=(str(tmp_path / "dbg"),)) == []
    place.write_bytes(b"rubbish")
    assert secret(program, debug_roots=(str(tmp_path / "dbg"),)) == []


def test_without_build_id_the_checksum_decides(build, tmp_path):
    program, debug = tmp_path / "program", tmp_path / "program.debug"
    shutil.copy(build(SOURCE, "-O1", "-Wl,--build-id=none"), program)
    build.run("objcopy", "--only-keep-debug", program, debug)
    build.run("strip", program)
    build.run("objcopy", f"--add-gnu-debuglink={debug}", program)
    assert len(secret(program)) == 1
    with debug.open("ab") as file:
        file.write(b"changed")
    assert secret(program) == []


def test_compressed_symbols_within_the_object(split, build, tmp_path):
    import lzma

    program, debug, whole = split
    packed = tmp_path / "packed"
    packed.write_bytes(lzma.compress(debug.read_bytes()))
    build.run("objcopy", "--add-section", f".gnu_debugdata={packed}", program)
    assert secret(program) == whole.functions.lookup("secret")
    assert cache.load(whole.build_id, "debugdata") is not None
    assert secret(program) == whole.functions.lookup("secret"), "and from the cache"


def compress_section(path, kind, pack, packing):
    """Compress the one section of a kind in place, as ``SHF_COMPRESSED`` has it; objcopy does so for debug sections."""
    content = bytearray(path.read_bytes())
    headers, count = struct.unpack_from("<Q", content, 0x28)[0], struct.unpack_from("<H", content, 0x3C)[0]
    for at in range(headers, headers + 64 * count, 64):
        if struct.unpack_from("<I", content, at + 4)[0] == kind:
            flags, _, offset, size = struct.unpack_from("<4Q", content, at + 8)
            packed = struct.pack("<IIQQ", packing, 0, size, 8) + pack(bytes(content[offset : offset + size]))
            struct.pack_into("<Q", content, at + 8, flags | 0x800)
            struct.pack_into("<2Q", content, at + 24, len(content), len(packed))
            content += packed
            break
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("packing", "pack"), [(1, zlib.compress), (2, zstandard.compress)], ids=["zlib", "zstd"]
)  # fmt: skip
def test_a_compressed_symbol_table_is_read(build, tmp_path, packing, pack):
    program = tmp_path / "program"
    shutil.copy(build(SOURCE, "-O1"), program)
    expected = secret(program)
    compress_section(program, 2, pack, packing)
    assert len(expected) == 1
    assert secret(program) == expected


def test_a_damaged_symbol_table_is_named(build, tmp_path):
    program = tmp_path / "program"
    shutil.copy(build(SOURCE, "-O1"), program)
    compress_section(program, 2, lambda content: b"damaged" + content, 1)
    with pytest.raises(UnsupportedTarget, match="damaged symbols"):
        secret(program)
    compress_section(program, 2, zlib.compress, 77)
    with pytest.raises(UnsupportedTarget, match="compressed in a way that is not known"):
        secret(program)


def test_damaged_compressed_symbols_are_ignored(split, build, tmp_path):
    program, _, _ = split
    packed = tmp_path / "packed"
    packed.write_bytes(b"\xfd7zXZ\x00 and then nothing")
    build.run("objcopy", "--add-section", f".gnu_debugdata={packed}", program)
    assert secret(program) == []
    assert len(Image.open(str(program)).functions) > 1
