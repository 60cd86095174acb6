"""By what emulators and translators are known."""

from types import SimpleNamespace

import pytest

from anyprobe.target.emulators import emulator_of


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
    assert emulator_of(exe, [SimpleNamespace(path=path) for path in paths]) == name
