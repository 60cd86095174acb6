"""Every function of whole programs, and some of a very large one: plans that are kept are those that are made anew."""

from pathlib import Path

import pytest

from anyprobe.splice.plan.splices import WantKind
from support.kept_plans import OTHER_BIAS, Planned

LIBC = next((str(each) for each in Path("/lib/x86_64-linux-gnu").glob("libc.so.6")), "/lib64/libc.so.6")
PROGRAMS = {"bash": 1, "perl": 1, "sqlite3": 1, "python3.11": 1, LIBC: 1, "node": 41}
"""With of how many functions one is planned."""


@pytest.mark.parametrize(
    "kinds",
    [{WantKind.ENTRY}, {WantKind.ENTRY, WantKind.EXIT}, {WantKind.OFFSET}],
    ids=["count", "time", "cover"],
)
@pytest.mark.parametrize("name", PROGRAMS)
def test_kept_plans_are_those_that_are_made_anew(tmp_path, monkeypatch, name, kinds):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path, step = Path(name if name.startswith("/") else f"/usr/bin/{name}"), PROGRAMS[name]
    if not path.exists():
        pytest.skip(f"there is no {name} here")
    first = Planned(path.resolve()).plan_all(kinds, step=step)
    first.plans.save()
    again = Planned(path.resolve()).plan_all(kinds, step=step)
    assert again.made == first.made
    elsewhere = Planned(path.resolve(), bias=OTHER_BIAS).plan_all(kinds, step=step)
    anew = Planned(path.resolve(), bias=OTHER_BIAS).plan_all(kinds, step=step, kept=False)
    assert elsewhere.made == anew.made
