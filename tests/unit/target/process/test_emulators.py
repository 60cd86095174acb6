"""By what emulators and translators are known."""

from types import SimpleNamespace

import pytest

from anyprobe.target.process.emulators import emulator_of
from anyprobe.target.system.procfs import Mapping


@pytest.mark.parametrize(
    ("exe", "paths", "name"),
    [
        ("/usr/libexec/valgrind/memcheck-amd64-linux", ["/usr/libexec/valgrind/memcheck-amd64-linux"], "valgrind"),
        ("/x", ["/usr/lib/valgrind/vgpreload_core-amd64-linux.so"], "valgrind"),
        ("/x", ["/opt/dr/lib64/release/libdynamorio.so"], "DynamoRIO"),
        ("/opt/pin/intel64/bin/pinbin", ["/opt/pin/intel64/bin/pinbin"], "Pin"),
        ("/x", ["/opt/pin/intel64/runtime/pincrt/libpin3dwarf.so"], "Pin"),
        ("/usr/bin/qemu-aarch64-static", [], "qemu-aarch64-static"),
        ("/usr/bin/qemu-x86_64", [], "qemu-x86_64"),
        ("/run/rosetta/rosetta", [], "rosetta"),
        ("/usr/bin/FEXInterpreter", [], "FEXInterpreter"),
        ("/usr/bin/qemu-x86_64 (deleted)", [], "qemu-x86_64"),
        ("/usr/bin/box64", [], "box64"),
        ("/opt/sandbox64", [], None),
        ("/opt/librosetta", [], None),
        ("/usr/lib/qemu/qemu-bridge-helper", [], None),
        ("/usr/bin/qemu-pr-helper", [], None),
        ("/usr/bin/qemu-keymap", [], None),
        ("/usr/bin/qemu-system-x86_64", ["/usr/lib/libc.so.6"], None),
        (
            "/usr/bin/python3.11",
            ["/usr/lib/x86_64-linux-gnu/libc.so.6", "/usr/lib/libpinyin.so.15", "[vdso]", ""],
            None,
        ),
        ("/home/me/build-amd64-linux", ["/home/me/build-amd64-linux"], None),
    ],
)
def test_names(exe, paths, name):
    mappings = [SimpleNamespace(path=path, inode=0) for path in paths]
    assert emulator_of(exe, mappings, "/dev/null") == name


QEMU = b"usage: qemu-riscv64 [options] program [arguments...]\n\0QEMU_LD_PREFIX\0"


@pytest.mark.parametrize(
    ("content", "perms", "offset", "name"),
    [
        (b"VALGRIND_LAUNCHER\0rest\0VALGRIND_LIB\0", "r--p", 0x1000, "valgrind"),
        (b"VALGRIND_LAUNCHER\0rest\0VALGRIND_LIB\0", "r-xp", 0, "valgrind"),
        (b"VALGRIND_LAUNCHER\0rest\0VALGRIND_LIB\0", "r-xp", 0x1000, None),
        (b"VALGRIND_LAUNCHER\0rest\0VALGRIND_LIB\0", "rw-p", 0x1000, None),
        (QEMU, "r--p", 0x2000, "qemu-riscv64"),
        (b"VALGRIND_LAUNCHER\0", "r--p", 0, None),
        (b"QEMU_LD_PREFIX\0QEMU_SET_ENV\0", "r--p", 0, None),
        (b"", "r--p", 0, None),
    ],
)
def test_texts(tmp_path, content, perms, offset, name):
    image = tmp_path / "renamed"
    image.write_bytes(bytes(offset) + b"x" * 100 + content)
    mapping = Mapping(0x1000, 0x9000, perms, offset, "", image.stat().st_ino, "/renamed", False)
    assert emulator_of("/renamed", [mapping], str(image)) == name


def test_texts_that_lie_across_pieces(tmp_path):
    image = tmp_path / "renamed"
    for before in range(-60, 2):
        image.write_bytes(bytes((4 << 20) + before) + QEMU)
        mapping = Mapping(0, 5 << 20, "r--p", 0, "", image.stat().st_ino, "/renamed", False)
        assert emulator_of("/renamed", [mapping], str(image)) == "qemu-riscv64"


def test_what_cannot_be_opened_is_taken_to_be_none(tmp_path):
    mapping = Mapping(0x1000, 0x9000, "r--p", 0, "", 1, "/renamed", False)
    assert emulator_of("/renamed", [mapping], str(tmp_path / "nothing")) is None
