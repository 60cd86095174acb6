"""C++20 coroutines that hand over to one another by jumps: each step is timed, and no other call is missed for them."""

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.live
TIMES = 40_000


@pytest.mark.parametrize("self_time", [False, True], ids=["", "self"])
def test_each_step_ends_at_its_jump(compiled, tmp_path, self_time):
    program = compiled("hands_over.cpp", "-O2", "-std=c++20")
    results = tmp_path / "results"
    command = [sys.executable, "-m", "anyprobe", "time", *["--self"] * self_time, "a.out:*", "--json", "-o", results]
    outcome = subprocess.run([*command, "--", program, str(TIMES)], capture_output=True, text=True, timeout=180)
    assert (outcome.returncode, int(outcome.stdout)) == (0, TIMES)
    document = json.loads(results.read_text())
    functions = document["functions"]
    assert sum("hand over to another one" in each for each in document["warnings"]) == 1
    assert all(each["nmissed"] == each["tail_exits"] == 0 for each in functions)

    def ended(*parts):
        """Return how many calls of the functions whose names have all parts have ended, timed or not known yet."""
        own = [each for each in functions if all(part in each["function"] for part in parts)]
        return sum(each["count"] for each in own), sum(each["count"] + each["learning"] for each in own)

    assert ended("leaf") == (TIMES, TIMES)
    # what awaits is resumed once for each; what is awaited is resumed once, and once more to be destroyed
    steps = ".actor" if any(".actor" in each["function"] for each in functions) else ".resume"
    assert ended("outer(", steps)[0] in (TIMES, TIMES + 1)
    count, all_ended = ended("inner(", steps)
    assert TIMES <= count <= all_ended <= 2 * TIMES
