"""Random functions, hundreds of programs of them: results and counts under signals, probes that come and go."""

import time

import pytest

from live.test_random_functions import LEVELS, check_changes, check_level

SEED = time.time_ns() & 0xFFFFFF
PROGRAMS = 100


@pytest.mark.timeout(7200)
def test_results_and_counts_under_signals(run_target):
    for seed in range(SEED, SEED + PROGRAMS):
        for level, specs in LEVELS.items():
            print(f"seed {seed}: {level}", flush=True)
            check_level(run_target, seed, specs, 1000)


@pytest.mark.timeout(7200)
def test_probes_come_and_go_while_they_run(run_target):
    for seed in range(SEED, SEED + PROGRAMS):
        print(f"seed {seed}", flush=True)
        check_changes(run_target, seed, 25)
