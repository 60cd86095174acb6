from types import SimpleNamespace

import pytest

from support.slices import all_are_wanted, left_out


def case(test, number, each=None):
    mark = pytest.mark.sliced(each).mark if each else None
    return SimpleNamespace(nodeid=f"{test}[{number}]", get_closest_marker=lambda _: mark)


CASES = [*(case("many", number, 3) for number in range(10)), *(case("few", number, 2) for number in range(2))]
PLAIN = [case("plain", number) for number in range(5)]


def run_of(cases):
    out = left_out(cases)
    return [each.nodeid for each in cases if each not in out]


def test_of_each_few_neighbours_one_runs():
    names = run_of([*PLAIN, *CASES])
    assert len(names) == 5 + 4 + 1
    assert "many[9]" in names, "it has no neighbour"
    assert names == run_of([*PLAIN, *CASES]), "no run depends on the day"


def test_a_test_with_many_rows_is_met_at_each_of_its_columns():
    names = run_of([case("wide", number, 3) for number in range(60)])
    assert {int(name[5:-1]) % 3 for name in names} == {0, 1, 2}


@pytest.mark.parametrize(
    ("torture", "arguments", "all_run"),
    [(False, ["tests"], False), (True, ["tests"], True), (False, ["tests/unit/test_slices.py"], True)],
)
def test_all_run_in_the_torture_and_where_a_file_is_named(torture, arguments, all_run, monkeypatch):
    monkeypatch.setattr("os.path.isdir", lambda path: not path.endswith(".py"))
    assert all_are_wanted(SimpleNamespace(getoption=lambda _: torture, args=arguments)) is all_run
