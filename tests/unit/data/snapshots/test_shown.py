"""Results as Python shows them."""

import pickle
from dataclasses import replace

import pytest

from anyprobe.core.errors import UsageError
from anyprobe.data.aggregates.results import AggregationResult, CellValue
from anyprobe.data.snapshots.processes import ProcessCounts, ProcessInfo, TargetInfo, ThreadTimes
from support.sample_snapshots import NO_PROCESS, refused, site, snapshot, timing

SIZES = AggregationResult("sizes", "hist", ("tid",), {(5,): CellValue(3, 30, 8, 12, buckets=((8.0, 9.0, 3),))})
ONE = snapshot(functions=(timing(),), aggregations=(SIZES,), warnings=("w",))


def test_each_result_is_one_line():
    assert repr(ONE) == str(ONE) == (
        f"<Snapshot of redis-server (pid {NO_PROCESS}): 5.00 s, 12,352 hits at 3 sites, 100 calls of 1 functions, "
        "1 aggregations, 3 refused, 1 warnings>"
    )  # fmt: skip
    assert repr(timing()) == "<malloc (libc.so.6): 100 calls, mean 150 ns, p50 20 ns, p99 1,005 ns, max 1,005 ns>"
    assert repr(timing(count=0)) == "<malloc (libc.so.6): 0 calls>"
    assert repr(site("free", 7, offset=16, kind="return", nmissed=2)) == (
        "<free+0x10 return (libc.so.6): 7 hits, 2 missed>"
    )
    kernel = snapshot(target=TargetInfo(0, "", kernel="6.18"), others=(TargetInfo(1, "/bin/a"),))
    assert repr(kernel).startswith("<Snapshot of Linux 6.18 and 1 more: 5.00 s")


def test_the_line_is_short_however_much_there_is():
    many = replace(ONE, functions=tuple(timing(f"f{at}", address=at) for at in range(5_000)))
    assert len(repr(many)) < 200
    assert len(many._repr_html_()) < 20_000
    assert "and 4,980 more" in many._repr_html_()


def test_no_name_breaks_a_line_or_a_page():
    name = "<img src=x>\x1b[31m\n"
    one = snapshot(sites=(site(name),), functions=(timing(name),), warnings=(name,), refused=(refused(name),))
    assert "\x1b" not in repr(one.functions[0]) + repr(one.sites[0])
    assert len(repr(one.sites[0]).splitlines()) == 1
    assert "<img" not in one._repr_html_()
    assert one._repr_html_().count("&lt;img src=x&gt;") == 4


def test_notebooks_show_the_busiest_first():
    page = ONE._repr_html_()
    assert page.index(">malloc<") < page.index(">free<")
    for word in ("12,345", "15,000", "sizes", "jump-target-in-jtpr", "<td>w</td>"):
        assert word in page
    assert timing()._repr_html_() == "<p>" + repr(timing())[1:-1] + "</p>"


def test_tables_have_the_numbers_of_the_json():
    (row,) = ONE.rows("functions")
    known = ONE.as_json()["functions"][0]
    assert row == {name: known[name] for name in row}
    assert {"count", "sum_ns", "p99_ns", "complete"} <= row.keys()
    assert ONE.rows() == ONE.rows("functions")
    assert snapshot().rows() == snapshot().rows("sites")
    assert ONE.columns("sites")["hits"] == [7, 12345, 0]
    assert sum(ONE.columns("buckets")["count"]) == 100
    assert ONE.rows("sizes") == [
        {"tid": 5, "count": 3, "sum": 30, "min": 8, "max": 12, "mean": 10, "p50": 8, "p90": 8, "p99": 8}
    ]
    assert len(ONE.rows("refused")) == 3


def test_processes_and_threads_are_told_apart():
    process = ProcessInfo(71, "/bin/a")
    one = snapshot(
        processes=(ProcessCounts(process, {site("free").key: 7}),),
        threads=(ThreadTimes(process, 72, "worker", (timing(),)),),
    )
    hits = {row["spec"]: row["hits"] for row in one.rows("processes") if row["pid"] == 71}
    assert hits["pid:libc.so.6:free:entry"] == 7
    assert [(row["tid"], row["name"], row["count"]) for row in one.rows("threads")] == [(72, "worker", 100)]


def test_a_table_that_does_not_exist_is_named_with_those_that_do():
    with pytest.raises(UsageError, match=r"no table of 'x'; there are functions, .*, sizes"):
        ONE.rows("x")


def test_without_a_library_the_error_says_what_to_install(monkeypatch):
    for method, library, extra in (
        ("to_pandas", "pandas", "pandas"),
        ("to_polars", "polars", "polars"),
        ("to_arrow", "pyarrow", "arrow"),
    ):
        monkeypatch.setitem(__import__("sys").modules, library, None)
        with pytest.raises(UsageError, match=rf"{library} is not installed: pip install 'anyprobe\[{extra}\]'"):
            getattr(ONE, method)()


@pytest.mark.parametrize("of", ["functions", "sites", "buckets", "refused", "sizes"])
def test_frames_have_the_columns(of):
    wanted = ONE.columns(of)
    pandas = pytest.importorskip("pandas", reason="pandas is optional and not installed")
    assert pandas.DataFrame(wanted).equals(ONE.to_pandas(of))
    polars = pytest.importorskip("polars", reason="polars is optional and not installed")
    assert ONE.to_polars(of).to_dict(as_series=False) == wanted
    pytest.importorskip("pyarrow", reason="pyarrow is optional and not installed")
    assert ONE.to_arrow(of).to_pydict() == wanted
    assert polars.DataFrame(ONE).to_dict(as_series=False) == ONE.columns()


def test_results_are_pickled_as_before():
    assert pickle.loads(pickle.dumps(ONE)) == ONE  # noqa: S301 - what was made here
