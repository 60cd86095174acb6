"""Acceptance: threads, forks, execs, libraries, exceptions, signals and thread ends at once, every function counted."""

import os
import subprocess

import pytest

from anyprobe.journal.installed import processes_with_splices
from anyprobe.probes.following.followed import Followed
from anyprobe.probes.providers.function.gates import load_gate
from support.results import hits

pytestmark = pytest.mark.live
LIBRARY = """
__attribute__((noinline)) static long step(long n) { __asm__ volatile("" : "+r"(n)); return n + 1; }
long plug(long n) { return step(n); }
"""


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seconds", [5, pytest.param(60, marks=pytest.mark.torture)])
def test_all_that_is_called_is_counted(compiled, tmp_path, monkeypatch, seconds):
    """What the program says of its own calls, in all its processes, is what was counted; nothing is left anywhere."""
    monkeypatch.setattr(load_gate, "PATIENCE", 60.0)  # threads wait for a busy machine, too
    source, library = tmp_path / "plugin.c", tmp_path / "libplugin.so"
    source.write_text(LIBRARY)
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, source], check=True)
    program = compiled("everything_at_once.cpp", "-O1", "-pthread", "-rdynamic")
    with open(tmp_path / "said", "w") as said:
        with Followed.run([str(program), str(seconds), str(library)], stdout=said) as tree:
            tree.count("a.out:*", "a.out:*%return")
            tree.count("libplugin.so:*", follow=True)
            tree.resume()
            duties = tree.duties()
            while tree.wait(0.05) is None:
                duties.work()
            together = tree.snapshot()
            notes, programs, status = tree.notes(), len(tree.snapshots()), tree.exit_status
            inodes = frozenset(inode for each in tree.sessions for inode in each.splicing.holdings.inodes())
        assert processes_with_splices(inodes) == []
    *lines, last = (tmp_path / "said").read_text().splitlines()
    assert last == "well"
    assert os.waitstatus_to_exitcode(status) == 0
    counted = {name: hits(together, name) for name, _ in map(str.split, lines)}
    assert notes == []
    assert counted == {name: int(calls) for name, calls in map(str.split, lines)}
    assert all(counted.values())
    assert hits(together, "main") == programs > 3
