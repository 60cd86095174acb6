"""Processes that appear later: noticed, probed, and told of where that was too late."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress

import pytest

from anyprobe.core.errors import KernelRefused, UsageError
from anyprobe.probes.following import watches
from anyprobe.probes.following.appearing import Appearing
from anyprobe.probes.following.selection import Selection, cgroups_of
from anyprobe.probes.options import SessionOptions
from support.driver import PATIENCE, build, wait_until
from support.seen_probes import is_probed

pytestmark = pytest.mark.live
PROGRAM = """
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) void work(void) { __asm__ volatile(""); }
int main(void) {
    while (getchar() != EOF) { for (int i = 0; i < 10; i++) { work(); getppid(); } putchar('k'); fflush(stdout); }
    return 0;
}
"""
NAME = f"late{os.getpid()}"
"""That no program of other tests has."""


@pytest.fixture
def program(tmp_path):
    return shutil.copy(build("late_comer.c", "-O1", text=PROGRAM), tmp_path / NAME)


@pytest.fixture
def start(program):
    started = []

    def start():
        pipe = subprocess.PIPE
        started.append(subprocess.Popen([program], stdin=pipe, stdout=pipe))
        return started[-1]

    yield start
    for each in started:
        each.kill()
        each.wait(PATIENCE)
        each.stdout.close()
        with suppress(BrokenPipeError):
            each.stdin.close()


def go(process):
    process.stdin.write(b"x")
    process.stdin.flush()
    assert process.stdout.read(1) == b"k"


WATCHES = {"events": watches.Connector, "tracepoint": watches.Tracepoint, "looks": lambda: watches.Looking("a test")}


@pytest.fixture(params=list(WATCHES))
def watch(request):
    try:
        return WATCHES[request.param]()
    except (OSError, KernelRefused) as refusal:
        pytest.skip(f"not permitted here: {refusal}")


def test_each_way_notices_what_appears_and_keeps_the_numbers_of_what_ends(watch, start):
    """One there before, two that come; one of these ends and another comes."""
    there = start()
    group = Appearing(
        (),
        SessionOptions(pending="modules"),
        Selection((NAME,)),
        lambda each: each.count("a.out:work", "libc:getppid"),
        watch=watch,
    )
    with group:
        group.begin()
        wait_until(lambda: len(group) == 1, "the one that was there")
        processes = [there, start(), start()]
        wait_until(lambda: len(group) == 3, "those that came")
        for each in processes:
            go(each)
        processes[1].stdin.close()
        processes[1].wait(PATIENCE)
        group.sweep()
        processes.append(start())
        wait_until(lambda: any(each.pid == processes[-1].pid for each in group), "the last one")
        go(processes[-1])
        assert {site.function: site.hits for site in group.snapshot().sites} == {"work": 40, "getppid": 40}
        assert {each.target.pid for each in group.snapshots()} == {each.pid for each in processes}
        assert any(f"4 processes named {NAME} appeared" in note for note in group.notes())


def test_none_is_missed_that_comes_every_ten_milliseconds(start):
    """Each is noticed once and probed while it lives."""
    try:
        watch = watches.Connector()
    except OSError as refusal:
        pytest.skip(f"not permitted here: {refusal}")
    count = 60
    with Appearing(
        (), SessionOptions(), Selection((NAME,)), lambda each: each.count("a.out:work"), watch=watch
    ) as group:
        group.begin()
        began = time.monotonic()
        processes = []
        while len(processes) < count:
            if time.monotonic() >= began + 0.01 * len(processes):
                processes.append(start())
        wait_until(lambda: len(group) == count, "all")
        for each in processes:
            go(each)
        assert (group.noticed, group.too_short, group.snapshot().hits) == (count, 0, 10 * count)


def test_processes_that_end_at_once_are_told_of(program):
    """Whatever the machine is doing: those that were too short and those that were probed are all there are."""
    try:
        watch = watches.Connector()
    except OSError as refusal:
        pytest.skip(f"not permitted here: {refusal}")
    with Appearing(
        (), SessionOptions(), Selection((NAME,)), lambda each: each.count("a.out:work"), watch=watch
    ) as group:
        group.begin()
        for _ in range(20):
            subprocess.run([program], stdin=subprocess.DEVNULL, check=True)
        last = subprocess.Popen([program], stdin=subprocess.PIPE)
        wait_until(lambda: any(each.pid == last.pid for each in group), "the last one")
        told = " ".join(group.notes())
        named = int(re.search(r"(\d+) processes named", told)[1])
        assert 1 <= named <= 21
        assert group.too_short + len(group.snapshots()) + sum(group.unprobed.values()) == named
        fates = re.search(r"(\d+) probed, (\d+) refused, (\d+) had ended before their probes", told)
        assert sum(map(int, fates.groups())) == named
        unknown = re.search(r"(\d+) further processes had ended before it was seen whether", told)
        assert named + (int(unknown[1]) if unknown else 0) >= 21  # others on this machine may be among the unknown
        last.communicate()


def test_where_nobody_tells_it_is_said_how_many_may_have_been_missed(program):
    """Processes that begin and end between two looks have only left their numbers."""
    watch = watches.Looking("a test")
    with Appearing(
        (), SessionOptions(), Selection((NAME,)), lambda each: each.count("a.out:work"), watch=watch
    ) as group:
        group.begin()

        def is_missed():
            subprocess.run([program], stdin=subprocess.DEVNULL, check=True)
            return watch.lost() > 0

        wait_until(is_missed, "a process that nobody saw")
        told = " ".join(group.notes())
    assert "looks, 50 a second, since the kernel does not tell (a test)" in told
    assert re.search(
        rf"\d+ processes or threads began and ended between two looks: those named {NAME} were missed", told
    )


def command(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "anyprobe", *arguments, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_the_command_counts_what_appears(start):
    """It begins with nobody; one report of all, and one of each."""
    with command("count", "a.out:work", "-n", NAME, "--new") as counting:
        processes = []
        deadline = time.monotonic() + PATIENCE
        while not (processes and is_probed(processes[-1].pid, "work")):  # what came before its watch is found, too
            assert time.monotonic() < deadline
            processes = processes or [start()]
        processes.append(start())
        wait_until(lambda: is_probed(processes[-1].pid, "work"), "the second")
        for each in processes:
            wait_until(lambda each=each: is_probed(each.pid, "work"), "probes")
            go(each)
        counting.send_signal(signal.SIGINT)
        shown, said = counting.communicate(timeout=PATIENCE)
    assert counting.returncode == 130, said
    document = json.loads(shown)
    assert [site["hits"] for site in document["sites"]] == [20]
    assert {each["target"]["pid"] for each in document["targets"]} == {each.pid for each in processes}
    assert any("appeared meanwhile, noticed by" in each for each in document["warnings"])


def test_nobody_came():
    with command("count", "a.out:work", "-n", "nobody_is_called_so", "--new", "--for", "0.3") as counting:
        shown, _ = counting.communicate(timeout=PATIENCE)
    assert (counting.returncode, json.loads(shown)["sites"]) == (0, [])


def test_control_groups_and_containers(start):
    process = start()
    (group,) = cgroups_of(process.pid)[-1:]
    # a program has its own name a moment after who has started it goes on
    wait_until(lambda: Selection((NAME,)).running() == [process.pid], "its name")
    for text in (group, f"/sys/fs/cgroup{group}", "/"):
        assert Selection((NAME,), cgroup=text).running() == [process.pid]
    assert not Selection(cgroup="/no.such.slice").means(process.pid)
    assert not Selection(container="0123456789ab").means(process.pid)
    for wrong in ({"container": "xyz"}, {"cgroup": "relative"}):
        with pytest.raises(UsageError):
            Selection(**wrong)


@pytest.mark.parametrize(
    "group",
    [
        "/docker/{}",
        "/system.slice/docker-{}.scope",
        "/kubepods.slice/pod1/cri-containerd-{}.scope",
        "/machine/libpod-{}/x",
    ],
)
def test_ids_of_containers_in_control_groups(group, monkeypatch):
    from anyprobe.probes.following import selection

    full = "3f2a" * 16
    monkeypatch.setattr(selection, "cgroups_of", lambda pid: [group.format(full)])
    assert Selection(container=full[:12]).means(os.getppid())
    assert not Selection(container=full[4:18] + "0").means(os.getppid())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--new", "-p", "1"], "--new is about processes that -n, --cgroup or --container name"),
        (["-n", "x", "--new", "--", "true"], "about running processes, not a command"),
        (["--cgroup", "/no.such.slice"], "no process is in /no.such.slice"),
        (["-n", "nobody_is_called_so"], "--new waits for one"),
    ],
)
def test_mistakes(arguments, told):
    done = subprocess.run(
        [sys.executable, "-m", "anyprobe", "count", "a.out:work", *arguments],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode in (1, 2)
    assert told in done.stderr
