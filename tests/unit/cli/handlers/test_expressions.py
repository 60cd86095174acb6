"""Expressions of the command line: what is read, and where mistakes are."""

import pytest

from anyprobe.cli.handlers.expressions import parse_all, parse_one
from anyprobe.core.errors import HandlerError


def test_commas_separate_and_names_may_stand_in_front():
    found = parse_all("--print", "path=cstr(arg0, 64), arg1 == 2, (tid, cpu), size = arg2")
    assert [(each.label, each.text) for each in found] == [
        ("path", "cstr(arg0, 64)"),
        ("arg1 == 2", "arg1 == 2"),
        ("(tid, cpu)", "(tid, cpu)"),
        ("size", "arg2"),
    ]
    assert [each.column for each in found] == [5, 21, 32, 51]
    assert found[2].names == (("tid", 0, 33), ("cpu", 0, 38))


def test_a_comma_at_the_end_and_several_lines():
    first, second = parse_all("--print", "arg0,\n  (arg1\n + tid),")
    assert (first.text, second.text) == ("arg0", "(arg1\n + tid)")
    assert second.names == (("arg1", 1, 3), ("tid", 2, 3))


def test_characters_count_and_not_bytes():
    (found,) = parse_all("--print", "'ä' + arg0")
    assert found.names == (("arg0", 0, 6),)


@pytest.mark.parametrize(
    ("text", "column", "message"),
    [
        ("", 1, "missing"),
        ("arg0,,arg1", 6, "missing"),
        ("a=", 3, "missing"),
        ("arg0 +", 7, "invalid syntax"),
        ("arg0, (arg1", 7, "never closed"),
        ("arg0)", 5, "unmatched"),
        ("1)(2", 2, "unmatched"),
        ("arg0, x = y = 2", 11, "invalid syntax"),
        ("arg0, *arg1", 7, "star"),
        ("arg0 arg1", 1, "comma"),
        ("a=arg0, a=retval", 11, "another one is called 'a'"),
        ("arg0, tid, arg0", 12, "another one is called 'arg0'"),
        ("tid, " + "1+" * 300 + "arg0", 6, "more than 200 parts within each other"),
        ("not " * 9000 + "arg0", 1, "more than 200 parts within each other"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_mistakes(text, column, message):
    with pytest.raises(HandlerError, match=message) as error:
        parse_all("--print", text)
    assert (error.value.file, error.value.line, error.value.column) == ("--print", 1, column)


def test_one_is_one():
    assert parse_one("--of", "min(arg0, 5)").text == "min(arg0, 5)"
    with pytest.raises(HandlerError, match="one expression") as error:
        parse_one("--of", "arg0, arg1")
    assert error.value.column == 7


def test_what_is_told_by_its_place_may_repeat():
    assert [each.text for each in parse_all("rule exec", "'sh', 'sh'", may_repeat=True)] == ["'sh'", "'sh'"]
