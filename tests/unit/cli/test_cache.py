import json
import os

import pytest

from anyprobe.binary.objects import cache
from anyprobe.cli import main


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "anyprobe"


def fill(folder):
    for number in range(3):
        cache.store(f"{number:040x}", "functions", {"a": "b" * 1000})
    cache.store("f" * 40, "plans", {})
    (folder / "driver").mkdir()
    (folder / "driver" / "anyprobe.ko").write_text("not of it")


def shown(capsys, *words):
    status = main(["cache", *words])
    return status, capsys.readouterr().out


def test_what_is_kept_is_shown_by_kind(folder, capsys):
    fill(folder)
    status, text = shown(capsys)
    assert status == 0
    assert text.startswith(f"{folder}: 4 files kept, 0.0 MiB of 256.0 MiB at most\n")
    assert [line.split()[2:] for line in text.splitlines()[3:]] == [["3", "functions"], ["1", "plans"]]
    found = json.loads(shown(capsys, "--json")[1])
    assert found["bytes"] == sum(each.stat().st_size for each in folder.iterdir() if each.is_file())
    assert [(each["kind"], each["entries"]) for each in found["kinds"]] == [("functions", 3), ("plans", 1)]


def test_cleared_it_is_empty_and_what_is_not_of_it_stays(folder, capsys):
    fill(folder)
    assert shown(capsys, "--clear") == (0, f"{folder}: 4 files removed, 0.0 MiB of 256.0 MiB at most\n")
    assert cache.load("f" * 40, "plans") is None
    assert [each.name for each in folder.iterdir()] == ["driver"]
    assert (folder / "driver" / "anyprobe.ko").exists()


def test_without_a_cache_there_is_nothing_to_show_or_remove(folder, capsys):
    assert shown(capsys) == (0, f"{folder}: 0 files kept, 0.0 MiB of 256.0 MiB at most\n")
    assert json.loads(shown(capsys, "--clear", "--json")[1])["oldest"] is None


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("0009b16353fd9a27d937b73058cc5c4d883da54c-kernel-handler.v2", "kernel-handler"),
        ("kernel-types-64", "kernel-types"),
        ("costs-ee987322.json", "costs"),
        ("libraries.v2", "libraries"),
        (".new-123-abc", "other"),
    ],
)
def test_the_kind_of_a_file_is_in_its_name(folder, capsys, name, kind):
    folder.mkdir()
    (folder / name).write_text("x")
    (found,) = json.loads(shown(capsys, "--json")[1])["kinds"]
    assert found == {"kind": kind, "entries": 1, "bytes": 1}


def test_what_is_used_stays_where_there_is_too_much(folder, monkeypatch):
    for number in range(4):
        cache.store(f"{number:040x}", "functions", {"text": "x" * 1000})
        path = folder / f"{number:040x}-functions.v{cache.FORMAT}"
        os.utime(path, (1000 + number, 1000 + number))
    assert cache.load(f"{0:040x}", "functions")  # the oldest one
    monkeypatch.setattr(cache, "SIZE_LIMIT", 4 * path.stat().st_size)
    monkeypatch.setattr(cache, "_sizes", {})
    cache.store("f" * 40, "functions", {"text": "x" * 1000})
    assert cache.load(f"{0:040x}", "functions")
    assert cache.load(f"{1:040x}", "functions") is None
