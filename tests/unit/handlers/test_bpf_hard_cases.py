"""Handlers at which LLVM would end the process, or read what others write by halves."""

import errno
import struct

import pytest

from anyprobe import Max, Sum, cstr
from anyprobe.core.errors import HandlerError, KernelRefused
from anyprobe.handlers.bpf.machine import compile_bpf
from anyprobe.handlers.compiler import intermediate
from anyprobe.target.kernel import bpf, programs
from support import bpf_running, generating

REFUSED = bpf_running.refused_because()
pytestmark = pytest.mark.skipif(REFUSED is not None, reason=str(REFUSED))
WORDS = 1 << 64
LOAD_HALF = 0x61
"""``ldxw``: loads 32 bits."""


def lowered(parameters, body, **more):
    text = f"def handler({parameters}):\n" + "".join(f"    {line}\n" for line in body.splitlines())
    return intermediate(generating.define(text, "handler", **more))


def results(function, rows):
    with bpf_running.Runner(function) as runner:
        return [runner.call([value % WORDS for value in row]) for row in rows]


@pytest.mark.parametrize(
    ("term", "bound"), [("k", "n & 255"), ("k * k", "n & 7"), ("7 * k + 3", "min(n, 64)"), ("k * k * k", "n & 63")]
)
def test_sums_of_which_llvm_knows_a_closed_form(term, bound):
    """It would be made with integers that the kernel's machine has no product of."""
    body = f"s = u64(0)\nfor k in range({bound}):\n    s += {term}\nreturn s"
    numbers = [0, 1, 2, 63, 64, 77, 255]
    found = results(lowered("n: u64", body), [(n,) for n in numbers])
    assert found == [sum(eval(term) for k in range(eval(bound))) for n in numbers]  # noqa: S307 - from above


def test_the_upper_half_of_a_product():
    body = """xl = x & 0xffffffff
xh = x >> 32
yl = y & 0xffffffff
yh = y >> 32
t = xl * yl
c = xh * yl + (t >> 32)
d = xl * yh + (c & 0xffffffff)
return xh * yh + (c >> 32) + (d >> 32)"""
    rows = [(0, 5), (WORDS - 1, WORDS - 1), (1 << 63, 6), (0x123456789ABCDEF0, 0xFEDCBA9876543210)]
    assert results(lowered("x: u64, y: u64", body), rows) == [x * y >> 64 for x, y in rows]


@pytest.mark.parametrize(
    "body",
    [
        "if a == 0:\n    return b\nreturn c",
        "x = b\nif a > b:\n    x = c\nelif a == 7:\n    x = a\nreturn x * 3",
        "return b if a == 0 else c",
    ],
)
def test_parameters_of_which_one_is_chosen(body):
    """The kernel takes no offset into the context that depends on anything."""
    rows = [(0, 5, 9), (7, 8, 9), (3, 2, 1), (7, 1, 4)]
    expected = [
        generating.define(
            "def handler(a: u64, b: u64, c: u64):\n" + "".join(f"    {line}\n" for line in body.splitlines()), "handler"
        )(*row)
        for row in rows
    ]
    assert results(lowered("a: u64, b: u64, c: u64", body), rows) == expected


def test_a_variable_named_like_what_is_made():
    body = "extreme = max(n, m)\nif extreme > 5:\n    extreme = min(extreme * 3, 700)\nreturn extreme"
    assert results(lowered("n: i64, m: i64", body), [(1, 2), (6, 1), (900, 5)]) == [2, 18, 700]


def test_too_much_stack_is_for_the_kernel_to_refuse():
    sums = {name: Sum(name, by=("text",)) for name in ("one", "two", "three")}
    body = "x = cstr(p, 128)\n" + "\n".join(f"{name}.add(n, key=(x,))" for name in sums)
    function = lowered("p: ptr, n: i64", body, cstr=cstr, **sums)
    with pytest.raises(programs.VerifierRefusal, match="stack"), bpf_running.Runner(function):
        pass


def test_a_branch_that_would_not_reach():
    lines = "".join(f"    v = (v ^ {number}) * (b + v)\n" for number in range(6500))
    function = lowered("v: u64, b: u64", f"if b > 7:\n{lines}return v")
    with pytest.raises(HandlerError, match="too long"):
        compile_bpf(function)


def test_words_that_others_write_are_read_at_once():
    top = Max("top", by=("key",))
    program = compile_bpf(lowered("key: u64, value: u64", "top.add(value, key=(key,))", top=top), result_word=True)
    codes = [code for code, *_ in struct.iter_unpack("<BBhi", program.code)]
    assert LOAD_HALF not in codes


def test_a_load_that_a_signal_interrupts_is_tried_again(monkeypatch):
    call, failures = bpf.call, [KernelRefused("load a program", errno.EAGAIN)] * 4

    def interrupted(command, attribute):
        if command == programs._LOAD and failures:
            raise failures.pop()
        return call(command, attribute)

    monkeypatch.setattr(bpf, "call", interrupted)
    assert results(lowered("n: u64", "return n + 1"), [(4,)]) == [5]
    assert not failures
