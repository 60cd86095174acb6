"""Reports in a real browser: what it shows is what the JSON document has, and it can be sorted and searched."""

import html
import io
import random
import re
import shutil
import time
from dataclasses import replace

import pytest

from anyprobe.data.aggregates.results import AggregationResult, CellValue
from anyprobe.data.archives.runs import Run, RunInfo
from anyprobe.data.findings.calltree import CallNode
from anyprobe.data.snapshots.interval import since
from anyprobe.data.snapshots.processes import TargetInfo
from anyprobe.exporters import base
from support.browser import opened_in_a_browser
from support.sample_snapshots import NO_PROCESS, refused, site, snapshot, timing

pytestmark = [
    pytest.mark.live,
    pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is not installed"),
]
TREE = (CallNode("server", "main", 1, 900.0, 300.0, (CallNode("server", "leaf", 3, 600.0, 600.0),)),)
FAST = timing("fast", count=1_000_000, sum_ns=5e6, tail_exits=0, address=1, buckets=((4.0, 5.0, 1_000_000),))
SLOW = timing("slow", count=7, sum_ns=9.1e9, min_ns=1e9, max_ns=2e9, address=2, buckets=((1.2e9, 1.3e9, 7),))
ONE = snapshot(functions=(FAST, SLOW), tree=TREE, warnings=("look <here>",), clock_step_ns=20.0)
INFO = RunInfo("time", ("time", "libc:*", "-p", "1"), machine={"host": "one", "kernel": "Linux 6"}, version="0.1.0")


def page_of(one, series=(), **facts):
    stream = io.StringIO()
    run = Run(replace(INFO, **facts), (one,), tuple(series))
    base.exporter_of("report").write(base.Measurement(snapshots=[one], together=one, run=run), stream)
    return stream.getvalue()


@pytest.fixture
def shown(tmp_path):
    def show(one, series=(), then="", **facts):
        page = tmp_path / "page.html"
        page.write_text(page_of(one, series, **facts) + f"<script>{then}</script>")
        return opened_in_a_browser(page)

    return show


def rows(document, title):
    """Return the cells of the rows of a table, without markup."""
    body = document.partition(f">{title}</h2>")[2].partition("<tbody>")[2].partition("</tbody>")[0]
    found = re.findall(r"<tr[^>]*>(.*?)</tr>", body)
    return [
        [html.unescape(re.sub("<[^>]*>", "", cell)) for cell in re.findall(r"<td[^>]*>(.*?)</td>", row)]
        for row in found
    ]


def test_functions_are_shown_with_their_numbers(shown):
    document = shown(ONE)
    assert rows(document, "Functions") == [
        ["slow *", "libc.so.6", "7", "9.10 s", "1.30 s", "1.00 s", "1.26 s", "1.30 s", "1.30 s", "2.00 s"],
        ["fast", "libc.so.6", "1,000,000", "5.00 ms", "5 ns", "≤ 20 ns", "≤ 20 ns", "≤ 20 ns", "≤ 20 ns", "1.00 µs"],
    ]
    assert rows(document, "Hits")[0][:3] == ["malloc", "libc.so.6", "12,345"]


def test_the_heading_says_what_was_measured_where_and_what_is_to_be_known(shown):
    document = shown(ONE, merged=2)
    text = html.unescape(re.sub("<[^>]*>", " ", document.partition("<body")[2].partition("<script")[0]))
    for word in ("anyprobe time 'libc:*' -p 1", "redis-server", "5.00 s", "one, Linux 6", "2 runs", "look <here>"):
        assert word in text


def test_headings_sort_and_words_choose(shown):
    clicked = shown(ONE, then="document.querySelector('th[data-at=\"2\"] button').click()")
    assert [row[0] for row in rows(clicked, "Functions")] == ["fast", "slow *"]
    twice = "for (const _ of '12') document.querySelector('th[data-at=\"2\"] button').click()"
    assert [row[0] for row in rows(shown(ONE, then=twice), "Functions")] == ["slow *", "fast"]
    typed = "const i = document.querySelector('input'); i.value = 'FAST'; i.oninput()"
    assert [row[0] for row in rows(shown(ONE, then=typed), "Functions")] == ["fast"]


def test_a_click_on_a_row_shows_its_histogram_and_its_heat_map(shown):
    series = [since(ONE, None, "1"), replace(since(ONE, None, "2"), functions=(FAST,))]
    document = shown(ONE, series, then="document.querySelectorAll('#tables tbody tr')[1].click()")
    (bars,) = re.findall(r'<div class="bars">(.*?)</div></div>', document)
    assert re.findall(r"<span>([^<]*)</span>", bars) == ["4 ns … 8 ns", "1,000,000"]
    cell = re.search(r'<div id="cell"[^>]*>([^<]*)', document)[1]
    assert cell == "2,000,000 calls in 10 s; at most 1,000,000 in a cell"


def test_a_heat_map_is_drawn(shown):
    """There are as many colours as there are counts."""
    look = """
    const map = find("map"), paint = map.getContext("2d"), seen = new Set();
    for (const x of [100, map.width - 50]) {
      for (let y = 8; y < map.height - 30; y += 2) {
        const pixel = paint.getImageData(x, y, 1, 1).data;
        if (pixel[3] === 255) seen.add(pixel.join());
      }
    }
    find("cell").textContent = `${seen.size} colours`;
    """
    series = [replace(since(ONE, None, "1"), functions=(replace(FAST, count=n, buckets=((low, low + 1, n),)),))
              for low, n in ((4.0, 10), (1000.0, 900))]  # fmt: skip
    assert "2 colours" in re.search(r'<div id="cell"[^>]*>([^<]*)', shown(ONE, series, then=look))[1]


def test_trees_refusals_and_distributions_have_their_places(shown):
    distribution = AggregationResult(
        "size", "hist", ("tid",), {(5,): CellValue(3, 30, 8, 12, buckets=((8.0, 9.0, 3),))}
    )
    document = shown(replace(ONE, aggregations=(distribution,)))
    assert rows(document, "size (hist)") == [["tid=5", "3", "3", "8", "8", "8", "8", "12"]]
    assert len(rows(document, "Refused")) == 3
    assert rows(document, "Refused")[0][1:] == ["0x226c7", "jump-target-in-jtpr", "0x1004 is jumped to from 0x1020"]
    assert ">leaf</div>" in document.partition('id="flame"')[2]
    assert re.findall(r'href="#part-\d"[^>]*>([^<]*)', document) == [
        "Functions", "Hits", "size (hist)", "Flame graph", "Refused"
    ]  # fmt: skip


def test_names_with_markup_are_text(shown):
    name = "</script><img src=x onerror=document.title='fallen'>"
    one = snapshot(
        target=TargetInfo(NO_PROCESS, f"/bin/{name}"),
        sites=(site(name),),
        functions=(timing(name),),
        warnings=(name,),
        refused=(refused(name),),
        tree=(CallNode(name, name, 1, 1.0, 1.0),),
        aggregations=(AggregationResult(name, "count", ("k",), {(name,): CellValue(1)}),),
    )
    document = shown(one, [since(one, None, "1")], arguments=(name,))
    assert "<title>fallen" not in document
    assert document.count("<img") == 0


def test_a_report_of_ten_thousand_functions_is_small_and_shown_at_once(tmp_path):
    chance = random.Random(1)
    functions = []
    for at in range(10_000):
        lows = sorted({float(1 << chance.randrange(4, 30)) for _ in range(12)})
        buckets = tuple((low, low * 1.01, chance.randrange(1, 5000)) for low in lows)
        calls, ns = sum(count for *_, count in buckets), sum(low * count for low, _, count in buckets)
        numbers = {"count": calls, "sum_ns": ns, "min_ns": lows[0], "max_ns": lows[-1] * 1.01, "address": at}
        functions.append(timing(f"subsystem_{at % 97}_does_work_{at}", buckets=buckets, **numbers))
    one = snapshot(functions=tuple(functions))
    text = page_of(one, [since(one, None, "1")] * 20)
    assert len(text.encode()) <= 2_000_000
    page = tmp_path / "large.html"
    page.write_text(text + "<script>find('cell').textContent = `after ${performance.now()} ms`</script>")
    began = time.monotonic()
    document = opened_in_a_browser(page)
    assert len(rows(document, "Functions")) == 25
    assert "9,975 more rows" in document
    taken = float(re.search(r"after ([\d.]+) ms", document)[1])
    assert taken < 10_000, f"{taken:.0f} ms, {time.monotonic() - began:.1f} s with the browser's start"


def test_a_report_of_nothing_is_a_page(shown):
    assert "redis-server" in shown(snapshot(sites=(), refused=()))
