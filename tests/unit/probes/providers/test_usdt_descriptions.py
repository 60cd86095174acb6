"""Descriptions of virtual markers: what they say, what is wrong in them, and what a file must have for them."""

import shutil
import subprocess

import pytest

from anyprobe.binary.images.image import Image
from anyprobe.binary.objects.marker_arguments import Constant, Followed, InMemory, InRegister
from anyprobe.binary.objects.markers import Marker
from anyprobe.cli import main
from anyprobe.core.errors import SourceError
from anyprobe.probes.providers.usdt.described import described_markers, placed_in, without_replaced
from anyprobe.probes.providers.usdt.descriptions import known_descriptions, parse_description

TEXT = """
[[file]]
name = "server"
of = "of a test"
build-id = "0123456789abcdef"

[file.probes."app:request-start"]
at = ["handle+0x4", "0x1040"]
arguments = [
    "number: u32 = %edi",
    "path: cstr = [[%rbx+0x20]-8]+16",
    "size: i64 = [%rsi + 8]",
    "deep: u16 = [[[%r12]+1]+2]",
    "where: ptr = %rbp-16",
    "kept: i32 = -4(%rbp)",
    "one: u8 = $1",
]

[[file.probes."app:done"]]
at = "handle"
pattern = "0f af ?? c3"
offset = 3

[[file.probes."app:done"]]
at = "other"
"""


def test_a_description_is_read():
    (file,) = parse_description(TEXT, "server.toml")
    assert (file.name, file.of, file.build_id) == ("server", "of a test", "0123456789abcdef")
    assert [(f"{each.provider}:{each.name}", each.place.function, each.place.offset) for each in file.markers] == [
        ("app:request__start", "handle", 4),
        ("app:request__start", "", 0x1040),
        ("app:done", "handle", 3),
        ("app:done", "other", 0),
    ]
    arguments = file.markers[0].arguments
    assert [each.operand for each in arguments] == [
        InRegister("rdi"),
        Followed("rbx", (0x20, -8, 16), is_read=False),
        InMemory("rsi", displacement=8),
        Followed("r12", (0, 1, 2), is_read=True),
        Followed("rbp", (-16,), is_read=False),
        InMemory("rbp", displacement=-4),
        Constant(1),
    ]
    assert [(each.size, each.signed, each.is_text) for each in arguments[:3]] == [
        (4, False, False),
        (8, False, True),
        (8, True, False),
    ]


HEAD = '[[file]]\nbuild-id = "0123456789"\n'
PROBE = HEAD + '[file.probes."a:b"]\n'
WRONG = [
    ("x = [", 1, "cannot"),
    ("", 1, "begins with [[file]]"),
    ('[[file]]\nbuild-id = "xyz"\n', 2, "build-id in hexadecimal"),
    (HEAD, 2, "a file has probes"),
    ("[[file]]\ncolour = 1\n", 2, "a file has no 'colour'"),
    (HEAD + '[file.probes."ab"]\n', 3, "'ab' is no PROVIDER:NAME"),
    (PROBE + 'when = "x"\n', 4, "a:b has no 'when'"),
    (PROBE, 3, "a place of a:b is missing"),
    (PROBE + 'at = "f+x y"\n', 4, "a place of a:b is missing or not understood"),
    (PROBE + 'at = "f"\npattern = "0g"\n', 5, "a pattern is bytes in hexadecimal"),
    (PROBE + 'at = "f"\narguments = ["rdi"]\n', 5, "an argument of a:b is not understood"),
    (PROBE + 'at = "f"\narguments = ["x: u128 = %rdi"]\n', 5, "an argument of a:b is not understood"),
    (PROBE + 'at = "f"\narguments = ["x: u64 = %st(1)"]\n', 5, "x of a:b cannot be read"),
    (PROBE + 'at = "f"\narguments = ["x: u64 = [%edi]"]\n', 5, "%edi is no register with an offset"),
    (PROBE + 'at = "f"\narguments = ["x: u64 = [[%rdi]"]\n', 5, "is no address"),
    (PROBE + 'at = "f"\narguments = ["x: u8 = $1", "x: u8 = $2"]\n', 3, "two arguments of a:b have one name"),
]


@pytest.mark.parametrize(("text", "line", "message"), WRONG)
def test_a_mistake_is_shown_with_its_line(text, line, message):
    with pytest.raises(SourceError) as caught:
        parse_description(text, "server.toml")
    assert caught.value.line == line
    if message != "cannot":
        assert message in caught.value.message
    assert str(caught.value).startswith(f"server.toml:{line}:")


def test_the_shipped_descriptions_are_sound():
    files, problems = known_descriptions()
    assert not problems
    assert {each.name for each in files} >= {"libc.so.6", "python3.11"}
    for file in files:
        assert len({(each.provider, each.name, each.place) for each in file.markers}) == len(file.markers)


@pytest.fixture
def program(tmp_path):
    """A program with a build-id of its own, and a description of it."""
    if not shutil.which("gcc"):
        pytest.skip("gcc is not installed")
    source = tmp_path / "server.c"
    source.write_text(
        'int handle(int a, int b); __asm__(".globl handle; .type handle, @function; handle: push %rbx; '
        'mov %edi, %eax; imul %esi, %eax; pop %rbx; ret; .size handle, .-handle");\n'
        "int main(void) { return handle(2, 3) - 6; }\n"
    )
    path = tmp_path / "server"
    subprocess.run(["gcc", "-O1", "-Wl,--build-id=sha1", str(source), "-o", str(path)], check=True)
    return path


def described(program, places):
    build_id = Image.open(str(program)).build_id
    probes = "\n".join(f'[file.probes."app:n{n}"]\n{place}' for n, place in enumerate(places))
    return f'[[file]]\nname = "server"\nbuild-id = "{build_id}"\n{probes}\n'


def test_places_are_found_by_offset_by_pattern_and_by_address(program):
    image = Image.open(str(program))
    (start,) = [each.start for each in image.functions.lookup("handle")]
    places = [
        'at = "handle"', 'at = "handle+1"', f'at = "{start + 3:#x}"', 'at = "handle"\npattern = "0f ?? c6"\noffset = 3',
    ]  # fmt: skip
    (file,) = parse_description(described(program, places), "server.toml")
    found = [placed for _, placed in placed_in(image, file.markers)]
    assert all(isinstance(each, Marker) for each in found)
    assert [each.location - start for each in found] == [0, 1, 3, 6]


def test_check_proves_a_description(program, tmp_path, capsys):
    text = tmp_path / "server.toml"
    text.write_text(described(program, ['at = "handle"', 'at = "handle+3"']))
    assert main(["usdt", "check", str(text), str(program)]) == 0
    out = capsys.readouterr().out
    assert "2 of 2 places hold" in out
    assert "handle+3 at 0x" in out
    assert ": imul eax, esi" in out


@pytest.mark.parametrize(
    ("place", "problem"),
    [
        ('at = "handle+2"', "no instruction starts at 0x"),
        ('at = "handle+0x100"', "handle has 0x8 bytes"),
        ('at = "handel"', "no functions are called handel"),
        ('at = "0x10"', "there is no code at 0x10"),
        ('at = "handle"\npattern = "cc cc"', "the pattern is 0 times in handle, and not once"),
        ('at = "handle"\npattern = "??"', "the pattern is 8 times in handle, and not once"),
    ],
)
def test_check_says_what_does_not_hold(program, tmp_path, capsys, place, problem):
    text = tmp_path / "server.toml"
    text.write_text(described(program, [place, 'at = "handle"']))
    assert main(["usdt", "check", str(text), str(program)]) == 1
    out = capsys.readouterr().out
    assert "1 of 2 places hold" in out
    assert problem in out


def test_check_names_the_builds_that_there_are(program, tmp_path, capsys):
    text = tmp_path / "server.toml"
    text.write_text('[[file]]\nname = "server"\nbuild-id = "00112233"\n[file.probes."a:b"]\nat = "main"\n')
    assert main(["usdt", "check", str(text), str(program)]) == 1
    assert capsys.readouterr().out == (
        f"server: no file has build-id 00112233\n  {program} has {Image.open(str(program)).build_id}\n"
    )


def test_the_users_own_descriptions_are_found_and_a_broken_one_is_a_warning(program, tmp_path, monkeypatch):
    folder = tmp_path / "config" / "anyprobe" / "usdt"
    folder.mkdir(parents=True)
    (folder / "server.toml").write_text(described(program, ['at = "handle"', 'at = "gone"']))
    (folder / "broken.toml").write_text("[[file]]\n")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    known_descriptions.cache_clear()
    try:
        markers = described_markers(Image.open(str(program)))
    finally:
        known_descriptions.cache_clear()
    assert [f"{each.provider}:{each.name}" for each in markers.found] == ["app:n0"]
    assert any("broken.toml:1:1: a file has a build-id" in each for each in markers.damaged)
    assert any("app:n1 at gone: no functions are called gone" in each for each in markers.damaged)


def test_a_described_marker_takes_the_place_of_a_note_of_its_name():
    note, other = (Marker("python", name, 0x1000, 0, ()) for name in ("function__entry", "line"))
    described_one = Marker("python", "function__entry", 0x2000, 0, ())
    assert without_replaced((note, other), [described_one]) == (other,)
