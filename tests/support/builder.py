"""Objects made by the system's compiler from text, each once."""

import hashlib
import shutil
import subprocess

import pytest


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
