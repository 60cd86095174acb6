"""What is kept of the running kernel, in a folder of the test's own."""

from pathlib import Path

import pytest

from anyprobe.core import kept
from anyprobe.target.kernel import kept_content

KIND, STATE = "things", b"one boot"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def stored():
    kept_content.store(KIND, STATE, b"often", b"seldom")
    return Path(kept.directory(), f"kernel-{KIND}")


def test_both_parts_are_had_in_the_same_state_alone():
    assert kept_content.load(KIND, STATE) is None
    stored()
    assert (kept_content.load(KIND, STATE), kept_content.load_second(KIND, STATE)) == (b"often", b"seldom")
    assert (kept_content.load(KIND, b"another"), kept_content.load_second(KIND, b"another")) == (None, None)


def test_no_byte_may_be_another():
    path = stored()
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        parts = kept_content.load(KIND, STATE), kept_content.load_second(KIND, STATE)
        assert None in parts
        assert parts[0] in {None, b"often"}
        assert parts[1] in {None, b"seldom"}


def test_no_byte_may_be_missing():
    path = stored()
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        assert kept_content.load_second(KIND, STATE) is None
