"""Files that are kept in the user's cache."""

import os
import stat

import pytest

from anyprobe.core import kept


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "anyprobe"


def test_what_is_written_is_read_by_this_user_alone(folder):
    assert kept.read("thing") is None
    assert kept.write("thing", b"one")
    assert kept.write("thing", b"another")
    assert kept.read("thing") == b"another"
    assert os.listdir(folder) == ["thing"]
    assert stat.S_IMODE((folder / "thing").stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_link_is_not_followed(folder):
    kept.write("other", b"content")
    os.symlink(folder / "other", folder / "thing")
    assert kept.read("thing") is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_another_user_wrote_is_not_read(folder):
    kept.write("thing", b"content")
    os.chown(folder / "thing", 12345, 12345)
    assert kept.read("thing") is None


def test_where_nothing_can_be_written_nothing_is_kept(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert not kept.write("thing", b"content")
    assert kept.read("thing") is None
