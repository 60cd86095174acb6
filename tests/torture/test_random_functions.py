"""Random functions, hundreds of programs of them: results and counts under signals, probes that come and go."""

import time

import pytest

from live.test_random_functions import LEVELS, LONGER, check_changes, check_level, faulting_program, unwound_program
from support.random_functions import program

SEED = time.time_ns() & 0xFFFFFF
PROGRAMS = 100


@pytest.mark.parametrize("text", [program, faulting_program, unwound_program])
@pytest.mark.timeout(7200)
def test_results_and_counts_under_signals(run_target, text):
    for seed in range(SEED, SEED + PROGRAMS):
        for level, specs in LEVELS.items():
            print(f"seed {seed}: {level}", flush=True)
            check_level(run_target, text(seed), specs, 1000, LONGER)


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("text", [program, faulting_program, unwound_program])
@pytest.mark.timeout(7200)
def test_probes_come_and_go_while_they_run(run_target, text, threads):
    for seed in range(SEED, SEED + PROGRAMS):
        print(f"seed {seed}", flush=True)
        check_changes(run_target, text(seed), seed, 25, None, LONGER, threads)
