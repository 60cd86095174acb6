"""Static programs with glibc, without symbols: functions are known by their addresses, and are timed as in others."""

import json
import shutil
import subprocess

import pytest

from anyprobe.binary.images.image import Image
from anyprobe.core.refusal import Reason
from anyprobe.probes.providers.function.threads.thread_slots import ENDED
from live.test_command_line import anyprobe
from support.driver import build

pytestmark = [pytest.mark.live, pytest.mark.root]
CALLS = 1000
LINKS = {"static": ("-static",), "static-pie": ("-static-pie",)}
TASKS = {"never": 3, "fork": 3, "vfork": 4, "memory": 2, "pointer": 2, "fork-no-pointer": 2}
"""By the way in which it makes a task, how many thousand calls are timed: fork children are not."""


def stripped(tmp_path, source, link, text=None):
    """Return a program without symbols, and the name of its function ``work``."""
    named = build(source, "-pthread", *LINKS[link], text=text)
    program = tmp_path / "program"
    shutil.copy(named, program)
    subprocess.run(["strip", program], check=True)
    (work,) = Image.open(str(named)).functions.lookup("work")
    return program, f"program+{work.start:#x}"


def timed(tmp_path, program, name, *words, option="--self"):
    results = tmp_path / "results.json"
    found = anyprobe(
        "time", "a.out:*", option, "--json", "-o", str(results), "--exit-status", "--", str(program), *words
    )
    assert found.returncode == 0, found.stderr
    document = json.loads(results.read_text())
    return document, next((each for each in document["functions"] if each["function"] == name), None)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("way", TASKS)
@pytest.mark.sliced(2)
def test_calls_are_timed_until_a_task_has_no_thread_pointer_of_its_own(tmp_path, way, link):
    program, name = stripped(tmp_path, "imports_clone.c", link)
    document, work = timed(tmp_path, program, name, way)
    assert work["count"] == TASKS[way] * CALLS
    assert work["nmissed"] == (CALLS if way == "fork" else 0)
    is_over = way in {"memory", "pointer", "fork-no-pointer"}
    assert (ENDED in document["warnings"]) == is_over
    assert any(each["reason"] == Reason.NO_THREAD_SLOT.value for each in document["refused"]) == is_over


def test_a_task_made_by_assembler_code_by_a_number_that_is_not_constant(tmp_path):
    program, name = stripped(tmp_path, "raw_by_number.c", "static")
    document, work = timed(tmp_path, program, name, "435", "10f00", "none", "none")
    assert work["count"] == CALLS
    assert Reason.NO_THREAD_SLOT.value in {each["reason"] for each in document["refused"]}


def test_handlers_read_no_memory_of_the_program(tmp_path):
    """By system calls they would read it, and what filters these cannot be told there."""
    program, name = stripped(tmp_path, "imports_clone.c", "static")
    symbols = subprocess.run(["nm", build("imports_clone.c", "-pthread", "-static")], capture_output=True, text=True)
    words = next(line.split()[0] for line in symbols.stdout.splitlines() if line.endswith(" words"))
    found = anyprobe("hist", f"a.out:{name}", "--of", f"ptr[u64](0x{words})[0]", "--", str(program), "never")
    assert (found.returncode, found.stdout) == (0, "done\n"), found.stderr
    assert "runs that a missing value has ended: 3,000" in found.stderr


def test_threads_that_come_and_go(tmp_path):
    """Each gets the stack of the one before, and with it what that had for its calls."""
    source = """
#include <pthread.h>
#include <stdio.h>
__attribute__((noipa)) int work(int x) { volatile int y = x; return y + 1; }
static void *thread(void *unused) { work(1); return unused; }
int main(void) {
    pthread_t made;
    for (int i = 0; i < 200; i++) { pthread_create(&made, NULL, thread, NULL); pthread_join(made, NULL); }
    return 0;
}
"""
    program, name = stripped(tmp_path, "comes_and_goes.c", "static", text=source)
    document, work = timed(tmp_path, program, name)
    assert (work["count"], work["nmissed"]) == (200, 0)
    assert ENDED not in document.get("warnings", [])
