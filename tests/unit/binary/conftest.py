"""Objects made by the system's compiler, once per run."""

import pytest

from support.builder import Builder
from support.driver import cache_directory


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    return Builder(tmp_path_factory.mktemp("objects"))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Go's compiler keeps its runtime there, too, whose compilation takes ten seconds
    monkeypatch.setenv("GOCACHE", str(cache_directory() / "go"))


def without_sections(path):
    """Return the bytes of an object whose section headers are gone, as sstrip leaves it."""
    content = bytearray(path.read_bytes())
    content[40:48] = bytes(8)  # e_shoff
    content[60:64] = bytes(4)  # e_shnum, e_shstrndx
    return bytes(content)


@pytest.fixture(scope="session")
def sectionless():
    return without_sections
