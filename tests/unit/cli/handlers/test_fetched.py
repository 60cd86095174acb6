"""Fetch arguments as expressions."""

import pytest

from anyprobe.cli.handlers.fetched import fetched
from anyprobe.core.errors import UsageError


def texts(line):
    return {each.label: each.text for each in fetched(line)}


def test_each_kind_of_value():
    assert texts("p:g/e libc:read a=%di b=%si:s32 c=$stack2 d=$arg3 e=$comm f=%r8:x16 g=\\7") == {
        "a": "u64(ctx.regs.rdi)",
        "b": "i32(ctx.regs.rsi)",
        "c": "u64(ptr[u64](ctx.regs.rsp)[2])",
        "d": "u64(arg2)",
        "e": "comm",
        "f": "u16(ctx.regs.r8)",
        "g": "u64(u64(7))",
    }
    assert texts("r libc:read n=$retval:s64") == {"n": "i64(u64(retval))"}


def test_memory_is_read_by_its_type():
    assert texts("p libc:f a=+8(%di):s16 b=-4(+8(%di)):u8 c=+0(+8(%di)):string d=+0(%si):u32[2]") == {
        "a": "ptr[i16]((ctx.regs.rdi + 8))[0]",
        "b": "ptr[u8]((ptr[u64]((ctx.regs.rdi + 8))[0] - 4))[0]",
        "c": "cstr(ptr((ptr[u64]((ctx.regs.rdi + 8))[0])), 64)",
        "d[0]": "ptr[u32]((ctx.regs.rsi))[0]",
        "d[1]": "ptr[u32]((ctx.regs.rsi + 4))[0]",
    }
    assert texts("p libc:f a=%di:b3@2/32") == {"a": "ctx.regs.rdi >> 2 & 0x7"}


@pytest.mark.parametrize("spec", ["libc:read", "p:g/e libc:read", "pid:libc:read:entry", "r libc:read"])
def test_other_specs_have_none(spec):
    assert fetched(spec) == ()


def test_mistakes_are_the_kernels():
    with pytest.raises(UsageError):
        fetched("p libc:read a=%qq")
