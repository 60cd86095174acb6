"""Flame graphs in a real browser: what it shows is what was measured, and it can be searched and zoomed."""

import io
import re
import shutil

import pytest

from anyprobe.data.findings.calltree import CallNode
from anyprobe.data.snapshots.processes import TargetInfo
from anyprobe.exporters import base
from support.browser import opened_in_a_browser
from support.sample_snapshots import NO_PROCESS, snapshot

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed"),
]
READ = CallNode("libc.so.6", "read", 7, 300.0, 300.0)
PARSE = CallNode("server", "parse<int>(char const*)", 3, 500.0, 200.0, (READ,))
MAIN = CallNode("server", "main", 1, 1000.0, 100.0, (PARSE, CallNode("libc.so.6", "write", 2, 400.0, 400.0)))
RECURSION = CallNode("server", "again", 1, 1000.0, 400.0, (CallNode("server", "again", 1, 600.0, 600.0),))


@pytest.fixture
def shown(tmp_path):
    """Return a function that has a browser open a page of some trees, and gives its document back."""

    def show(*tree, link="", then="", before=None, how="flame", **facts):
        stream = io.StringIO()
        if before is not None:
            before = snapshot(tree=before, **facts)
        found = base.Measurement(snapshots=(), together=snapshot(tree=tree, **facts), before=before)
        base.exporter_of(how).write(found, stream)
        page = tmp_path / "page.html"
        page.write_text(stream.getvalue() + f"<script>{then}</script>")
        return opened_in_a_browser(page, link)

    return show


def frames(document):
    """Return the frames as they are drawn: the text of each, its row and its width in hundredths of the whole."""
    found = re.findall(r'<div class="frame[^"]*"[^>]*style="([^"]*)"[^>]*>([^<]*)</div>', document)
    styles = [(dict(part.strip().split(": ") for part in style.strip(" ;").split(";")), text) for style, text in found]
    whole = max(float(style["width"][:-2]) for style, _ in styles)
    return {
        (text, int(style["top"][:-2]) // 19, round(100 * float(style["width"][:-2]) / whole)) for style, text in styles
    }


def told(document):
    return re.search(r'<div id="told"[^>]*>([^<]*)', document)[1]


def test_widths_are_shares_of_the_time(shown):
    parse = "parse&lt;int&gt;(char const*)"
    found = {("all", 0, 100), ("main", 1, 100), (parse, 2, 50), ("read", 3, 30), ("write", 2, 40)}
    assert frames(shown(MAIN)) == found


def test_a_click_shows_one_function_and_its_callers(shown):
    document = shown(MAIN, then="[...document.querySelectorAll('.frame')].find((e) => e.textContent == 'read').click()")
    assert {(text, width) for text, _, width in frames(document)} == {
        ("all", 100), ("main", 100), ("parse&lt;int&gt;(char const*)", 100), ("read", 100)
    }  # fmt: skip
    assert told(document) == "read (libc.so.6): 300 ns in all, 30.0 %; 300 ns self, 30.0 %, 7 calls"


def test_a_search_adds_up_what_matches_once(shown):
    document = shown(MAIN, link="#server")
    assert told(document) == "Functions that match take 1.00 µs of 1.00 µs."
    assert document.count('class="frame hit"') == 2
    assert told(shown(MAIN, link="#libc")) == "Functions that match take 700 ns of 1.00 µs."
    tiny = CallNode("server", "main", 1, 0.0, 1e6, (CallNode("server", "tiny", 1, 2.0, 2.0),))
    assert told(shown(tiny, link="#tiny")) == "Functions that match take 2 ns of 1.00 ms."


def test_the_table_counts_recursion_once(shown):
    cells = re.findall(r"<td>(?:<span[^>]*>)?([^<]*)", shown(RECURSION).partition("<tbody>")[2])
    assert cells[:4] == ["1.00 µs", "1.00 µs", "2", "again"]


def test_an_icicle_has_what_ran_at_the_top_and_its_callers_below(shown):
    parse = "parse&lt;int&gt;(char const*)"
    document = shown(MAIN, how="icicle")
    assert frames(document) == {
        ("all", 0, 100), ("write", 1, 40), ("main", 2, 40), ("read", 1, 30), (parse, 2, 30), ("main", 3, 30),
        (parse, 1, 20), ("main", 2, 20), ("main", 1, 10),
    }  # fmt: skip
    assert told(document) == "all: 1.00 µs in all, 100.0 %"
    assert 'title="read (libc.so.6): 300 ns self, 30.0 %, 7 calls"' in document
    assert 'title="main (server): 300 ns by calls from here, 30.0 %, 7 calls"' in document
    assert "What ran at the bottom" in document


def test_the_table_of_an_icicle_is_that_of_the_flame_graph(shown):
    for tree in (MAIN, RECURSION):
        tables = [shown(tree, how=how).partition("<tbody>")[2].partition("</tbody>")[0] for how in ("flame", "icicle")]
        rows = [sorted(re.findall(r"<tr.*?</tr>", each)) for each in tables]
        assert rows[0] == rows[1]
        assert len(rows[0]) in {1, 4}


def test_names_with_markup_are_text(shown):
    name = "</script><img src=x onerror=document.title='fallen'>"
    document = shown(CallNode("server", name, 1, 1.0, 1.0))
    assert "<title>fallen" not in document
    assert "&lt;/script&gt;&lt;img src=x" in document


def test_an_empty_page_is_a_page(shown):
    assert told(shown()) == "all: 0 ns in all, 0 %; 0 ns self, 0 %"


FASTER = CallNode("server", "main", 1, 500.0, 100.0, (CallNode("server", "extra", 1, 400.0, 400.0),))


def colours(document):
    """Return the hue of each frame: 8 where it takes more than in the first run, 212 where less."""
    return {text: int(hue) for hue, text in re.findall(r"background: hsl\((\d+) [^>]*>([^<]+)</div>", document)}


def test_a_difference_is_as_wide_as_the_second_run_and_coloured_by_what_has_changed(shown):
    document = shown(FASTER, before=(MAIN,))
    assert {(text, width) for text, _, width in frames(document)} == {("all", 100), ("main", 100), ("extra", 80)}
    assert told(document) == "all: 200 ns → 100 ns of each second, -50.0 %; in all 1.00 µs → 500 ns"
    assert colours(document) == {"all": 212, "main": 212, "extra": 8}
    table = re.findall(r"<td>(?:<span[^>]*>)?([^<]*)", document.partition("<tbody>")[2])
    assert table[:4] == ["0 ns → 400 ns", "0 ns → 400 ns", "0 → 1", "extra"]


def test_what_is_gone_is_seen_in_the_widths_of_the_first_run(shown):
    document = shown(FASTER, before=(MAIN,), then="document.getElementById('other').click()")
    assert ("write", 2, 40) in frames(document)
    assert "extra" not in {text for text, _, _ in frames(document)}


def test_programs_that_have_ended_are_compared_as_a_whole(shown):
    over = TargetInfo(NO_PROCESS, "/bin/server", exited=0)
    assert told(shown(FASTER, before=(MAIN,), target=over)) == "all: 1.00 µs → 500 ns, -50.0 %"
    clicked = shown(FASTER, before=(MAIN,), target=over, then="document.getElementById('basis').click()")
    assert "of each second" in told(clicked)
    assert told(shown(before=(MAIN,))).startswith("all: 200 ns → 0 ns of each second, gone")
