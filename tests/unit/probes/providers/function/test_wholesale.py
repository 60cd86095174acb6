from types import SimpleNamespace

import pytest

from anyprobe.probes.providers.function.wholesale import surveyed


def sites(number, functions, kind="block"):
    """Return so many sites of an object with so many functions."""
    loaded = SimpleNamespace(image=SimpleNamespace(functions=SimpleNamespace(starts=range(functions))))
    return [SimpleNamespace(object=loaded, kind=kind)] * number


@pytest.mark.parametrize(
    ("number", "functions", "kind", "pays"),
    [
        (299, 1000, "block", False),
        (300, 1000, "block", True),
        (300, 1000, "return", True),
        (300, 1000, "entry", False),
        (300, 9800, "insn", True),
        (600, 78_000, "block", False),  # a library that was linked into a runtime
        (3000, 78_000, "block", True),
    ],
)
def test_when_looking_at_a_whole_module_pays(number, functions, kind, pays):
    wanted = sites(number, functions, kind)
    assert surveyed(wanted) == ([wanted[0].object] if pays else [])


def test_timing_looks_at_exits_of_all_functions():
    wanted = sites(300, 1000, "entry")
    assert surveyed(wanted, timed=True) == [wanted[0].object]
    assert surveyed(wanted[:299], timed=True) == []
