"""Plain output is what rich would write, whoever writes it."""

import io

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.text import Text

from anyprobe.reports import plain
from anyprobe.reports.plain import PlainConsole, Rows, escape, plain_text
from anyprobe.reports.terminal import Terminal

LINES = (
    "",
    "12 hits at 1 site",
    "[bold]redis[/bold] (pid 3): 0.31 ms arm · 0.12 ms disarm …",
    "\n13:24:11  5 hits in 1.00 s",
    "std::vector<int, std::allocator<int> >::push_back",
    "an :apple: and :smile-text:",
    "[red]red[/red] [bold]bold",
    r"\[bold] and \\",
    "a tab\tand more",
    "it ends in blanks   ",
    "two\nlines",
    "x" * 300,
    "关数 中文",
    "\x1b[31m",
)
CELLS = st.text(st.sampled_from("ab:[]/\\ \n\t<>é中smile"), max_size=12)


def both(draw, width=80):
    """Return what is printed without rich where that is possible, and by rich."""
    streams = io.StringIO(), io.StringIO()
    draw(PlainConsole(streams[0], width))
    draw(Terminal(file=streams[1], width=width, highlight=False, force_terminal=False, emoji=False))
    return [stream.getvalue() for stream in streams]


def table(rows, **look):
    found = Rows()
    found.add_column("hits", justify="right", no_wrap=True)
    found.add_column("function", overflow="fold", style="cyan", **look)
    found.add_column("strategy", no_wrap=True)
    for row in rows:
        found.add_row(*row)
    return found


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("how", [{}, {"soft_wrap": True}, {"soft_wrap": True, "style": "dim"}, {"markup": False}])
def test_lines_are_as_rich_writes_them(line, how):
    ours, richs = both(lambda console: console.print(line, **how))
    assert ours == richs


def test_colons_around_a_name_make_no_emoji():
    line = "libc:fire:entry std::apple::push :smile:"
    stream = io.StringIO()
    console = PlainConsole(stream, 80)
    console.print(line)
    console.print(line, soft_wrap=True)
    console.print(table([("1", line, "jump")]))
    assert stream.getvalue().count(line) == 3


@pytest.mark.parametrize("objects", [(), ("a", "b"), (Text("red", style="red"),), (7,)])
def test_whatever_is_printed_is_as_rich_writes_it(objects):
    ours, richs = both(lambda console: console.print(*objects))
    assert ours == richs


@settings(deadline=None, max_examples=200)
@example([("", "", "\n")], 80)
@given(st.lists(st.tuples(CELLS, CELLS, CELLS), max_size=4), st.sampled_from([9, 20, 80]))
def test_tables_are_as_rich_draws_them(rows, width):
    drawn = table([tuple(map(escape, row)) for row in rows])
    ours, richs = both(lambda console: console.print(drawn), width)
    assert ours == richs


def test_what_stands_in_most_tables_needs_no_rich():
    drawn = table([("1,234", "ns::Class<int>::method(char const*)", "jump"), ("7", "free", "pun")])
    assert drawn.plain(80).splitlines() == [
        " hits  function                             strategy",
        "1,234  ns::Class<int>::method(char const*)  jump    ",
        "    7  free                                 pun     ",
    ]
    assert drawn.plain(20) is None


def test_lines_of_a_count_need_no_rich(monkeypatch):
    monkeypatch.setattr(plain.PlainConsole, "_rich", property(lambda _: pytest.fail("rich was asked")))
    stream = io.StringIO()
    console = PlainConsole(stream, 80)
    console.print("[bold]redis[/bold] (pid 3): 5 hits", soft_wrap=True)
    console.print()
    console.print(escape("… and 3 more"), style="dim", soft_wrap=True)
    assert stream.getvalue() == "redis (pid 3): 5 hits\n\n… and 3 more\n"


def test_doubtful_texts_are_left_to_rich():
    assert plain_text("[red]x[/red]") is plain_text("a\tb") is None
    assert escape("operator[]") == "operator[]"
    assert escape("[bold]") == r"\[bold]"


def test_what_else_a_console_has_is_rich_s():
    assert PlainConsole(io.StringIO(), 77).width == 77
