"""The decoder against objdump on a dozen large files, hand-written assembly and data in code among them."""

from collections import Counter
from pathlib import Path

import pytest

import objdump_listing

FWAIT = "objdump takes fwait for a prefix of what follows"
LIBRARIES = Path("/usr/lib/x86_64-linux-gnu")
NAMES = "c.so.6 m.so.6 crypto.so.3 gmp.so.10 gcrypt.so.20 stdc++.so.6"
PROGRAMS = "python3.11 busybox redis-server gdb sqlite3 gzip xz"
FILES = [LIBRARIES / f"lib{name}" for name in NAMES.split()] + [Path("/usr/bin", name) for name in PROGRAMS.split()]


@pytest.mark.timeout(600)
def test_lengths_agree_with_objdump():
    """Every disagreement has an explanation; where code holds no tables there is but the one about fwait."""
    total, reasons, unexplained = 0, Counter(), []
    for path in filter(Path.exists, FILES):
        for block in objdump_listing.blocks(path):
            total += len(block)
            for found in objdump_listing.disagreements(block):
                reason = objdump_listing.explanation(found)
                reasons[reason] += 1
                if reason is None:
                    unexplained.append((path.name, found))
    print(f"\n{total} instructions; disagreements: {dict(reasons)}")
    assert unexplained == []
    assert total > 1_000_000
