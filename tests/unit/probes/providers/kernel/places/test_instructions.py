"""Instructions that a spec means together, in a small kernel."""

import pytest

from anyprobe.core.errors import SpecError
from anyprobe.probes.providers.kernel.code import LiveModule
from anyprobe.probes.providers.kernel.places import instructions
from anyprobe.probes.providers.kernel.places.specs import parse
from anyprobe.target.kernel.symbols import KERNEL, KernelFunction
from support.builder import Builder
from support.small_kernel import SmallKernel

CODE = """
    .byte 0x0f, 0x1f, 0x44, 0, 0
    test edi, edi
    je aside
    call next
    ret
    aside: mov eax, 1
    ret
    .balign 32
"""


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = SmallKernel.made(Builder(tmp_path), ("it", CODE), ("next", "ret\n .balign 32"))
    module = LiveModule(made.image, made.source)
    monkeypatch.setattr(instructions, "running", lambda _: type("Code", (), {"module": lambda _, __: module})())
    return made


def offsets(kernel, name, spec):
    return instructions.offsets_of(None, parse(spec), KernelFunction(name, KERNEL, kernel.at(name)))


def test_blocks_begin_after_what_ftrace_needs(kernel):
    assert offsets(kernel, "it", "kernel::it:block") == [5, 9, 15]


def test_calls(kernel):
    assert offsets(kernel, "it", "kernel::it:call") == [9]


def test_all_instructions_without_padding(kernel):
    assert offsets(kernel, "it", "kernel::it:*") == [0, 5, 7, 9, 14, 15, 20]


def test_what_is_no_function_is_an_error_and_left_out_of_patterns(kernel):
    inside = KernelFunction("it", KERNEL, kernel.at("it") + 3)
    with pytest.raises(SpecError):
        instructions.offsets_of(None, parse("kernel::it:block"), inside)
    assert instructions.offsets_of(None, parse("kernel::i*:block"), inside) == []
