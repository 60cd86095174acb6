"""``--when EXPR``: only what the expression holds for is counted, timed, shown, or aggregated."""

import json
import re

import pytest

from anyprobe.cli import main
from support.driver import build

pytestmark = pytest.mark.live
EXITS = ("--returns", "exits")

PROGRAM = """
#define KEPT __attribute__((noinline))
struct pair { long a, b; };
static volatile int sink;
KEPT int work(int n) { for (int i = 0; i < n * 100; i++) sink++; return n % 3 ? n : -1; }
KEPT struct pair both(int n) { sink = n; struct pair p = {n, n}; return p; }
KEPT void nothing(int n) { sink = n; }
KEPT double real(int n) { sink = n; return n / 2.0; }
KEPT int jumps(int n) { return n > 5 ? n : work(n); }
int main(void)
{
    for (int i = 0; i < 10; i++) { work(i); both(i); nothing(i); sink = real(i) > 3; sink = jumps(i); }
    return 0;
}
"""


@pytest.fixture
def run(capfd):
    program = build("conditions.c", "-O2", "-g", text=PROGRAM)

    def run(*arguments, status=0):
        capfd.readouterr()
        assert main([*arguments, "--", str(program)]) == status
        return capfd.readouterr().err

    return run


def document(text):
    return json.loads(text)


def hits(text):
    return {site["function"]: site["hits"] for site in document(text)["sites"]}


def test_count(run):
    assert hits(run("count", "a.out:both", "a.out:nothing", "--when", "n >= 7", "--json")) == {"both": 3, "nothing": 3}
    plain = hits(run("count", "a.out:both", "--json"))
    assert plain == hits(run("count", "a.out:both", "--when", "n < 99", "--json")) == {"both": 10}
    assert hits(run("count", "a.out:both", "--when", "n > 99", "--json")) == {"both": 0}


def test_what_several_specs_mean_is_counted_once(run):
    """As it is without a condition; calls that are left by a jump, too."""
    specs = ("a.out:work", "a.out:wor*", "a.out:work:entry")
    assert hits(run("count", *specs, "--when", "n >= 7", "--json")) == hits(
        run("count", "a.out:work", "--when", "n >= 7", "--json")
    )
    (found,) = document(run("time", *specs, "--when", "n >= 7", "--json"))["functions"]
    (once,) = document(run("time", "a.out:work", "--when", "n >= 7", "--json"))["functions"]
    assert found["count"] == once["count"] > 0
    several = document(run("count", "a.out:jumps", "a.out:jump*", "--when", "retval > 7", *EXITS, "--json"))
    alone = document(run("count", "a.out:jumps", "--when", "retval > 7", *EXITS, "--json"))
    assert several["tail_exits"] == alone["tail_exits"] > 0


def test_what_several_specs_mean_is_aggregated_and_traced_once(run):
    several = document(run("hist", "a.out:both", "a.out:[bn]o*", "a.out:work", "a.out:wor*", "--by", "func", "--json"))
    assert sorted(each["count"] for each in several["aggregations"]["hits"]) == [10, 10, 16]
    lines = run("trace", "a.out:both", "a.out:bot*", "--print", "n", "--quiet").splitlines()
    assert sum("both" in line for line in lines) == 10


def test_count_of_calls_by_their_result(run):
    """Sixteen calls of work, of which six return -1: they are calls, wherever they end."""
    assert hits(run("count", "a.out:work", "--when", "retval < 0", "--json")) == {"work": 6}
    sites = document(run("count", "a.out:work%return", "--when", "retval < 0", "--json"))["sites"]
    assert sum(site["hits"] for site in sites) == 6
    assert hits(run("count", "a.out:work", "--when", "retval > 0 and n < 5", "--json")) == {"work": 6}


def test_time(run):
    found = document(run("time", "a.out:work", "a.out:both", "a.out:nothing", "--when", "n >= 7", "--json"))
    functions = {each["function"]: each for each in found["functions"]}
    assert {name: each["count"] for name, each in functions.items()} == {"work": 3, "both": 3, "nothing": 3}
    work = functions["work"]
    assert 0 < work["min_ns"] <= work["p50_ns"] <= work["max_ns"] <= work["sum_ns"]
    assert sum(count for _, _, count in work["buckets"]) == 3
    assert {"mean_ns", "p90_ns", "p99_ns", "tail_exits", "unmatched", "nmissed", "in_flight"} <= work.keys()
    (slow,) = document(run("time", "a.out:work", "--when", "latency_ns < 0", "--json"))["functions"]
    assert slow["count"] == 0
    assert re.search(r"\b3\b.* work ", run("time", "a.out:work", "--when", "n >= 7"))


def test_time_of_calls_that_are_left_by_a_jump(run):
    (found,) = document(run("time", "a.out:jumps", "--when", "n > 3", *EXITS, "--json"))["functions"]
    assert (found["count"], found["tail_exits"]) == (4, 2)
    (found,) = document(run("time", "a.out:jumps", "--when", "n > 3", "--json"))["functions"]
    assert (found["count"], found["tail_exits"]) == (6, 0)


@pytest.mark.parametrize("how", ["auto", "callers"])
def test_calls_that_are_left_by_a_jump_end_where_their_caller_goes_on(run, how):
    returns = ("--returns", how, "--json")
    shown = document(run("hist", "a.out:jumps", "--of", "latency_ns", *returns))
    assert (shown["aggregations"]["latency_ns"]["count"], shown["tail_exits"], shown["learning"]) == (10, 0, 0)
    results = document(run("hist", "a.out:jumps", "--by", "retval", *returns))["aggregations"]["hits"]
    assert {cell["key"][0]: cell["count"] for cell in results} == {
        -1: 2,
        1: 1,
        2: 1,
        4: 1,
        5: 1,
        6: 1,
        7: 1,
        8: 1,
        9: 1,
    }
    assert hits(run("count", "a.out:jumps", "--when", "retval < 0 and n == 3", *returns)) == {"jumps": 1}
    sites = document(run("count", "a.out:jumps%return", "--when", "retval > 3", *returns))["sites"]
    kinds = {"auto": {"ret": 4, "tail": 2}, "callers": {"caller": 6}}
    assert {site["exit_kind"]: site["hits"] for site in sites if site["hits"]} == kinds[how]
    lines = run("trace", "a.out:jumps", "--print", "n, retval", "--quiet", "--returns", how).splitlines()
    assert len(lines) == 10


def test_hist_and_time_say_the_same_of_calls_that_are_left_by_a_jump(run):
    """Ten calls, of which six go on in another function, and are not timed if only exits are used."""
    told = "6 calls left by a tail jump and were not timed"
    whole = document(run("time", "a.out:jumps", "--json"))["functions"][0]
    assert (whole["count"], whole["tail_exits"], whole["learning"]) == (10, 0, 0)
    timed = document(run("time", "a.out:jumps", *EXITS, "--json"))["functions"][0]
    shown = document(run("hist", "a.out:jumps", "--of", "latency_ns", *EXITS, "--json"))
    assert (timed["count"], timed["tail_exits"]) == (4, 6)
    assert (shown["aggregations"]["latency_ns"]["count"], shown["tail_exits"]) == (4, 6)
    assert shown["aggregations"].keys() == {"latency_ns"}
    first = run("time", "a.out:jumps", *EXITS).splitlines()[0]
    assert "4 calls of 1 function timed" in first
    assert told in first
    lines = run("hist", "a.out:jumps", "--of", "latency_ns", *EXITS).splitlines()
    assert re.search(r": 10 calls in [\d.]+ s; ", lines[0])
    assert lines[0].endswith(told)
    assert any(line.startswith("  4 calls, sum ") for line in lines)


@pytest.mark.parametrize("function", ["work", "both", "nothing", "real"])
def test_calls_have_a_time_whatever_they_return(run, function):
    calls = 16 if function == "work" else 10
    found = document(run("hist", f"a.out:{function}", "--of", "latency_ns", "--json"))
    assert (found["aggregations"]["latency_ns"]["count"], found["tail_exits"]) == (calls, 0)
    assert "missing" not in found


def test_calls_that_are_left_by_a_jump_have_no_result_and_no_time(run):
    by_time = document(run("time", "a.out:jumps", "--when", "latency_ns >= 0", *EXITS, "--json"))["functions"][0]
    assert (by_time["count"], by_time["tail_exits"]) == (4, 6)
    found = document(run("count", "a.out:jumps", "--when", "retval > 7", *EXITS, "--json"))
    assert (found["sites"][0]["hits"], found["tail_exits"], found.get("missing")) == (2, 6, None)
    assert "tail_exits" not in document(run("count", "a.out:jumps", "--when", "n > 7", *EXITS, "--json"))
    keyed = document(run("hist", "a.out:jumps", "--by", "retval", *EXITS, "--json"))
    assert (sorted(cell["key"] for cell in keyed["aggregations"]["hits"]), keyed["tail_exits"]) == (
        [[6], [7], [8], [9]],
        6,
    )
    lines = run("trace", "a.out:jumps", "--print", "latency_ns", *EXITS).splitlines()
    assert sum(line.endswith("latency_ns=?") for line in lines) == 6
    assert sum(bool(re.search(r"latency_ns=\d+$", line)) for line in lines) == 4


def test_trace(run):
    lines = [json.loads(line) for line in run("trace", "a.out:work", "--when", "n > 7", "--json").splitlines()]
    assert [line["args"] for line in lines] == [{"n": 8}, {"n": 9}]
    lines = run("trace", "a.out:work", "--when", "retval == -1", "--print", "n", "--quiet").splitlines()
    assert [line.partition("work")[2] for line in lines if "n=9" in line] == [" = -1  n=9"]
    assert len(lines) == 6


def test_hist(run):
    found = document(run("hist", "a.out:work", "--of", "n", "--when", "retval > 0", "--as", "sum", "--json"))
    assert found["aggregations"]["n"]["sum"] == 1 + 2 + 4 + 5 + 7 + 8 + 1 + 2 + 4 + 5


@pytest.mark.parametrize("command", ["count", "time", "trace"])
def test_mistakes_are_pointed_at(run, command):
    said = run(command, "a.out:work", "--when", "m > 3", status=2)
    assert "--when:1:1: m is not defined" in said
    said = run(command, "a.out:work", "--when", "n >", status=2)
    assert said.startswith("--when:1:")
