"""The decoder against objdump on all programs and libraries there are, hand-written assembly and data in code too."""

import os
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from itertools import islice
from typing import NamedTuple

import pytest

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.core.errors import UnsupportedTarget
from support import objdump_listing
from support.displaced import forms

FOLDERS = ("/usr/bin", "/usr/sbin", "/usr/lib", "/usr/libexec")
SHOWN = 20
"""Of one file's differences without an explanation; data in code may bring thousands."""


class Comparison(NamedTuple):
    """What came of one file."""

    path: str
    instructions: int
    explained: Counter[str]
    unexplained: list[objdump_listing.Disagreement]


def files_with_code() -> list[str]:
    """Return every x86-64 file once, the large ones first; debug files have no code."""
    found = {}
    for path in forms.elf_files(FOLDERS):
        try:
            build_id = ElfFile.open(path, unlinked=True).build_id
        except UnsupportedTarget:  # of another architecture, or damaged on purpose
            continue
        size = sum(len(content) for _, content in forms.executable_sections(path))
        if size:
            found.setdefault(build_id or path, (size, path))
    return [path for _, path in sorted(found.values(), reverse=True)]


def compare(path: str) -> Comparison:
    """Compare all code of a file."""
    total, explained = 0, Counter()

    def differences():
        nonlocal total
        for block in objdump_listing.blocks(path):
            total += len(block)
            for found in objdump_listing.disagreements(block):
                reason = objdump_listing.explanation(found)
                if reason is None:
                    yield found
                else:
                    explained[reason] += 1

    found = differences()
    unexplained = list(islice(found, SHOWN))
    for _ in found:
        pass
    return Comparison(path, total, explained, unexplained)


@pytest.mark.timeout(7200)
def test_lengths_agree_with_objdump():
    """Every disagreement has an explanation; where code holds no tables there is but the one about fwait."""
    paths = files_with_code()
    total, reasons, unexplained = 0, Counter(), []
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for path, instructions, explained, rest in pool.map(compare, paths):
            total += instructions
            reasons += explained
            unexplained += [(path, found) for found in rest]
            if explained or rest:
                print(f"{path}: {instructions} instructions; {dict(explained)}", *rest, sep="\n    ", flush=True)
    print(f"\n{len(paths)} files, {total} instructions; disagreements: {dict(reasons)}")
    assert unexplained == []
    assert total > 1_000_000
