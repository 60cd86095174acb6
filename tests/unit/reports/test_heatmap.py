import io
from dataclasses import replace

import pytest
from rich.console import Console

from anyprobe.reports.heatmap import print_heat
from anyprobe.reports.plain import PlainConsole
from support.sample_snapshots import snapshot, timing


def interval(*buckets, function="f"):
    timed = timing(function, count=sum(each[2] for each in buckets), buckets=buckets)
    return replace(snapshot(sites=(), functions=(timed,)), duration_s=0.5, clock_step_ns=1.0)


SERIES = [interval((0.0, 1.0, 2), (100.0, 101.0, 100)), interval((300.0, 304.0, 5)), interval((100.0, 101.0, 30))]


def printed(series, width=60, plain=True):
    stream = io.StringIO()
    console = Console(file=stream, width=width, color_system=None)
    print_heat(series, PlainConsole(stream, width) if plain else console)
    return stream.getvalue().splitlines()


def test_a_map_has_time_from_left_to_right_and_values_from_below():
    lines = [line.rstrip() for line in printed(SERIES)]
    assert lines[1] == "f (libc.so.6): 137 calls; a column is 500 ms"
    assert lines[2] == "   256 ns │    ░░░░"
    assert lines[4] == "    64 ns │████    ▓▓▓▓"
    assert lines[-4] == "   ≤ 1 ns │░░░░"
    assert lines[-2:] == ["           0 s    1.5 s", "calls: █ ≥ 50, ▓ ≥ 25, ▒ ≥ 10, ░ ≥ 1"]


@pytest.mark.parametrize("width", [20, 60, 80, 200])
def test_maps_are_no_wider_than_the_terminal_and_the_same_with_and_without_colours(width):
    series = SERIES * 40
    lines = printed(series, width)
    assert max(len(line.rstrip()) for line in lines if "│" in line) <= width
    assert [line.rstrip() for line in lines] == [line.rstrip() for line in printed(series, width, plain=False)]


def test_names_are_escaped_and_those_left_out_are_counted():
    names = ("a\x1b[31m[bold]", "b", "c", "d", "e")
    lines = printed([interval((1.0, 2.0, 3), function=name) for name in names])
    assert any("a\\x1b[31m[bold] (libc" in line for line in lines)
    assert lines[-1] == "… and 2 more heat maps: anyprobe report has them"


def test_nothing_is_drawn_of_nothing():
    assert printed([]) == ["", "no heat map: no interval has a distribution"]
