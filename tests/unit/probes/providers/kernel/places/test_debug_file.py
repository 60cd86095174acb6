"""Source lines and inlined functions, from a small ``vmlinux`` with debug information that is not the kernel's."""

import os
import subprocess

import pytest

from anyprobe.core.errors import SpecError
from anyprobe.probes.providers.kernel.places import debug_file
from anyprobe.probes.providers.kernel.places.sites import KernelNames
from anyprobe.probes.providers.kernel.places.specs import parse
from anyprobe.target.kernel.symbols import Symbols

SOURCE = """\
static int state;

static inline __attribute__((always_inline)) void put_inside(int number)
{
    state += number;
}

__attribute__((noinline)) int first(int number)
{
    put_inside(number);
    return state * 3;
}

__attribute__((noinline)) int second(int number)
{
    put_inside(number + 1);
    return state / 5;
}
"""
BUILD_ID = "12ab" * 10
MOVED = 0x3000000
"""How far the running kernel is from where the file has it, as KASLR moves it."""


@pytest.fixture
def names(tmp_path, monkeypatch):
    """Return the names of a kernel with these functions, whose file is installed."""
    debug_file.installed.cache_clear()
    (tmp_path / "kernel").mkdir()
    (tmp_path / "kernel" / "small.c").write_text(SOURCE)
    path = tmp_path / f"vmlinux-{os.uname().release}"
    link = ["-nostdlib", "-static", "-Wl,-Ttext=0xffffffff81000000", f"-Wl,--build-id=0x{BUILD_ID}", "-Wl,-e,first"]
    command = ["gcc", "-g", "-O1", "-mcmodel=kernel", "-fno-pie", "-no-pie", *link, "-o", path, "kernel/small.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    listed = subprocess.run(["nm", path], check=True, capture_output=True, text=True).stdout.splitlines()
    lines = [f"{int(address, 16) + MOVED:016x} {kind} {name}" for address, kind, name in map(str.split, listed)]
    note = bytes.fromhex("040000001400000003000000474e5500" + BUILD_ID)
    (tmp_path / "notes").write_bytes(note)
    monkeypatch.setattr(debug_file, "_PLACES", (str(tmp_path / "vmlinux-{}"),))
    monkeypatch.setattr(debug_file, "_NOTES", str(tmp_path / "notes"))
    found = KernelNames()
    found.__dict__["symbols"] = Symbols("\n".join([*lines, f"{0xFFFFFFFF85000000:016x} T end", ""]).encode())
    yield found
    debug_file.installed.cache_clear()


@pytest.mark.parametrize("text", ["kernel/small.c:11", "small.c:11", "kernel::small.c:11", "kernel:vmlinux:small.c:11"])
def test_line_is_a_place_in_its_function(names, text):
    (site,) = names.resolve(parse(text))
    assert (site.module, site.name, site.kind) == ("vmlinux", "first", "offset")
    assert site.spec == f"kernel:vmlinux:first:{site.offset:#x}"
    assert site.address == names.symbols.named("first")[0].address + site.offset


def test_line_of_an_inlined_function_is_in_all_that_contain_it(names):
    assert {site.name for site in names.resolve(parse("kernel::small.c:5"))} == {"first", "second"}


def test_line_where_a_function_begins_is_its_entry(names):
    (site,) = names.resolve(parse("small.c:9"))
    assert (site.name, site.kind, site.offset) == ("first", "entry", 0)


def test_inlined_function_is_refused_with_those_that_contain_it(names):
    with pytest.raises(SpecError, match="the compiler has put it into other functions") as caught:
        names.resolve(parse("kernel::put_inside:entry"))
    assert "first" in str(caught.value)
    assert "second" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message", "nearest"),
    [
        ("small.c:2", "this line has no code", "small.c:"),
        ("kernel/other.c:5", "no file of the kernel's sources", ""),
        ("kernel::no_such_function:entry", "it may be inlined", ""),
        ("kernel:nfs:small.c:5", "not of modules", "vmlinux"),
    ],
)
def test_what_there_is_not(names, text, message, nearest):
    with pytest.raises(SpecError, match=message) as caught:
        names.resolve(parse(text))
    assert nearest in str(caught.value)


def test_file_of_another_kernel_is_not_used(names, tmp_path):
    (tmp_path / "notes").write_bytes(bytes.fromhex("040000001400000003000000474e5500" + "00" * 20))
    with pytest.raises(SpecError, match="is of another kernel"):
        names.resolve(parse("small.c:10"))


def test_no_file_is_installed(names, monkeypatch):
    monkeypatch.setattr(debug_file, "_PLACES", ())
    with pytest.raises(SpecError, match=r"no vmlinux of Linux .* with debug information is installed"):
        names.resolve(parse("small.c:10"))
