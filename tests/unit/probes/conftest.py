"""Processes made of nothing: mappings of compiled objects at chosen addresses."""

import os
import shutil
import subprocess
from dataclasses import dataclass

import pytest

from anyprobe.binary.images.image import Image
from anyprobe.binary.images.modules import LocalFiles, loaded_objects


@dataclass(frozen=True)
class Mapping:
    start: int
    end: int
    perms: str
    offset: int
    inode: int
    path: str


class Process:
    """Places objects as the loader would."""

    def __init__(self, folder):
        self.folder, self.mappings = folder, []

    def load(self, source, name, *flags, bias=0x7F0000000000, language="c"):
        compiler = "g++" if language == "c++" else "gcc"
        if shutil.which(compiler) is None:
            pytest.skip(f"{compiler} is not installed")
        path = self.folder / name
        if not path.exists():
            command = [compiler, "-x", language, "-", "-o", str(path), "-Wl,--build-id", *flags]
            subprocess.run(command, input=source, text=True, check=True)
        return self.place(str(path), bias)

    def place(self, path, bias, inode=None):
        for segment in Image.open(path).segments:
            if segment.kind == 1:
                start = bias + (segment.vaddr & ~0xFFF)
                end = bias + (segment.vaddr + segment.memsz + 0xFFF & ~0xFFF)
                perms = f"r{'w' if segment.flags & 2 else '-'}{'x' if segment.flags & 1 else '-'}p"
                number = inode or os.stat(path).st_ino
                self.mappings.append(Mapping(start, end, perms, segment.offset & ~0xFFF, number, path))
        return path

    def objects(self, files=None, executable=""):
        return loaded_objects(self.mappings, files=files or LocalFiles(), executable=executable)


@pytest.fixture
def process(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Process(tmp_path)
