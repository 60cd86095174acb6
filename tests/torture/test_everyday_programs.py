"""Programs of every Debian system, all functions of theirs and of libc counted or timed: same output, same status.

Each runs three times: started with its probes in place, attached to while it waits for its input, and plainly.
"""

import subprocess

import pytest

import anyprobe
from support.everyday_programs import COMMANDS, TEXT, everyday
from support.filters import PATIENCE, TIMED, check_level, place, probed_at

READERS = [name for name in COMMANDS if name not in {"date", "env", "expr", "factor", "find", "join", "printf", "seq"}]
READERS = [name for name in READERS if name not in {"shuf", "split", "stat", "tar", "tsort"}]


EVERYTHING = ("a.out:*", "libc:*")
KINDS = {"exits": (*EVERYTHING, "libc:*%return"), "timed": EVERYTHING, "self times": EVERYTHING}


@pytest.mark.parametrize("kind", KINDS)
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
        anyprobe.run(list(program.argv), stdin=source, stdout=output, **TIMED.get(kind, {})) as session,
    ):
        place(session, kind, *KINDS[kind])
        session.resume()
        status = session.wait(PATIENCE)
        snapshot = session.snapshot()
    assert (tmp_path / "output").read_bytes() == expected.stdout
    assert status == expected.returncode
    check_level(f"{name}, started", kind, snapshot, 0.9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", READERS)
def test_attached(name, kind):
    program = everyday(name)
    output, snapshot = probed_at(program, kind, *KINDS[kind])
    assert output == program.plain()
    check_level(f"{name}, attached", kind, snapshot, 0.9)
