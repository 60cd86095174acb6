import os
import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anyprobe.binary.images.image import Image
from anyprobe.binary.objects.elf import ElfFile
from anyprobe.core.errors import AnyprobeError, UnsupportedTarget
from anyprobe.core.memory import MemoryFault

SOURCE = "int data[4] = {1, 2, 3, 4}; int zeros[64]; int f(int x) { return x + data[0] + zeros[0]; }"


@pytest.fixture(scope="session")
def library(build):
    return build(SOURCE, "-shared", "-fPIC", "-O1")


def test_bytes_at_link_time_addresses_are_the_files(library):
    image = Image.open(str(library))
    function = image.functions.lookup("f")[0]
    assert image.read(function.start, 4) != bytes(4)
    segment = next(each for each in image.segments if each.kind == 1 and each.memsz > each.filesz)
    assert image.read(segment.vaddr + segment.filesz, 4) == bytes(4), "what only memory has reads as zero"


def test_reading_outside_of_the_segments_is_a_fault(library):
    image = Image.open(str(library))
    for address in (1 << 40, -8):
        with pytest.raises(MemoryFault):
            image.read(address, 8)


def test_build_id_is_what_readelf_prints(build, library):
    assert f"Build ID: {Image.open(str(library)).build_id}" in build.run("readelf", "-n", library)


def test_build_id_is_found_without_sections(sectionless, library):
    assert Image.from_bytes("x.so", sectionless(library)).build_id == Image.open(str(library)).build_id


def header(content, offset, form, value):
    changed = bytearray(content)
    struct.pack_into(form, changed, offset, value)
    return bytes(changed)


@pytest.mark.parametrize(
    ("offset", "form", "value", "message"),
    [
        (0, "B", 0x7E, "not an ELF file"),
        (4, "B", 1, "a 32-bit object"),
        (5, "B", 2, "big-endian"),
        (18, "<H", 183, "another architecture"),
        (16, "<H", 1, "neither an executable nor a shared object"),
        (54, "<H", 8, "damaged ELF file"),
        (32, "<Q", 1 << 50, "damaged ELF file"),
    ],
)
def test_what_cannot_serve_is_refused_by_name(library, offset, form, value, message):
    with pytest.raises(UnsupportedTarget, match=message):
        _ = Image.from_bytes("bad.so", header(library.read_bytes(), offset, form, value)).segments


def test_files_that_cannot_be_opened_say_why(tmp_path):
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "pipe")
    for name, message in [
        ("missing", "No such file"),
        ("empty", "is empty"),
        (".", "not a regular file"),
        ("pipe", "not a regular file"),
    ]:
        with pytest.raises(UnsupportedTarget, match=message):
            Image.open(str(tmp_path / name))


def test_a_text_file_is_not_elf(tmp_path):
    (tmp_path / "script").write_text("#!/bin/sh\necho hello, world\n")
    with pytest.raises(UnsupportedTarget, match="not an ELF file"):
        Image.open(str(tmp_path / "script"))


def use(content):
    """Ask everything of an object."""
    image = Image.from_bytes("fuzzed.so", content)
    _ = image.build_id, image.is_go
    for function in image.functions.all()[:20]:
        image.functions.lookup(function.name)
    text = image.text()
    assert (text.function_ends > text.function_starts).all()


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_damaged_files_are_typed_errors_never_crashes(library, data):
    content = bytearray(library.read_bytes())
    places = st.one_of(st.integers(0, 0x600), st.integers(0, len(content) - 1))
    for _ in range(data.draw(st.integers(1, 6))):
        content[data.draw(places)] = data.draw(st.integers(0, 255))
    try:
        use(bytes(content))
    except AnyprobeError:
        pass
    except MemoryFault:
        pass


def test_every_truncation_is_a_typed_error_or_harmless(library):
    content = library.read_bytes()
    for size in [*range(1, 0x400, 13), *range(0x400, len(content), 997)]:
        try:
            use(content[:size])
        except AnyprobeError:
            continue


def test_the_kernel_mapped_file_is_not_read_whole(library):
    elf = ElfFile.open(str(library))
    assert not isinstance(elf.content, bytes)
