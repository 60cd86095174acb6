"""Lines of ``kprobe_events``, right and wrong ones: the kernel's own tests, with the caret where it puts it."""

import errno

import pytest

from anyprobe.kprobes.events.definition import Definition, parse_definition
from anyprobe.kprobes.events.errors import DefinitionError, Problem
from anyprobe.kprobes.events.fetch import (
    Argument,
    Comm,
    Dereference,
    Immediate,
    Register,
    ReturnValue,
    StackPointer,
    StackWord,
    Symbol,
)

# What is wrong, and where: the line with a caret in front of the place.
WRONG = [
    ("p^100 f", Problem.MAXACT_NO_KPROBE),
    ("r^1a111 f", Problem.BAD_MAXACT),
    ("r^100000 f", Problem.MAXACT_TOO_BIG),
    ("p ^hoge-fuga", Problem.BAD_PROBE_ADDR),
    ("p ^hoge+1000-1000", Problem.BAD_PROBE_ADDR),
    ("p ^f+10000000000000", Problem.BAD_PROBE_ADDR),
    ("p^", Problem.BAD_PROBE_ADDR),
    ("r ^f+10", Problem.BAD_RETPROBE),
    ("p ^f+10%return", Problem.BAD_RETPROBE),
    ("p f^%hoge", Problem.BAD_ADDR_SUFFIX),
    ("p:^/bar f", Problem.NO_GROUP_NAME),
    ("p:^12345678901234567890123456789012345678901234567890123456789012345/bar f", Problem.GROUP_TOO_LONG),
    ("p:^foo.1/bar f", Problem.BAD_GROUP_NAME),
    ("p:foo/^ f", Problem.NO_EVENT_NAME),
    ("p:foo/^12345678901234567890123456789012345678901234567890123456789012345 f", Problem.EVENT_TOO_LONG),
    ("p:foo/^bar.1 f", Problem.BAD_EVENT_NAME),
    ("p f ^$retval", Problem.RETVAL_ON_PROBE),
    ("p f ^$stack10000", Problem.BAD_STACK_NUM),
    ("p f ^$arg10000", Problem.BAD_ARG_NUM),
    ("p f ^$arg0", Problem.BAD_ARG_NUM),
    ("p f ^$none_var", Problem.BAD_VAR),
    ("p f ^$stackp", Problem.BAD_VAR),
    ("p f ^$stack0+10", Problem.BAD_VAR),
    ("p f ^%none_reg", Problem.BAD_REG_NAME),
    ("p f ^%ex", Problem.BAD_REG_NAME),
    ("p f ^@12345678abcde", Problem.BAD_MEM_ADDR),
    ("p f ^@", Problem.BAD_MEM_ADDR),
    ("p f ^@sym*10", Problem.BAD_MEM_ADDR),
    ("p f ^@sym%10", Problem.BAD_MEM_ADDR),
    ("p f ^@sym|10", Problem.BAD_MEM_ADDR),
    ("p f ^@+10", Problem.FILE_ON_KPROBE),
    ("p f ^+0@0)", Problem.DEREF_NEED_BRACE),
    ("p f ^+0ab1(@0)", Problem.BAD_DEREF_OFFS),
    ("p f ^+(%ax)", Problem.BAD_DEREF_OFFS),
    ("p f ^-(%ax)", Problem.BAD_DEREF_OFFS),
    ("p f +0(+0(@0^)", Problem.DEREF_OPEN_BRACE),
    ("p f +0(^$comm)", Problem.COMM_CANT_DEREF),
    ("p f ^&1", Problem.BAD_FETCH_ARG),
    ("p f ^(%ax)", Problem.BAD_FETCH_ARG),
    ("p f x16:^%ax", Problem.BAD_TYPE),
    ("p f +0(%ax)^+10", Problem.BAD_FETCH_ARG),
    ("p f +0(^+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(+0(@0))))))))))))))", Problem.TOO_MANY_OPS),
    ("p f +0(@11):u8[10^", Problem.ARRAY_NO_CLOSE),
    ("p f +0(@11):u8[10]^a", Problem.BAD_ARRAY_SUFFIX),
    ("p f +0(@11):u8[^10a]", Problem.BAD_ARRAY_NUM),
    ("p f +0(@11):u8[^256]", Problem.ARRAY_TOO_BIG),
    ("p f @11:^unknown_type", Problem.BAD_TYPE),
    ("p f %ax:^:x16", Problem.BAD_TYPE),
    ("p f %ax:^y16", Problem.BAD_TYPE),
    ("p f $stack0:^string", Problem.BAD_STRING),
    ("p f $stack:^string", Problem.BAD_STRING),
    ("p f %ax:^string", Problem.BAD_STRING),
    ("p f $comm:^x64", Problem.NEED_STRING_TYPE),
    ("p f @11:^b10@a/16", Problem.BAD_BITFIELD),
    ("p f @11:^b10@8/16", Problem.BAD_BITFIELD),
    ("p f @11:^b1@0/17", Problem.BAD_TYPE),
    ("p f ^arg123456789012345678901234567890=@11", Problem.ARG_NAME_TOO_LONG),
    ("p f ^=@11", Problem.NO_ARG_NAME),
    ("p f ^var.1=@11", Problem.BAD_ARG_NAME),
    ("p f var1=@11 ^var1=@12", Problem.USED_ARG_NAME),
    ("p f ^+1234567(+1234567(+1234567(+1234567(+1234567(+1234567(@1234))))))", Problem.ARG_TOO_LONG),
    ("p f arg1=^", Problem.NO_ARG_BODY),
    ("p f varname=^varname2=%ax", Problem.BAD_FETCH_ARG),
    ('p f \\"abc^', Problem.IMMSTR_NO_CLOSE),
    ("p f \\^abc", Problem.BAD_IMM),
    ("^q f", Problem.NO_COMMAND),
    ("^", Problem.NO_COMMAND),
    ("p ^/non/exist/file:0x10", Problem.FILE_NOT_FOUND),
    ("p ^/bin:0x10", Problem.NO_REGULAR_FILE),
    ("p /bin/sh:^*hoge", Problem.BAD_UPROBE_OFFS),
    ("p /bin/sh:10(10)^10", Problem.BAD_REFCNT_SUFFIX),
    ("p /bin/sh:10(10^", Problem.REFCNT_OPEN_BRACE),
    ("p /bin/sh:10(^a)", Problem.BAD_REFCNT),
    ("p /bin/sh:10^%hoge", Problem.BAD_ADDR_SUFFIX),
]


@pytest.mark.parametrize(("marked", "problem"), WRONG, ids=[marked for marked, _ in WRONG])
def test_what_is_wrong_and_where(marked, problem):
    line = marked.replace("^", "", 1)
    with pytest.raises(DefinitionError) as caught:
        # what is never wrong by the first caret may be by the place: all carets of the kernel's tests are single
        assert not isinstance(parse_definition(line), Definition)
    assert (caught.value.problem, caught.value.position) == (problem, marked.index("^"))


def test_the_error_log_is_the_kernels():
    with pytest.raises(DefinitionError) as caught:
        parse_definition("p vfs_read arg1=@11 %none")
    assert caught.value.log().split("\n") == [
        "trace_kprobe: error: Invalid register name",
        "  Command: p vfs_read arg1=@11 %none",
        "                               ^",
    ]
    assert caught.value.errno == errno.EINVAL


@pytest.mark.parametrize(
    ("text", "fetch"),
    [
        ("%ax", Register("ax")),
        ("$stack", StackPointer()),
        ("$stack1", StackWord(1)),
        ("$arg7", Argument(7)),
        ("$comm", Comm()),
        ("@0x1234", Dereference(0, Immediate(0x1234))),
        ("@sym", Dereference(0, Symbol("sym", 0, 4))),
        ("@sym+10", Dereference(0, Symbol("sym", 10, 4))),
        ("@sym-0x10", Dereference(0, Symbol("sym", -16, 4))),
        ("+0(%ax)", Dereference(0, Register("ax"))),
        ("-8(%ax)", Dereference(-8, Register("ax"))),
        ("+u8(%ax)", Dereference(8, Register("ax"))),
        ("+10(@sym-10)", Dereference(10, Dereference(0, Symbol("sym", -10, 8)))),
        ("+0(+10(+20($stack)))", Dereference(0, Dereference(10, Dereference(20, StackPointer())))),
        ("\\12", Immediate(12)),
        ('\\"text"', Immediate("text")),
    ],
)
def test_fetch_arguments(text, fetch):
    (argument,) = parse_definition(f"p f {text}").arguments
    assert (argument.name, argument.fetch) == ("arg1", fetch)


@pytest.mark.parametrize(
    ("text", "bits", "count", "width", "shift"),
    [
        ("x16", 16, 0, 0, 0),
        ("s8", 8, 0, 0, 0),
        ("u32[3]", 32, 3, 0, 0),
        ("char", 8, 0, 0, 0),
        ("symbol", 64, 0, 0, 0),
        ("string", 64, 0, 0, 0),
        ("b4@4/8", 8, 0, 4, 4),
        ("b3@1/16[2]", 16, 2, 3, 1),
    ],
)
def test_types(text, bits, count, width, shift):
    (argument,) = parse_definition(f"p f +0(%ax):{text}").arguments
    kind = argument.type
    assert (kind.bits, kind.count, kind.width, kind.shift) == (bits, count, width, shift)


@pytest.mark.parametrize(
    ("line", "kind", "name"),
    [
        ("p f", "p", "kprobes/p_f_0"),
        ("p f+0x10", "p", "kprobes/p_f_16"),
        ("p f.part.0+4", "p", "kprobes/p_f_part_0_4"),
        ("r f", "r", "kprobes/r_f_0"),
        ("p f%return $retval", "r", "kprobes/r_f_0"),
        ("p:mine f", "p", "kprobes/mine"),
        ("p:group/mine libc:f", "p", "group/mine"),
        ("r12:mine f $retval", "r", "kprobes/mine"),
        ("p 0xdeadbeef", "p", "kprobes/p_0xdeadbeef"),
        ("-:group/mine", "-", "group/mine"),
        ("p /bin/sh:0x1234", "p", None),
        ("p ns::f", "p", "kprobes/p_ns__f_0"),
    ],
)
def test_names_of_events(line, kind, name):
    found = parse_definition(line)
    assert found.kind == kind
    assert name is None or found.name == name


def test_a_definition_is_shown_as_the_kernel_shows_it():
    assert str(parse_definition("r4:mine  libc:f   v=$retval:u32  +0(%di):string")) == (
        "r4:kprobes/mine libc:f v=$retval:u32 arg2=+0(%di):string"
    )
    assert parse_definition("p f").arguments == ()
    assert isinstance(parse_definition("r f $retval").arguments[0].fetch, ReturnValue)
