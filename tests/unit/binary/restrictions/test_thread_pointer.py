import pytest

from anyprobe.binary.images.image import Image
from support.module_under_test import HEADER, function


@pytest.mark.parametrize(
    ("body", "moves"),
    [
        ("wrfsbase rdi", True),
        ("wrfsbase r9", True),
        ("wrfsbase eax", True),
        ("rdfsbase rdi", False),
        ("wrgsbase rdi", False),
        ("mfence", False),
        ("ldmxcsr [rdi]", False),
    ],
)
def test_what_moves_the_thread_pointer(build, body, moves):
    source = HEADER + function("one", f"nop\n {body}\n ret")
    image = Image.open(build(source, "-shared", "-nostdlib", language="assembler"))
    assert image.moves_thread_pointer == moves


def test_the_c_library_does_not():
    assert not Image.open("/lib/x86_64-linux-gnu/libc.so.6").moves_thread_pointer
