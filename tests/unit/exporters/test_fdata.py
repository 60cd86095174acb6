"""Profiles for BOLT, line by line, of coverage that is known."""

import io

import pytest

from anyprobe.core.errors import UnsupportedTarget
from anyprobe.data.findings.coverage import Coverage, CoveredFunction, CoveredModule, Edge
from anyprobe.data.snapshots.processes import TargetInfo
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.exporters.base import Measurement, exporter_of

WORK = CoveredFunction(
    "work", 0x100, {4: 9, 16: 5, 24: 9}, sizes={4: 12, 16: 8, 24: 6}, symbol="work",
    edges=(
        Edge(12, 0x110, 5), Edge(12, 0x118, 4), Edge(16, 0x200, 5, calls=True), Edge(23, 0x118, 5), Edge(30, 0x900, 9),
    ),
)  # fmt: skip
HIDDEN = CoveredFunction("hidden", 0x200, {0: 7, 8: 0}, sizes={0: 8, 8: 4}, symbol="a b/2", edges=(Edge(6, 0x208, 0),))
UNKNOWN = CoveredFunction("other", 0x300, {0: None}, symbol="other", edges=(Edge(2, 0x300, None),))


def written(*modules):
    found = Snapshot(TargetInfo(1, "/bin/x", None, alive=False), 1.0, coverage=Coverage(modules))
    stream = io.StringIO()
    exporter_of("fdata").write(Measurement(snapshots=[found], together=found), stream)
    return stream.getvalue().splitlines()


def module(*functions, name="x"):
    return CoveredModule(name, f"/bin/{name}", name, functions)


def test_lines_are_edges_that_were_gone_along_and_calls_from_elsewhere():
    assert written(module(WORK, HIDDEN, UNKNOWN)) == [
        "1 work c 1 work 10 0 5",
        "1 work c 1 work 18 0 4",
        "1 work 10 1 a\\ b/2 0 0 5",
        "1 work 17 1 work 18 0 5",
        "0 [unknown] 0 1 work 0 0 9",
        "0 [unknown] 0 1 a\\ b/2 0 0 2",
    ]


def test_two_runs_have_the_sums():
    (both,) = (Coverage((module(WORK, HIDDEN),)) + Coverage((module(WORK),))).modules
    assert written(both)[0] == "1 work c 1 work 10 0 10"


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        ((module(CoveredFunction("f", 0, {0: 1})),), "there are no edges"),
        ((module(WORK), module(WORK, name="y")), "edges of x, y"),
        ((module(CoveredFunction("f", 0, {0: 1}, edges=(Edge(1, 0, 1),))),), "x has no symbol table"),
    ],
)
def test_what_is_no_profile_is_refused(modules, said):
    with pytest.raises(UnsupportedTarget, match=said):
        written(*modules)
