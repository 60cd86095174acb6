"""Which object is where: from mappings as values, and from real processes that nobody traces."""

import ctypes
import os
import subprocess
import sys
from dataclasses import dataclass, replace

import pytest

from anyprobe.binary.images.ifunc import IfuncSlots
from anyprobe.binary.images.modules import (
    LocalFiles,
    ProcessFiles,
    bias_of,
    loaded_objects,
    module_matches,
    module_names,
)
from anyprobe.core.errors import UnsupportedTarget

DEVICE = "fe:01"
SOURCE = "int value(void) { return 5; } int other(void) { return value() + 1; }"


@dataclass(frozen=True)
class Mapping:
    start: int
    end: int
    perms: str
    offset: int
    device: str
    inode: int
    path: str


def maps(pid):
    found = []
    with open(f"/proc/{pid}/maps") as lines:
        for line in lines:
            fields = line.rstrip("\n").split(maxsplit=5)
            start, end = (int(each, 16) for each in fields[0].split("-"))
            path = fields[5] if len(fields) > 5 else ""
            found.append(Mapping(start, end, fields[1], int(fields[2], 16), fields[3], int(fields[4]), path))
    return found


class OwnMemory:
    """Our own process's memory."""

    def read(self, address, size):
        return ctypes.string_at(address, size)


@pytest.mark.parametrize(
    ("module", "name", "matches"),
    [
        ("libc", "libc.so.6", True),
        ("libc.so", "libc.so.6", True),
        ("libc.so.6", "libc.so.6", True),
        ("libc.so.7", "libc.so.6", False),
        ("lib", "libc.so.6", False),
        ("libc", "libcap.so.2", False),
        ("lib*", "libc.so.6", True),
        ("libc", "libc-2.31.so", True),
        ("libc-2.31.so", "libc-2.31.so", True),
        ("libpython3.11", "libpython3.11.so.1.0", True),
        ("libpython3.11.so.1", "libpython3.11.so.1.0", True),
        ("libpython3", "libpython3.11.so.1.0", False),
        ("libstdc++", "libstdc++.so.6.0.30", True),
        ("python3.11", "python3.11", True),
        ("ld-linux-x86-64", "ld-linux-x86-64.so.2", True),
        ("_json.cpython-311-x86_64-linux-gnu", "_json.cpython-311-x86_64-linux-gnu.so", True),
        ("vdso", "[vdso]", True),
        ("[vdso]", "[vdso]", True),
        ("libc", "libc.so.6 (deleted)", True),
        ("", "anything", True),
        ("*", "anything", True),
        ("a.out", "program", False),
        ("something.sock", "something.sock", True),
    ],
)
def test_module_names(module, name, matches):
    assert module_matches(module, name, f"/lib/{name}") is matches


def test_less_and_less_of_the_version():
    assert module_names("libz.so.1.2.13") == ("libz.so.1.2.13", "libz.so.1.2", "libz.so.1", "libz.so", "libz")


def test_our_own_process():
    objects = loaded_objects(maps("self"), files=ProcessFiles(os.getpid(), OwnMemory()), executable=executable())
    libc = next(each for each in objects if each.matches("libc"))
    malloc = libc.image.functions.lookup("malloc")[0]
    assert libc.runtime(malloc.start) == ctypes.cast(ctypes.CDLL(None).malloc, ctypes.c_void_p).value
    assert libc.runtime(malloc.start) in libc
    for each in objects:
        for area in each.image.code_ranges:
            assert each.image.read(area.start, 16) == ctypes.string_at(each.runtime(area.start), 16)
    assert [each.matches("a.out") for each in objects].count(True) == 1
    vdso = next(each for each in objects if each.matches("vdso"))
    assert vdso.image.functions.lookup("clock_gettime")


def executable():
    return os.readlink("/proc/self/exe")


def test_ifuncs_of_our_own_process():
    objects = loaded_objects(maps("self"), files=ProcessFiles(os.getpid(), OwnMemory()))
    libc = next(each for each in objects if each.matches("libc"))
    slots = IfuncSlots(OwnMemory(), objects)
    library = ctypes.CDLL(None)
    checked = 0
    for name in ("strlen", "memcpy", "memchr", "strchr"):
        function = libc.image.functions.lookup(name)[0]
        assert function.is_ifunc
        targets = slots(libc, function)
        if targets:
            assert targets == [ctypes.cast(getattr(library, name), ctypes.c_void_p).value]
            checked += 1
    assert checked >= 2
    assert slots(libc, libc.image.functions.lookup("malloc")[0]) != [0]


def test_bias_of_any_executable_mapping(build):
    path = str(build(SOURCE, "-shared", "-fPIC", "-O1"))
    segments = loaded_segments(path)
    code = next(each for each in segments if each.executable)
    page = code.offset & ~0xFFF
    mapping = Mapping(0x7000_0000_0000, 0x7000_0000_1000, "r-xp", page, DEVICE, 1, path)
    assert bias_of(segments, mapping) == 0x7000_0000_0000 - (code.vaddr & ~0xFFF)
    assert bias_of(segments, replace(mapping, offset=1 << 30)) is None


def loaded_segments(path):
    return LocalFiles().open(Mapping(0, 0, "", 0, DEVICE, 0, path)).segments


def test_one_file_loaded_twice_is_two_objects(build):
    path = str(build(SOURCE, "-shared", "-fPIC", "-O1"))
    inode = os.stat(path).st_ino
    mappings = []
    for bias in (0x7000_0000_0000, 0x7100_0000_0000):
        for each in loaded_segments(path):
            if each.kind == 1:
                start = bias + (each.vaddr & ~0xFFF)
                perms = "r-xp" if each.executable else "r--p"
                mappings.append(Mapping(start, start + 0x1000, perms, each.offset & ~0xFFF, DEVICE, inode, path))
    objects = loaded_objects(mappings)
    assert [each.bias for each in objects] == [0x7000_0000_0000, 0x7100_0000_0000]
    assert all(len(each.text) == 1 for each in objects)


def test_a_second_copy_of_some_code_has_nothing_but_that(build):
    """V8 maps what it calls next to what it compiles: other functions are not there, whatever lies at their places."""
    path = str(build(SOURCE, "-shared", "-fPIC", "-O1"))
    inode = os.stat(path).st_ino
    code = next(each for each in loaded_segments(path) if each.executable)
    start, offset = code.vaddr & ~0xFFF, code.offset & ~0xFFF
    whole = Mapping(0x7000_0000_0000 + start, 0x7000_0000_2000 + start, "r-xp", offset, DEVICE, inode, path)
    part = replace(whole, start=0x7100_0000_0000 + start, end=0x7100_0000_1000 + start)
    first, second = loaded_objects([whole, part])
    assert (first.is_part, second.is_part) == (False, True)
    assert [one.lacks(start) for one in (first, second)] == [False, False]
    assert [one.lacks(start + 0x1800) for one in (first, second)] == [False, True]


def test_data_mappings_of_other_files_are_no_objects():
    mappings = [
        Mapping(0x1000, 0x2000, "r--p", 0, DEVICE, 5, "/usr/lib/locale/locale-archive"),
        Mapping(0x3000, 0x4000, "rwxp", 0, "00:00", 0, ""),
        Mapping(0x5000, 0x6000, "r-xp", 0, "00:00", 0, "[vsyscall]"),
    ]
    assert loaded_objects(mappings) == []


@pytest.fixture
def loader(build, tmp_path):
    """A process that has mapped a library of ours, and waits."""
    library = tmp_path / "libours.so"
    library.write_bytes(build(SOURCE, "-shared", "-fPIC", "-O1").read_bytes())
    program = f"import ctypes; ctypes.CDLL({str(library)!r}); print('ready', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "ready\n"
        yield process, library
        process.stdin.close()
        process.wait(180)


def ours(process, **options):
    objects = loaded_objects(maps(process.pid), files=ProcessFiles(process.pid, **options))
    return next(each for each in objects if "libours" in each.path)


def test_an_unchanged_library(loader):
    process, library = loader
    assert ours(process).image.path == str(library)


@pytest.mark.root
@pytest.mark.parametrize("change", ["deleted", "replaced"])
def test_a_library_changed_on_disk_is_read_as_it_was_mapped(loader, build, change):
    process, library = loader
    spoil(library, build, change)
    loaded = ours(process)
    assert "map_files" in loaded.image.path
    assert loaded.image.functions.lookup("value")
    assert loaded.matches("libours")
    assert loaded.image.name == "libours.so"


@pytest.mark.parametrize("change", ["deleted", "replaced"])
def test_without_permission_a_library_changed_on_disk_is_refused(loader, build, change, monkeypatch):
    process, library = loader
    spoil(library, build, change)
    monkeypatch.setattr(ProcessFiles, "_ways_to_deleted", lambda self, mapping: ["/nonexistent/map_files"])
    loaded = ours(process)
    with pytest.raises(UnsupportedTarget, match=f"was {change}.* run as root .* or restart the program") as caught:
        _ = loaded.image
    with pytest.raises(UnsupportedTarget) as again:
        _ = loaded.image
    assert caught.value is again.value


def spoil(library, build, change):
    library.unlink()
    if change == "replaced":
        library.write_bytes(build(SOURCE + "int more;", "-shared", "-fPIC", "-O0").read_bytes())


def test_an_inode_that_the_maps_do_not_tell_truly_is_settled_by_the_bytes(loader):
    process, _ = loader

    class Reader:
        def read(self, address, size):
            with open(f"/proc/{process.pid}/mem", "rb", buffering=0) as memory:
                memory.seek(address)
                return memory.read(size)

    mappings = [
        replace(each, inode=each.inode + 1 if "libours" in each.path else each.inode) for each in maps(process.pid)
    ]
    objects = loaded_objects(mappings, files=ProcessFiles(process.pid, Reader()))
    assert next(each for each in objects if "libours" in each.path).image.functions.lookup("value")
