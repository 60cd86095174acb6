"""Arguments as the kernel's ``kprobe_args_syntax`` has them, good and bad ones, and ``kretprobe_maxactive``."""

import pytest

from anyprobe.kprobes.events.definition import parse_definition
from anyprobe.kprobes.events.errors import DefinitionError

TYPES = [f"{letter}{width}" for letter in "usx" for width in (8, 16, 32, 64)]
GOOD = [
    "%ax", "@sym", "@sym+10", "@sym-10", "$stack", "$stack0", "$stack1", "$comm",
    "+0(%ax)", "-0(%ax)", "+10($stack)", "+0($stack1)", "+10(@sym-10)", "+0(+10(+20($stack)))", "-8(@sym)",
    "varname=%ax", "varname=%ax:u32", "$comm:string", "+0($stack):string", "+0(+0(%di)):ustring", "%ip:symbol",
    "%ax:char", "%ax:b4@4/32", "+0(%di):u8[4]", "+0(%di):x64[2]", "+8(%di):string[2]", "+u8(%di):x32",
    *(f"%ax:{name}" for name in TYPES),
]  # fmt: skip
BAD = [
    "%ex", "%", "@", "@sym*10", "@sym/10", "@sym%10", "@sym&10", "@sym|10", "$stackp", "$stack0+10", "$stack1-10",
    "$retval", "+(%ax)", "-(%ax)", "(%ax+10)", "(%ax)", "+10(%ax)+10", "+0(%ax", "+0(%ax))", "+0(+10(%ax)",
    "varname=varname2=%ax", "=%ax", "9name=%ax", "%ax::x8", "%ax:y8", "%ax:x128", "%ax:u7", "%ax:", "$comm:x64",
    "$stack:string", "%ax:string", "$stack0:string", "%ax:b9@4/8", "%ax:b4@4/33", "+0(%di):u8[0]", "+0(%di):u8[",
    "%ax:u8[4]",
]  # fmt: skip


@pytest.mark.parametrize("text", GOOD)
def test_good_arguments(text):
    (argument,) = parse_definition(f"p function {text}").arguments
    assert argument.text == text or text.endswith(argument.text)


@pytest.mark.parametrize("text", BAD)
def test_bad_arguments(text):
    with pytest.raises(DefinitionError):
        parse_definition(f"p function {text}")


def test_the_value_is_there_at_returns_only():
    assert parse_definition("r function $retval").kind == "r"
    assert parse_definition("p function%return $retval").kind == "r"
    with pytest.raises(DefinitionError):
        parse_definition("p function $retval")


@pytest.mark.parametrize(
    ("head", "maxactive"), [("r", 0), ("r0", 0), ("r1", 1), ("r4096", 4096), ("r10:group/name", 10), ("r:name", 0)]
)
def test_maxactive(head, maxactive):
    assert parse_definition(f"{head} function").maxactive == maxactive
    assert parse_definition(f"{head} function").kind == "r"


@pytest.mark.parametrize("head", ["p1", "p1:name", "r1a1", "r-1", "r4097", "r1000000:name"])
def test_no_maxactive(head):
    with pytest.raises(DefinitionError):
        parse_definition(f"{head} function")
