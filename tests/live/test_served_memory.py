"""Handlers that read what the probed thread itself would have to serve: the value is missing, the program goes on."""

import subprocess

import pytest

import anyprobe
from anyprobe import Count, cstr, ptr, u32
from support.driver import build, wait_until, waits_for_input

pytestmark = [pytest.mark.live, pytest.mark.root]
ROUNDS = 200
NOT_HERE = 77


@pytest.mark.parametrize("when", ["before", "late"])
@pytest.mark.parametrize("kind", ["missing", "minor"])
def test_what_is_not_resident_is_missing(kind, when):
    argv, pipe = [build("served_memory.c"), kind, when], subprocess.PIPE
    texts = Count("texts", by=("kind", "text"))
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            wait_until(lambda: process.poll() is not None or waits_for_input(process.pid), "it waits")
            if process.poll() == NOT_HERE:
                pytest.skip("the kernel has no such userfaultfd")
            with anyprobe.attach(process.pid) as session:

                @session.entry("a.out:look")
                def on_look(ctx, text: ptr, kind: u32):
                    texts[kind, cstr(text, 64)].add()

                output = process.communicate("\n", timeout=180)[0]
                missed = session.misses()
        finally:
            process.kill()
    if process.returncode == NOT_HERE:
        pytest.skip("the kernel has no such userfaultfd")
    assert (output, process.returncode) == ("done\n", 0)
    found = {key: cell.count for key, cell in texts.result().entries.items()}
    assert set(found) <= {(3, "resident")}
    assert sum(found.values()) + missed["fault"] == 3 * ROUNDS
    if when == "before":  # else nothing is read until it is known where the memory is
        assert found == {(3, "resident"): ROUNDS}
