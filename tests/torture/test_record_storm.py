"""Recorded calls of threads that signals interrupt all the time, in rings that are full, and a great many of them."""

import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from anyprobe.data.calls.recorded import END_BITS, ENTRY, GAP, RETURN, joined
from anyprobe.data.calls.recording import Recording
from support.driver import build, wait_until

pytestmark = pytest.mark.live

PROGRAM = """
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
#define NOINLINE __attribute__((noinline))
volatile long sink;
/* Of the number n of a round, each bit says which function is called. */
NOINLINE void zero(void) { sink += 1; }
NOINLINE void one(void) { sink += 2; }
NOINLINE void turn(unsigned n) { for (int bit = 0; bit < 20; bit++) if (n >> bit & 1) one(); else zero(); }
NOINLINE void handled(void) { sink += 3; }
static void on_signal(int number) { handled(); }
static volatile int over;
static long rounds;
static void *work(void *argument) {
    for (long n = 0; n < rounds; n++) turn(n & 0xfffff);
    return 0;
}
int main(int count, char **values) {
    long number = atol(values[1]), storm = atol(values[3]);
    rounds = atol(values[2]);
    pthread_t threads[8];
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_NODEFER | SA_RESTART};
    sigaction(SIGUSR1, &action, 0);
    for (long n = 0; n < number; n++) pthread_create(&threads[n], 0, work, 0);
    for (long n = 0; n < storm; n++) pthread_kill(threads[n % number], SIGUSR1);
    for (long n = 0; n < number; n++) pthread_join(threads[n], 0);
    return 0;
}
"""
SPECS = ["a.out:zero", "a.out:one", "a.out:turn", "a.out:handled"]
BITS = 20


@pytest.fixture(scope="module")
def program():
    return str(build("recorded_storm.c", "-O1", "-pthread", text=PROGRAM))


def check(path, number, rounds):
    """Check every record: a round's calls are the bits of its number, and rounds follow one another, but for gaps."""
    recording = Recording(str(path))
    events = joined(list(recording.events()))
    assert recording.ended
    codes = {each.name: at for at, each in enumerate(recording.functions)}
    seen = lost = whole = handled = 0
    for thread in range(len(recording.threads)):
        own = events.part(events.threads == thread)
        seen += len(own)
        is_gap = own.what & 3 == GAP
        seen -= int(is_gap.sum())
        lost += int((own.what[is_gap] >> END_BITS).astype(np.int64).sum())
        last = -1
        for part in np.split(own.what, np.flatnonzero(is_gap)):
            inner = part[part & 3 != GAP]
            functions, ends = inner >> END_BITS, inner & 3
            in_handler = functions == codes["handled"]
            handled += int((in_handler & (ends == RETURN)).sum())
            # a handler's calls are whole wherever they come in between
            nested = np.cumsum(np.where(ends[in_handler] == ENTRY, 1, -1))
            assert not len(nested) or (nested >= -1).all()
            functions, ends = functions[~in_handler], ends[~in_handler]
            turns = np.flatnonzero((functions == codes["turn"]) & (ends == ENTRY))
            for first in turns.tolist():
                around = slice(first, first + 2 * BITS + 2)
                calls, kinds = functions[around], ends[around]
                if len(calls) < 2 * BITS + 2:
                    break
                assert kinds.tolist() == [ENTRY] + [ENTRY, RETURN] * BITS + [RETURN]
                assert (calls[1:-1:2] == calls[2:-1:2]).all()
                bits = (calls[1:-1:2] == codes["one"]).astype(np.int64)
                value = int((bits << np.arange(BITS)).sum())
                assert value > last or value == (last + 1) & 0xFFFFF
                last, whole = value, whole + 1
    assert len(recording.threads) == number
    assert lost == sum(each.events for each in recording.lost)
    wanted = number * rounds * (2 * BITS + 2)
    assert seen + lost >= wanted, "each call of a round has two events"
    return seen, lost, whole, handled, wanted


def test_signals_that_interrupt_records_and_full_rings_garble_none(program, tmp_path):
    path = tmp_path / "run.aprobe"
    rounds, storm = 60_000, 30_000
    given = ["record", *SPECS, "--ring", "1", "-o", str(path), "--quiet", "--", program, "2", str(rounds), str(storm)]
    subprocess.run([sys.executable, "-m", "anyprobe", *given], check=True)
    seen, lost, whole, handled, wanted = check(path, 2, rounds)
    assert seen + lost <= wanted + 2 * storm
    assert lost > 0
    assert whole > 100
    assert handled > 0


def test_ten_million_calls_are_all_recorded_or_counted(program, tmp_path):
    path = tmp_path / "run.aprobe"
    rounds = 120_000
    given = ["record", *SPECS, "--ring", "512", "-o", str(path), "--quiet", "--", program, "4", str(rounds), "0"]
    subprocess.run([sys.executable, "-m", "anyprobe", *given], check=True)
    seen, lost, whole, _, wanted = check(path, 4, rounds)
    assert seen + lost == wanted
    assert wanted // 2 > 10_000_000
    assert whole > 50_000
    print(f"{seen:,} events recorded, {lost:,} lost; {path.stat().st_size / max(seen, 1):.2f} bytes each")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("victim", ["controller", "program"])
def test_a_kill_at_any_moment_leaves_a_readable_file(program, tmp_path, victim, seed):
    path = tmp_path / "run.aprobe"
    target = subprocess.Popen([program, "2", "100000000", "0"])
    given = ["record", *SPECS, "-p", str(target.pid), "-o", str(path), "--quiet"]
    controller = subprocess.Popen([sys.executable, "-m", "anyprobe", *given])
    try:
        wait_until(lambda: path.exists() and path.stat().st_size > 1000, "the first events")
        time.sleep(random.Random(seed).random())
        os.kill(controller.pid if victim == "controller" else target.pid, signal.SIGKILL)
        if victim == "program":
            assert controller.wait(60) == 0
        else:
            controller.wait(20)
            time.sleep(0.2)
            assert target.poll() is None, "the program runs on"
        recording = Recording(str(path))
        events = joined(list(recording.events()))
        assert not recording.damage or victim == "controller"
        assert len(events) > 1000
        names = {each.name for each in recording.functions}
        assert names >= {"zero", "one", "turn"}
    finally:
        for each in (controller, target):
            if each.poll() is None:
                each.kill()
            each.wait()
