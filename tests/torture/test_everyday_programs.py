"""Programs of every Debian system, all functions of theirs and of their libraries counted: same output, same status.

Each runs three times: started with its probes in place, attached to while it waits for its input, and plainly.
"""

import subprocess

import pytest

import anyprobe
from support.everyday_programs import COMMANDS, TEXT, everyday
from support.filters import PATIENCE, print_shares

READERS = [name for name in COMMANDS if name not in {"date", "env", "expr", "factor", "find", "join", "printf", "seq"}]
READERS = [name for name in READERS if name not in {"shuf", "split", "stat", "tar", "tsort"}]


@pytest.mark.parametrize("name", COMMANDS)
def test_started(name, tmp_path):
    program = everyday(name)
    given = tmp_path / "input"
    given.write_bytes(TEXT)
    with given.open("rb") as source:
        expected = subprocess.run(program.argv, stdin=source, capture_output=True, timeout=PATIENCE, check=False)
    with (
        given.open("rb") as source,
        (tmp_path / "output").open("wb") as output,
        anyprobe.run(list(program.argv), stdin=source, stdout=output) as session,
    ):
        session.count("a.out:*", "libc:*", "libc:*%return")
        session.resume()
        status = session.wait(PATIENCE)
        snapshot = session.snapshot()
    assert (tmp_path / "output").read_bytes() == expected.stdout
    assert status == expected.returncode
    assert print_shares(f"{name}, started", snapshot) > 0.9
    assert snapshot.hits > 10
    assert snapshot.nmissed == 0


@pytest.mark.parametrize("name", READERS)
def test_attached(name):
    program = everyday(name)
    output, snapshot = program.probed(lambda session: session.count("a.out:*", "libc:*", "libc:*%return"))
    assert print_shares(f"{name}, attached", snapshot) > 0.9
    assert output == program.plain()
    assert snapshot.hits > 10
    assert snapshot.nmissed == 0
