"""USDT markers, read from objects that are made here byte by byte, damaged in every way, and from real ones."""

import re
import struct
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.binary.objects.marker_arguments import Constant, InMemory, InRegister, parse_arguments
from anyprobe.binary.objects.markers import read_markers

CODE, BASE = 0x1000, 0x3000


def note(
    provider="app", name="start", arguments="", *, location=CODE, base=BASE, semaphore=0, owner=b"stapsdt\0", kind=3
):
    texts = b"".join(each.encode() + b"\0" for each in (provider, name, arguments))
    return raw_note(struct.pack("<QQQ", location, base, semaphore) + texts, owner, kind)


def raw_note(content, owner=b"stapsdt\0", kind=3, size=None):
    head = struct.pack("<III", len(owner), len(content) if size is None else size, kind)
    return head + owner + content + bytes(-len(content) % 4)


def elf(notes, *, base=BASE, cut=0):
    """Return an object with 256 bytes of code, these notes, and the base section at an address."""
    names = b"\0.text\0.note.stapsdt\0.stapsdt.base\0.shstrtab\0"
    where = {name: names.index(name) for name in (b".text", b".note.stapsdt", b".stapsdt.base", b".shstrtab")}
    code_at, notes_at = 0x100, 0x200
    names_at = notes_at + len(notes)
    table_at = names_at + len(names)

    def section(name, kind, address, offset, size):
        return struct.pack("<IIQQQQIIQQ", where.get(name, 0), kind, 2, address, offset, size, 0, 0, 1, 0)

    sections = [
        section(b"", 0, 0, 0, 0),
        section(b".text", 1, CODE, code_at, 0x100),
        section(b".note.stapsdt", 7, 0, notes_at, len(notes)),
        section(b".stapsdt.base", 1, base, code_at, 1),
        section(b".shstrtab", 3, 0, names_at, len(names)),
    ]
    head = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\2\1\1", 3, 62, 1, 0, 64, table_at, 0, 64, 56, 1, 64, len(sections), 4
    )
    load = struct.pack("<IIQQQQQQ", 1, 5, code_at, CODE, CODE, 0x100, 0x100, 0x1000)
    content = (head + load).ljust(code_at, b"\0") + b"\x90" * 0x100 + notes + names + b"".join(sections)
    return ElfFile("made.so", content[: len(content) - cut])


def test_a_note_is_read():
    markers = read_markers(elf(note("app", "request__start", "-4@%eax 8@8(%rsp)", location=CODE + 5, semaphore=0x4002)))
    (marker,) = markers.found
    assert (marker.provider, marker.name, marker.shown) == ("app", "request__start", "request-start")
    assert (marker.location, marker.semaphore) == (CODE + 5, 0x4002)
    assert list(map(str, marker.arguments)) == ["-4@%eax", "8@8(%rsp)"]
    assert not markers.damaged


def test_locations_and_semaphores_move_with_the_base():
    notes = note(location=CODE - 0x400, base=BASE - 0x400, semaphore=0x3C02)
    (marker,) = read_markers(elf(notes)).found
    assert (marker.location, marker.semaphore) == (CODE, 0x4002)


def test_a_semaphore_that_is_none_does_not_move():
    (marker,) = read_markers(elf(note(location=CODE - 0x400, base=BASE - 0x400))).found
    assert marker.semaphore == 0


def test_quotes_around_names_are_no_part_of_them():
    (marker,) = read_markers(elf(note('"app"', '"the name"'))).found
    assert (marker.provider, marker.name) == ("app", "the name")


DAMAGED = {
    "is too short (8 bytes)": raw_note(bytes(8)),
    "has a name that does not end": raw_note(struct.pack("<QQQ", CODE, BASE, 0) + b"app"),
    "has no name": note("app", ""),
    "is of version 2": note(kind=2),
    "where there is no code": note("app", "lost", location=0x9000),
}


@pytest.mark.parametrize(("said", "bad"), DAMAGED.items())
def test_a_damaged_note_is_said_and_the_others_work(said, bad):
    markers = read_markers(elf(note(name="before") + bad + note(name="after")))
    assert [each.name for each in markers.found] == ["before", "after"]
    (text,) = markers.damaged
    assert said in text


def test_a_note_that_is_too_long_ends_the_search_and_is_said():
    markers = read_markers(elf(note(name="before") + raw_note(b"x" * 40, size=1 << 20) + note(name="after")))
    assert [each.name for each in markers.found] == ["before"]
    assert "1,048,576 bytes" in markers.damaged[0]


def test_notes_of_others_are_passed_by():
    markers = read_markers(elf(note(owner=b"GNU\0") + note(name="mine")))
    assert [each.name for each in markers.found] == ["mine"]
    assert not markers.damaged


def test_an_object_without_notes_has_no_markers():
    assert read_markers(elf(b"")).found == ()


@given(st.binary(max_size=200), st.integers(0, 60))
def test_whatever_the_notes_hold_is_read_without_failure(noise, at):
    good = note(name="good")
    content = bytearray(good + noise)
    content[at % len(content)] ^= 0x55
    markers = read_markers(elf(bytes(content)))
    assert len(markers.found) <= 6
    assert all(isinstance(each, str) for each in markers.damaged)


UNDERSTOOD = {
    "8@%rax": (8, False, False, InRegister("rax")),
    "-8@%r15": (8, True, False, InRegister("r15")),
    "4@%eax": (4, False, False, InRegister("rax")),
    "-4@%r9d": (4, True, False, InRegister("r9")),
    "2@%bp": (2, False, False, InRegister("rbp")),
    "-2@%r10w": (2, True, False, InRegister("r10")),
    "1@%sil": (1, False, False, InRegister("rsi")),
    "1@%al": (1, False, False, InRegister("rax")),
    "-1@%r8b": (1, True, False, InRegister("r8")),
    "1@%dh": (1, False, False, InRegister("rdx", shift=8)),
    "8f@%xmm0": (8, False, True, InRegister("xmm0")),
    "-4f@%xmm15": (4, True, True, InRegister("xmm15")),
    "8@%xmm3": (8, False, False, InRegister("xmm3")),
    "4@$5": (4, False, False, Constant(5)),
    "-4@$-1": (4, True, False, Constant(-1)),
    "8@$0x7fffffffffff": (8, False, False, Constant(0x7FFFFFFFFFFF)),
    "8@$table+16": (8, False, False, Constant(16, "table")),
    "8@(%rsp)": (8, False, False, InMemory("rsp")),
    "8@0(%rsp)": (8, False, False, InMemory("rsp")),
    "-4@-20(%rbp)": (4, True, False, InMemory("rbp", displacement=-20)),
    "1@0x10(%r12)": (1, False, False, InMemory("r12", displacement=16)),
    "8@8(%rbp,%rax,4)": (8, False, False, InMemory("rbp", "rax", 4, 8)),
    "8@(%rbx, %rcx)": (8, False, False, InMemory("rbx", "rcx", 1)),
    "8@-8(,%rdx,8)": (8, False, False, InMemory("", "rdx", 8, -8)),
    "4@table(,%rdx,4)": (4, False, False, InMemory("", "rdx", 4, 0, "table")),
    "4@counter(%rip)": (4, False, False, InMemory(symbol="counter")),
    "4@8+counter(%rip)": (4, False, False, InMemory(displacement=8, symbol="counter")),
    "-4@counter.0-4(%rip)": (4, True, False, InMemory(displacement=-4, symbol="counter.0")),
    "8@counter": (8, False, False, InMemory(symbol="counter")),
    "12@-32(%rbp)": (12, False, False, InMemory("rbp", displacement=-32)),
    "3@(%rdi)": (3, False, False, InMemory("rdi")),
    "4f@-8(%rbp)": (4, False, True, InMemory("rbp", displacement=-8)),
}


@pytest.mark.parametrize(("text", "meaning"), UNDERSTOOD.items())
def test_an_argument_is_understood(text, meaning):
    (argument,) = parse_arguments(text)
    assert (argument.size, argument.signed, argument.is_float, argument.operand) == meaning
    assert not argument.problem
    assert str(argument) == text


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("%rax", "its size is missing"),
        ("8@%st(1)", "no register that can be read"),
        ("8@%xmm31", "no register that can be read"),
        ("8@%fs:16", "the segment %fs cannot be read"),
        ("8@16(%rip)", "needs the name of what is there"),
        ("8@(%eax)", "no address in 64 bits"),
        ("8@(%rax,%rbx,3)", "this form of an address is not known"),
        ("8@QWORD PTR [rbp-24]", "is neither a number nor a name"),
        ("8@1234", "a number alone"),
        ("0@%rax", "a size of 0 bytes"),
        ("16@%rax", "16 bytes do not fit the register"),
        ("2@%ah", ""),
        ("8f@%rax", ""),
        ("8f@$3", ""),
        ("2f@%rax", "a floating-point number of 2 bytes is not in a register like that"),
        ("8@$", "nothing is neither a number nor a name"),
    ],
)
def test_an_argument_that_is_not_understood_says_why(text, problem):
    first, second = parse_arguments(f"{text} -4@%ecx")
    assert problem in first.problem
    assert second.text == "-4@%ecx"


def test_twelve_arguments_and_blanks_within_them():
    text = " ".join(f"-4@ {8 * at}(%rbp, %rax, 4)" for at in range(12))
    arguments = parse_arguments(text)
    assert [each.operand for each in arguments] == [InMemory("rbp", "rax", 4, 8 * at) for at in range(12)]


@given(st.text(alphabet="0123456789-@f%$()abcdrsxip, +.", max_size=60))
def test_any_text_is_read_as_arguments(text):
    for argument in parse_arguments(text):
        assert (argument.operand is None) == bool(argument.problem)


REAL = (
    "/usr/bin/python3.11",
    "/usr/lib/x86_64-linux-gnu/libstdc++.so.6",
    "/usr/lib/postgresql/15/bin/postgres",
    "/usr/lib/jvm/java-17-openjdk-amd64/lib/server/libjvm.so",
)
NOTE = re.compile(
    r"Provider: (.*)\n\s+Name: (.*)\n\s+Location: (\w+), Base: (\w+), Semaphore: (\w+)\n\s+Arguments: ?(.*)"
)


@pytest.mark.parametrize("path", REAL)
def test_markers_of_real_objects_are_those_that_readelf_shows(path):
    if not Path(path).exists():
        pytest.skip(f"{path} is not installed")
    markers = read_markers(ElfFile.open(path))
    assert not markers.damaged
    listed = subprocess.run(["readelf", "-nW", path], capture_output=True, text=True, check=True).stdout
    expected = [
        (provider, name, int(location, 16), int(semaphore, 16), arguments.strip())
        for provider, name, location, _, semaphore, arguments in NOTE.findall(listed)
    ]
    assert expected
    found = [(m.provider, m.name, m.location, m.semaphore, " ".join(map(str, m.arguments))) for m in markers.found]
    assert found == expected
    assert not [argument for each in markers.found for argument in each.arguments if argument.problem]
