"""What is sent to hosts without anyprobe: to those alone that can run it."""

import asyncio
import sys
from types import SimpleNamespace

import pytest

from anyprobe.cli.network.sending import Parcel, Unfit, fit, uses_compiler


class Connection:
    """A host that is this machine, with a path and a cache of its own."""

    def __init__(self, folder, path):
        (folder / "sh").symlink_to("/bin/sh")
        self.variables = {"PATH": path, "XDG_CACHE_HOME": str(folder / "cache"), "HOME": str(folder)}

    async def run(self, command, **given):
        process = await asyncio.create_subprocess_shell(
            command,
            env=self.variables,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        found = await process.communicate(given.get("input"))
        out, err = found if "encoding" in given else map(bytes.decode, found)
        return SimpleNamespace(stdout=out, stderr=err)


@pytest.fixture
def parcel(tmp_path, monkeypatch):
    (tmp_path / "one.py").write_text("x = 1\n")
    found = Parcel(with_compiler=False)
    found.__dict__["files"] = [("one.py", tmp_path / "one.py")]
    return found


@pytest.mark.parametrize("version", ["3.9 x86_64 glibc", "3.11 aarch64 glibc", "3.11 x86_64 "])
def test_a_host_whose_python_is_another_one_gets_nothing_and_is_told_why(parcel, tmp_path, version):
    for name in ("python3", f"python3.{sys.version_info.minor}"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{version}'\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(Unfit) as told:
        asyncio.run(parcel.send(Connection(tmp_path, str(tmp_path))))
    assert f"needs {fit()}, and there is {version.strip()}" in str(told.value)
    assert not (tmp_path / "cache").exists()


def test_a_host_without_python_is_told_so(parcel, tmp_path):
    with pytest.raises(Unfit, match="no python3"):
        asyncio.run(parcel.send(Connection(tmp_path, str(tmp_path))))


def test_what_is_there_is_not_sent_again(parcel, tmp_path):
    host = Connection(tmp_path, f"{sys.base_prefix}/bin:/usr/bin:/bin")

    async def twice():
        return await parcel.send(host), await parcel.send(host)

    first, second = asyncio.run(twice())
    assert first > 0
    assert second == 0
    (kept,) = (tmp_path / "cache/anyprobe/sent").iterdir()
    assert kept.name == parcel.name
    assert {each.name for each in kept.iterdir()} == {"anyprobe", "start.py", "packages"}


def test_the_compiler_goes_with_what_compiles_handlers():
    assert uses_compiler("hist", {})
    assert uses_compiler("count", {"when": "arg0 > 5"})
    assert uses_compiler("record", {"values": "arg0"})
    assert not uses_compiler("time", {"when": None})
    names = [name for name, _ in Parcel(with_compiler=False).files]
    assert "anyprobe/cli/__init__.py" in names
    assert not any(name.startswith("llvmlite/") or "__pycache__" in name for name in names)
    assert {"numpy", "click", "rich", "zstandard"} <= {name.partition("/")[0] for name in names}
