"""``anyprobe offcpu --wakers``: who woke the threads of a program, beside what the program has measured itself."""

import json
import os
import re

import pytest

from live.test_command_line import anyprobe as command
from live.test_schemas import checked
from support.bpf_running import refused_because
from support.driver import build

REFUSED = refused_because()
pytestmark = [pytest.mark.live, pytest.mark.skipif(bool(REFUSED), reason=REFUSED or "they run")]
TIMES, PAGES = 100, 64
DOUBT_NS = 50_000
"""For each wait: the way into sleep and out of it, where the program's clock runs and no thread sleeps."""


@pytest.fixture(scope="module")
def program():
    return str(build("woken_by.c", "-O1", "-pthread", "-fno-omit-frame-pointer"))


@pytest.fixture(scope="module")
def measured(tmp_path_factory, program):
    """Return what the program says, and the results of the kernel."""
    path = tmp_path_factory.mktemp("wakers") / "pages"
    path.write_bytes(os.urandom(PAGES * 4096))
    with open(path, "rb") as file:
        os.fsync(file.fileno())
    results = path.with_name("results.json")
    found = command("offcpu", "--wakers", "--json", "-o", str(results), "--", program, str(path))
    assert found.returncode == 0, found.stderr
    document = json.loads(results.read_text())
    checked("offcpu", document)
    return json.loads(found.stdout), document


def test_the_tables_say_the_same(program, tmp_path):
    (tmp_path / "pages").write_bytes(bytes(4096))
    found = command("offcpu", "--wakers", "--", program, str(tmp_path / "pages"))
    thread = json.loads(found.stdout)["thread"]
    assert re.search(
        rf"^ *[\d.]+ m?s +[\d.]+ +\d+ +[\d.]+ m?s  woken_by \(thread {thread}\)", found.stderr, re.MULTILINE
    )
    assert re.search(r"^ *[\d.]+ m?s +[\d.]+ +[\d,]+ +[\d.]+ m?s  a timer", found.stderr, re.MULTILINE)
    assert re.search(r"ready, until a processor was free: [\d,]+ times", found.stderr)


def ready_ns(kernel):
    return kernel["aggregations"]["ready_ns"]["sum"]


def test_a_thread_that_wakes_another_is_named_with_the_time_that_it_slept(measured):
    truth, kernel = measured
    by_thread = [each for each in kernel["wakers"] if each["tid"] == truth["thread"]]
    own = [each for each in by_thread if any("futex" in frame for frame in each["sleeper_kernel_frames"])]
    assert TIMES <= sum(each["count"] for each in own) <= 3 * TIMES, "a signal, and at times the mutex"
    slept = sum(each["off_ns"] for each in own)
    assert truth["waited"] - TIMES * DOUBT_NS - ready_ns(kernel) <= slept <= truth["waited"]
    assert any("pthread_cond_signal" in frame for each in own for frame in each["frames"])


def test_a_child_that_wakes_its_parent_is_named(measured):
    truth, kernel = measured
    own = [
        each for each in kernel["wakers"]
        if each["tid"] == truth["child"] and any("pipe" in frame for frame in each["sleeper_kernel_frames"])
    ]  # fmt: skip
    assert 0.9 * TIMES <= sum(each["count"] for each in own) <= TIMES
    slept = sum(each["off_ns"] for each in own)
    assert truth["read"] - TIMES * DOUBT_NS - ready_ns(kernel) <= slept <= truth["read"]


def test_times_that_pass_are_timers_and_disks_are_interrupts(measured):
    truth, kernel = measured
    naps = [each for each in kernel["wakers"] if any("nanosleep" in one for one in each["sleeper_kernel_frames"])]
    assert {each["waker"] for each in naps if each["count"] >= TIMES} == {"timer"}
    assert sum(each["count"] for each in naps if each["waker"] == "timer") >= 2 * TIMES
    faults = [each for each in kernel["wakers"] if any("page_fault" in one for one in each["sleeper_kernel_frames"])]
    if truth["faults"] == PAGES:  # where a disk is below the file system
        assert 0.5 * PAGES <= sum(each["count"] for each in faults) <= PAGES * 1.2
    assert "thread" not in {each["waker"] for each in faults if each["count"] > 0.1 * PAGES}
