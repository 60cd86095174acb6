"""Programs of every Debian system, all functions of theirs and of libc counted or timed: same output, same status.

Each runs three times: started with its probes in place, attached to while it waits for its input, and plainly.
"""

import subprocess

import pytest

import anyprobe
from support.everyday_programs import COMMANDS, TEXT, everyday
from support.filters import PATIENCE, check_timings, print_shares, time_everything

READERS = [name for name in COMMANDS if name not in {"date", "env", "expr", "factor", "find", "join", "printf", "seq"}]
READERS = [name for name in READERS if name not in {"shuf", "split", "stat", "tar", "tsort"}]


EVERYTHING = ("a.out:*", "libc:*")
COUNTED = (*EVERYTHING, "libc:*%return")
SESSIONS = {"counted": {}, "timed": {}, "self times": {"self_time": True}}


def place(session, kind):
    """Have everything counted, or timed."""
    if kind == "counted":
        session.count(*COUNTED)
    else:
        time_everything(session, *EVERYTHING)


def check(name, kind, snapshot):
    assert print_shares(f"{name}, {kind}", snapshot) > 0.9
    assert snapshot.hits > 10
    assert snapshot.nmissed == 0
    if kind != "counted":
        check_timings(f"{name}, {kind}", snapshot)


@pytest.mark.parametrize("kind", SESSIONS)
@pytest.mark.parametrize("name", COMMANDS)
def test_started(name, kind, tmp_path):
    program = everyday(name)
    given = tmp_path / "input"
    given.write_bytes(TEXT)
    with given.open("rb") as source:
        expected = subprocess.run(program.argv, stdin=source, capture_output=True, timeout=PATIENCE, check=False)
    with (
        given.open("rb") as source,
        (tmp_path / "output").open("wb") as output,
        anyprobe.run(list(program.argv), stdin=source, stdout=output, **SESSIONS[kind]) as session,
    ):
        place(session, kind)
        session.resume()
        status = session.wait(PATIENCE)
        snapshot = session.snapshot()
    assert (tmp_path / "output").read_bytes() == expected.stdout
    assert status == expected.returncode
    check(f"{name}, started", kind, snapshot)


@pytest.mark.parametrize("kind", SESSIONS)
@pytest.mark.parametrize("name", READERS)
def test_attached(name, kind):
    program = everyday(name)
    output, snapshot = program.probed(lambda session: place(session, kind), **SESSIONS[kind])
    assert output == program.plain()
    check(f"{name}, attached", kind, snapshot)
