"""Whether the top of the stack is the return address where a function begins."""

import subprocess

import pytest

from anyprobe.binary.images.image import Image
from anyprobe.binary.unwind.entry_frame import entry_frame_objection

SOURCE = """
.text
.globl _start
.macro function name
.globl \\name
.type \\name, @function
\\name:
.endm
function plain
.cfi_startproc
push %rbx
.cfi_adjust_cfa_offset 8
.cfi_rel_offset rbx, 0
pop %rbx
ret
.cfi_endproc
function landed
.cfi_startproc
endbr64
sub $8, %rsp
.cfi_adjust_cfa_offset 8
ret
.cfi_endproc
function part
.cfi_startproc
.cfi_def_cfa_offset 32
ret
.cfi_endproc
function saved
.cfi_startproc
.cfi_offset rbx, -16
ret
.cfi_endproc
function framed
.cfi_startproc
.cfi_def_cfa rbp, 8
ret
.cfi_endproc
function _start
.cfi_startproc
.cfi_undefined rip
ret
.cfi_endproc
function caught
.cfi_startproc
.cfi_personality 0x1b, plain
ret
.cfi_endproc
function signalled
.cfi_startproc
.cfi_signal_frame
ret
.cfi_endproc
function unknown
ret
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory):
    directory = tmp_path_factory.mktemp("frames")
    (directory / "frames.s").write_text(SOURCE)
    command = ["gcc", "-nostdlib", "-shared", "-Wl,-Bsymbolic", "-Wl,--eh-frame-hdr", "-o", "frames.so", "frames.s"]
    subprocess.run(command, cwd=directory, check=True, timeout=180)
    return Image.open(str(directory / "frames.so"))


def objection(image, name):
    (function,) = image.functions.lookup(name)
    return entry_frame_objection(image.elf, function.start)


@pytest.mark.parametrize("name", ["plain", "landed"])
def test_ordinary_functions_have_no_objection(image, name):
    assert objection(image, name) is None


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("part", "something else than a return address"),
        ("saved", "registers of another"),
        ("framed", "a frame in place"),
        ("_start", "cannot be followed"),
        ("caught", "exception handlers"),
        ("signalled", "unusual kind"),
        ("unknown", "no unwind entry"),
    ],
)
def test_everything_else_has_one(image, name, why):
    assert why in objection(image, name)


def test_the_middle_of_a_function_has_one(image):
    (function,) = image.functions.lookup("plain")
    assert "no unwind entry" in entry_frame_objection(image.elf, function.start + 1)
