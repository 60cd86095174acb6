"""Coverage by flags: probes that tell whether they were hit, and take themselves away."""

import re
import subprocess
import time

import pytest

import anyprobe
from live.test_command_line import anyprobe as command
from support.driver import build

pytestmark = pytest.mark.live
WORKS = """
#include <stdio.h>
static volatile long sum;
static __attribute__((noinline)) long rare(long n) {
    sum += n;
    return n % 7 == 3 ? n : -n;
}
static __attribute__((noinline)) long often(long n) {
    for (long i = 0; i < 9; i++)
        sum += i ^ n;
    if (n % 5 == 1)
        sum += rare(n);
    switch (n & 7) {
    case 1: sum += 3; break;
    case 2: sum -= n; break;
    case 3: sum *= 3; break;
    case 5: return n;
    }
    return -n;
}
static __attribute__((noinline)) long never(long n) {
    return n > 3 ? rare(n) : n;
}
int main(int argc, char **argv) {
    setvbuf(stdout, 0, _IONBF, 0);
    for (long i = 0; i >= 0; i++) {
        if (i == 1000)
            puts("works");
        sum += often(i);
        if (argc > 2)
            sum += never(i);
    }
    return 0;
}
"""


def pump_until(session, done, seconds=60):
    """Let a session do what is due until something holds."""
    end = time.monotonic() + seconds
    while not done():
        session.pump(0.05)
        assert time.monotonic() < end, "it has not come to that"


def text_of(session, place, size):
    return session.process.mem.read(place.address, size)


@pytest.fixture
def works():
    """A program that has worked for a while."""
    with subprocess.Popen([build("works.c", "-O2", "-g", text=WORKS)], stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"works\n"
            yield process
        finally:
            process.kill()


def test_what_was_hit_is_taken_out_and_the_rest_stays(works):
    with anyprobe.attach(works.pid) as session:
        (probe,) = session.cover("a.out")
        patches = [(home, home.cursor) for home in session.splicing.holdings.code_regions]
        armed = {place for place in probe.places if place.hook.armed}
        names = {place.site.name for place in armed}
        assert {"often", "rare", "never", "main"} <= names
        often = [place for place in armed if place.site.name == "often"]
        pump_until(session, lambda: sum(place.hook.armed for place in often) <= len(often) // 4)
        gone = [place for place in armed if not place.hook.armed]
        assert all(place.hook.was_set or place.hook.refusal is not None for place in gone)
        assert all(place.hook.armed for place in armed if place.site.name == "never")
        for place in gone:
            original = place.module.code.text.memory.read(place.want.address, 1)
            assert text_of(session, place, 1) == original, hex(place.address)
        assert [(home, home.cursor) for home in session.splicing.holdings.code_regions] == patches
        (module,) = session.snapshot().coverage.modules
    covered = {each.name: [hits for hits in each.blocks.values() if hits] for each in module.functions}
    assert covered["often"]
    assert covered["rare"]
    assert not covered["never"]
    assert not module.counted


def test_all_of_the_text_is_as_it_was_in_the_end(works):
    def text():
        with open(f"/proc/{works.pid}/maps") as maps, open(f"/proc/{works.pid}/mem", "rb") as memory:
            for line in maps:
                if line.rstrip().endswith("/works") and " r-xp " in line:
                    low, high = (int(each, 16) for each in line.split()[0].split("-"))
                    memory.seek(low)
                    return memory.read(high - low)
        raise AssertionError("it is not mapped")

    before = text()
    with anyprobe.attach(works.pid) as session:
        (probe,) = session.cover("a.out")
        assert text() != before
        pump_until(session, lambda: any(place.hook.was_set and not place.hook.armed for place in probe.places))
    assert text() == before


def test_what_stands_beside_code_that_runs_often_is_not_known_in_the_end(works):
    with anyprobe.attach(works.pid) as session:
        (probe,) = session.cover("a.out:main", "a.out:often")[:1]
        pump_until(session, lambda: not any(place.hook.was_set and place.hook.armed for place in probe.places))
        beside = [place for place in probe.places if not place.hook.was_set and not place.hook.armed]
        assert all("runs often" in place.hook.refusal.detail for place in beside)
        (module,) = session.snapshot().coverage.modules
    blocks = {each.start + offset: hits for each in module.functions for offset, hits in each.blocks.items()}
    assert [blocks[place.want.address] for place in beside] == [None] * len(beside)


def test_the_command_marks_what_has_run(works, tmp_path):
    done = command("cover", "a.out", "--annotate", "works.c", "-p", str(works.pid), "--for", "1")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^ {8}\+ +5      sum \+= n;$", done.stdout, re.MULTILINE), done.stdout
    assert re.search(r"^ {4}##### +\d+      return n > 3 \? rare\(n\) : n;$", done.stdout, re.MULTILINE), done.stdout
