"""One address under several names is counted once where what all have counted is added up."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.live
NAMES = ("a.out:work", "a.out:same", "a.out:also", "a.out:chosen", "a.out:plain")


@pytest.mark.parametrize(
    ("command", "heading"),
    [("count", "2,000 hits at 2 sites"), ("time", "2,000 calls of 2 functions timed"),
     ("time --self", "2,000 calls of 2 functions timed"), ("time --tree", "2,000 calls of 2 functions timed"),
     ("count --by pid", "2,000 hits in 1 process"), ("time --by pid", "2,000 calls timed in 1 process"),
     ("time --by tid", "2,000 calls timed in 1 thread"), ("count --when arg0>=0", "2,000 hits at 2 sites")],
)  # fmt: skip
def test_the_heading_has_each_address_once(compiled, tmp_path, command, heading):
    results = tmp_path / "results"
    command = [sys.executable, "-m", "anyprobe", *command.split(), *NAMES, "-o", results, "--"]
    assert subprocess.run([*command, compiled("aliases.c", "-O2")], timeout=180, check=False).returncode == 0
    assert f": {heading} in " in results.read_text()
