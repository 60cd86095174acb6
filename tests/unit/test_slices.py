from types import SimpleNamespace

import pytest

from support.slices import all_are_wanted, left_out

DAYS = [f"2030-01-{day:02}" for day in range(1, 29)]


def case(test, number, each=None):
    mark = pytest.mark.sliced(each).mark if each else None
    return SimpleNamespace(nodeid=f"{test}[{number}]", get_closest_marker=lambda _: mark)


CASES = [*(case("many", number, 3) for number in range(10)), *(case("few", number, 2) for number in range(2))]
PLAIN = [case("plain", number) for number in range(5)]


def run_on(day):
    out = left_out([*PLAIN, *CASES], day)
    return [each.nodeid for each in [*PLAIN, *CASES] if each not in out]


def test_of_each_few_neighbours_one_runs():
    for day in DAYS:
        assert len(run_on(day)) == 5 + 4 + 1
        assert run_on(day) == run_on(day)
        assert "many[9]" in run_on(day), "it has no neighbour"


def test_each_case_has_its_day():
    assert {name for day in DAYS for name in run_on(day)} == {each.nodeid for each in [*PLAIN, *CASES]}


@pytest.mark.parametrize(
    ("torture", "arguments", "all_run"),
    [(False, ["tests"], False), (True, ["tests"], True), (False, ["tests/unit/test_slices.py"], True)],
)
def test_all_run_in_the_torture_and_where_a_file_is_named(torture, arguments, all_run, monkeypatch):
    monkeypatch.setattr("os.path.isdir", lambda path: not path.endswith(".py"))
    assert all_are_wanted(SimpleNamespace(getoption=lambda _: torture, args=arguments)) is all_run
