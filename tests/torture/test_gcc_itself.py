"""DTrace's ``tst.gcc``: gcc compiles while its instructions are probed, and the object file is the same.

Driver and assembler are counted whole, from their first instructions on. The compiler proper has five million
instructions: they are counted in some hundred of the functions that run, others each time. All functions
of all three are timed, too.
"""

import time

import pytest

from support.compilation import compiled_under, instructions_of, needs_gcc
from support.filters import TIMED

pytestmark = needs_gcc
EVERYTHING = ["a.out:*:insn"]
UNTIMED = ("no-exit", "part-of-a-function", "no-thread-slot")
"""What never returns, and what the loader does before there are threads, is not timed."""
FUNCTIONS = 300
SEED = time.time_ns() & 0xFFFFFF


@pytest.mark.timeout(1800)
def test_driver_and_assembler_whole(tmp_path):
    plain, _ = compiled_under({}, tmp_path)
    output, counted = compiled_under({"gcc": EVERYTHING, "as": EVERYTHING}, tmp_path)
    assert output == plain
    assert counted["gcc"]["armed"] > 100_000
    assert counted["as"]["armed"] > 50_000
    assert share_refused(counted["gcc"]) < 0.001
    assert share_refused(counted["as"]) < 0.005  # of five of its functions a jump table is not found


@pytest.mark.timeout(1800)
def test_all_three_at_once(tmp_path):
    """All functions of the compiler proper, then each instruction of some; the other two whole meanwhile."""
    print(f"seed {SEED}")
    plain, _ = compiled_under({}, tmp_path)
    output, entered = compiled_under({"cc1": ["a.out:*", "a.out:*%return"]}, tmp_path)
    assert output == plain
    functions = entered["cc1"]["functions"]
    assert len(functions) > 4000
    chosen = instructions_of(functions, FUNCTIONS, SEED)
    output, counted = compiled_under({"gcc": EVERYTHING, "cc1": chosen, "as": EVERYTHING}, tmp_path)
    assert output == plain
    assert counted["cc1"]["hits"] > 10_000
    assert share_refused(counted["cc1"]) < 0.02


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("level", TIMED)
def test_all_functions_of_all_three_timed(level, tmp_path):
    plain, _ = compiled_under({}, tmp_path)
    output, timed = compiled_under({"gcc": ["*:*"], "cc1": ["*:*"], "as": ["*:*"]}, tmp_path, level)
    assert output == plain
    assert timed["cc1"]["hits"] > 1_000_000
    assert all(share_refused(report, UNTIMED) < 0.02 for report in timed.values())


def share_refused(report, but=()):
    return sum(number for reason, number in report["refused"].items() if reason not in but) / report["sites"]
