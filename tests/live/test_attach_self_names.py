"""Functions and stacks are shown by name in a program that probes itself, too; also when it is over."""

import zlib

import pytest

import anyprobe
from anyprobe import Count, Map, emit

pytestmark = pytest.mark.live


def test_names_in_keys_and_records():
    calls, stacks, last = Count("calls"), Count("stacks"), Map("last")
    with anyprobe.attach_self() as session:

        @session.entry("libz:crc32*")
        def on_crc(ctx):
            calls[ctx.func].add()
            stacks[ctx.ustack(2)].add()
            last[ctx.func] = 7
            emit("crc", function=ctx.func, stack=ctx.ustack(2))

        for _ in range(5):
            zlib.crc32(b"x" * 100)
        inside = calls.result()
        rows = [row for _, row in session.rows(final=True)]
        assert all(":crc32" in name for (name,) in inside.entries)
        assert all(":crc32" in row["function"] and " < " in row["stack"] for row in rows)
        assert {key[0] for (key,) in [(each,) for each in last.items()]} <= {name for (name,) in inside.entries}
    after = calls.result()
    assert dict(after.entries) == dict(inside.entries)
    assert sum(cell.count for cell in after.entries.values()) >= 5
    assert all(" < " in name for (name,) in stacks.result().entries)
