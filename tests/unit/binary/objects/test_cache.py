import os

import numpy as np
import pytest

from anyprobe.binary.objects import cache
from anyprobe.core import kept

BUILD = "0123456789abcdef0123456789abcdef01234567"


def entry():
    (name,) = os.listdir(kept.directory())
    return os.path.join(kept.directory(), name)


def keep(**more):
    cache.store(BUILD, "thing", {"n": 3}, {"a": np.arange(9).reshape(3, 3), "b": np.array([True])}, **more)


def test_what_was_stored_is_loaded():
    keep()
    values, arrays = cache.load(BUILD, "thing")
    assert values == {"n": 3}
    assert arrays["a"].tolist() == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert arrays["b"].dtype == np.bool_


def test_other_objects_kinds_and_versions_are_absent():
    keep(version=2)
    assert cache.load(BUILD, "thing") is None
    assert cache.load(BUILD, "other", version=2) is None
    assert cache.load(BUILD[::-1], "thing", version=2) is None
    assert cache.load(BUILD, "thing", version=2) is not None
    assert cache.load(None, "thing") is None
    cache.store(None, "thing")
    cache.store("../../evil", "thing")
    assert len(os.listdir(kept.directory())) == 1


def test_damaged_entries_are_absent():
    keep()
    path = entry()
    with open(path, "rb") as file:
        content = file.read()
    for damaged in [
        b"",
        b"x",
        content[:-1],
        content + b"x",
        content[:30],
        content.replace(b'"n": 3', b'"n": 4').replace(b"anyprobe", b"someprobe"),
        content[:-3] + b"\xff" + content[-2:],
        content.replace(b'"<i8"', b'"O8 "'),
        content.replace(b"[3, 3]", b"[3, 9]"),
        content.replace(b"[3, 3]", b"[-3, 3]"),
        b"anyprobe-cache\n" + b"[" * 100_000 + b"\n",
        b"anyprobe-cache\n[]\n",
        b"anyprobe-cache\n{}\n",
    ]:
        with open(path, "wb") as file:
            file.write(damaged)
        assert cache.load(BUILD, "thing") is None, damaged[:80]
    keep()
    assert cache.load(BUILD, "thing") is not None


def test_a_link_in_its_place_is_not_followed(tmp_path):
    keep()
    os.rename(entry(), tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", os.path.join(kept.directory(), f"{BUILD}-thing.v{cache.FORMAT}"))
    assert cache.load(BUILD, "thing") is None


def test_an_unwritable_place_is_silent(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    keep()
    assert cache.load(BUILD, "thing") is None


def test_nothing_is_left_aside_when_writing_fails(monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "rename", fail)
    keep()
    assert os.listdir(kept.directory()) == []


def test_its_size_is_bounded(monkeypatch):
    monkeypatch.setattr(cache, "SIZE_LIMIT", 40_000)
    for number in range(20):
        cache.store(f"{number:040x}", "thing", arrays={"a": np.zeros(1000, np.int32)})
        os.utime(os.path.join(kept.directory(), f"{number:040x}-thing.v{cache.FORMAT}"), (number, number))
    sizes = [os.path.getsize(os.path.join(kept.directory(), name)) for name in os.listdir(kept.directory())]
    assert sum(sizes) <= 40_000
    assert cache.load(f"{19:040x}", "thing") is not None
    cache.store(BUILD, "huge", arrays={"a": np.zeros(100_000)})
    assert cache.load(BUILD, "huge") is None, "one entry may not push out all others"


def test_all_entries_are_looked_at_seldom(monkeypatch):
    looks = []
    monkeypatch.setattr(cache, "SIZE_LIMIT", 100_000)
    monkeypatch.setattr(cache, "_shrink", lambda folder, shrink=cache._shrink: looks.append(folder) or shrink(folder))
    for number in range(100):
        cache.store(f"{number:040x}", "thing", arrays={"a": np.zeros(1000, np.int8)})
    assert 2 <= len(looks) <= 12


@pytest.mark.parametrize("home", ["/nonexistent", ""])
def test_without_a_home_it_is_silent(monkeypatch, home):
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", home or "/proc/1/nowhere")
    keep()
    assert cache.load(BUILD, "thing") is None or os.path.isdir(kept.directory())
