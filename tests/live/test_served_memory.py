"""Handlers that read what the probed thread itself would have to serve: the value is missing, the program goes on."""

import subprocess

import pytest

import anyprobe
from anyprobe import Count, cstr, ptr, u32
from support.driver import build, has_ended, wait_until, waits_for_input

pytestmark = [pytest.mark.live, pytest.mark.root]
ROUNDS = 200
NOT_HERE = 77


@pytest.mark.parametrize("when", ["before", "late"])
@pytest.mark.parametrize("kind", ["missing", "minor"])
def test_what_is_not_resident_is_missing(kind, when):
    _check([build("served_memory.c"), kind, when], known=when == "before")


@pytest.mark.parametrize("when", ["before", "late", "all"])
def test_files_of_a_file_system_of_its_own(when, tmp_path):
    _check([build("served_files.c", "-pthread"), when, str(tmp_path)], known=when != "all")


def _check(argv, *, known):
    """Probe a program that reads what it would have to serve; ``known``: at each hit it is known where that is."""
    pipe, texts = subprocess.PIPE, Count("texts", by=("kind", "text"))
    with subprocess.Popen(argv, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            wait_until(lambda: has_ended(process) or waits_for_input(process.pid), "it waits")
            if has_ended(process):
                pytest.skip("there is no such memory here")
            with anyprobe.attach(process.pid) as session:

                @session.entry("a.out:look")
                def on_look(ctx, text: ptr, kind: u32):
                    texts[kind, cstr(text, 64)].add()

                output = process.communicate("\n", timeout=60)[0]
                missed = session.misses()
        finally:
            process.kill()
    if process.returncode == NOT_HERE:
        pytest.skip("there is no such memory here")
    assert (output, process.returncode) == ("done\n", 0)
    found = {key: cell.count for key, cell in texts.result().entries.items()}
    assert set(found) <= {(3, "resident")}
    assert sum(found.values()) + missed["fault"] == 3 * ROUNDS
    if known:  # else nothing is read until it is known where the memory is
        assert found == {(3, "resident"): ROUNDS}
