"""Functions replaced and brought back ten thousand times under load, and controllers killed while they load objects."""

import os
import random
import shutil
import subprocess
import sys
import time

import pytest

import anyprobe
from anyprobe import SharedObject
from live.test_replace import SOURCE, running

pytestmark = pytest.mark.live

ROUNDS, QUIET_ROUNDS, KILLED = 10_000, 1_000, 60
LOADER = """
import sys
import anyprobe
with anyprobe.attach(int(sys.argv[1]), unsafe=True) as session:
    print("attached", flush=True)
    session.replace("a.out:price", anyprobe.SharedObject(sys.argv[2], "new_price")).revert()
    print("done", flush=True)
"""


@pytest.mark.timeout(3600)
def test_ten_thousand_rounds_under_load():
    """Three threads call the functions all the time; each result is right by the old or by the new one."""
    with running() as program:
        before = program.text()
        fix = SharedObject.compiled(SOURCE, "new_fee")
        with anyprobe.attach(program.pid, unsafe=True) as session:
            assert program.ask("b") == "busy"
            for _ in range(ROUNDS):
                session.replace({"a.out:price": "a.out:price_new", "a.out:fee": fix}).revert()
            assert program.ask("B") == "1 0"
            assert len(session.probes) == 2
        assert (program.text(), program.ask("p5")) == (before, "10 6")


@pytest.mark.timeout(3600)
def test_a_thousand_rounds_without_a_thread_inside():
    with running() as program:
        before = program.text()
        pairs = {"a.out:packed": "a.out:packed_new", "a.out:unpacked": "a.out:unpacked_new"}
        within = ["a.out:there_and_back"]
        with anyprobe.attach(program.pid, unsafe=True) as session:
            assert program.ask("b") == "busy"
            for _ in range(QUIET_ROUNDS):
                session.replace(pairs, outside=within, timeout=300).revert(outside=within, timeout=300)
            assert program.ask("B") == "1 0"
        assert program.text() == before


@pytest.mark.timeout(1800)
def test_controllers_are_killed_while_they_load(tmp_path):
    """At whatever moment: the thread comes back by itself, and the program computes what it did."""
    fix = SharedObject.compiled(SOURCE, "new_price").path
    chosen = random.Random(41)
    ended = 0
    with running() as program:
        before = program.text()
        for number in range(KILLED):
            copy = shutil.copy(fix, tmp_path / f"fix{number}.so")
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
            command = [sys.executable, "-c", LOADER, str(program.pid), copy]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as controller:
                assert controller.stdout is not None
                assert controller.stdout.readline() == "attached\n"
                time.sleep(chosen.uniform(0, 0.4))  # wherever it is then
                controller.kill()
                ended += "done" in controller.stdout.read()
            assert program.ask("e100") == str(sum(1_000_000 if n % 5 == 0 else 3 * n for n in range(100)))
            subprocess.run([sys.executable, "-m", "anyprobe", "detach", "-p", str(program.pid)], check=True)
            assert (program.text(), program.ask("p5")) == (before, "10 6")
    assert ended < KILLED
