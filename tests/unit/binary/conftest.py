"""Objects made by the system's compiler, once per run."""

import hashlib
import shutil
import subprocess

import pytest

from support.driver import cache_directory


class Builder:
    """Compiles sources to objects; equal requests share the result."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, source, *flags, language="c", compiler=None):
        compiler = compiler or {"c": "gcc", "c++": "g++", "assembler": "gcc"}[language]
        if shutil.which(compiler) is None:
            pytest.skip(f"{compiler} is not installed")
        key = hashlib.sha256(repr((source, flags, language, compiler)).encode()).hexdigest()[:16]
        path = self.folder / f"object-{key}"
        if not path.exists():
            self.run(compiler, "-x", language, "-", "-x", "none", "-o", path, "-Wl,--build-id", *flags, stdin=source)
        return path

    def copy(self, path, name):
        """Return a copy under another name, in a folder of its own."""
        place = self.folder / hashlib.sha256(f"{path}{name}".encode()).hexdigest()[:12] / name
        place.parent.mkdir(exist_ok=True)
        shutil.copy(path, place)
        return place

    def run(self, *command, stdin=None):
        """Run a tool of binutils or the compiler."""
        if shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]} is not installed")
        return subprocess.run(
            [str(each) for each in command],
            input=stdin,
            check=True,
            capture_output=True,
            text=True,
        ).stdout


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
