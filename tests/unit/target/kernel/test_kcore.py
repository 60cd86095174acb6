"""kcore, from files as the kernel writes it."""

import os
import struct

import pytest

from anyprobe.core.errors import PermissionDenied, UnsupportedTarget
from anyprobe.core.memory import MemoryFault
from anyprobe.target.kernel.kcore import LiveMemory

TEXT, MODULES = 0xFFFF_FFFF_8100_0000, 0xFFFF_FFFF_C000_0000


@pytest.fixture
def memory(tmp_path):
    areas = {TEXT: b"kernel's text" * 1000, MODULES: b"module"}
    body, segments = b"", [struct.pack("<IIQQQQQQ", 4, 0, 64, 0, 0, 0, 0, 0)]
    at = 64 + 56 * (len(areas) + 1)
    for address, content in areas.items():
        size = len(content)
        segments.append(struct.pack("<IIQQQQQQ", 1, 7, at + len(body), address, 0, size, size, 4096))
        body += content
    header = b"\x7fELF\2\1\1".ljust(16, b"\0") + struct.pack(
        "<HHIQQQIHHHHHH", 4, 62, 1, 0, 64, 0, 0, 64, 56, len(segments), 0, 0, 0
    )
    path = tmp_path / "kcore"
    path.write_bytes(header + b"".join(segments) + body)
    with LiveMemory(str(path)) as opened:
        yield opened


def test_bytes_are_read_at_the_kernel_s_addresses(memory):
    assert memory.read(TEXT, 6) == b"kernel"
    assert memory.read(TEXT + 9, 4) == b"text"
    assert memory.read(MODULES, 6) == b"module"


@pytest.mark.parametrize(("address", "size"), [(MODULES, 7), (MODULES - 1, 2), (0x1000, 1), (TEXT + 13_000, 1)])
def test_what_no_area_holds_cannot_be_read(memory, address, size):
    with pytest.raises(MemoryFault):
        memory.read(address, size)


def test_bytes_that_the_kernel_does_not_give_are_a_fault(memory, monkeypatch):
    memory.read(TEXT, 1)
    monkeypatch.setattr(os, "pread", lambda *_: b"")
    with pytest.raises(MemoryFault):
        memory.read(TEXT, 8)


def test_a_kernel_without_it_says_so(tmp_path):
    with pytest.raises(UnsupportedTarget, match="CONFIG_PROC_KCORE"):
        LiveMemory(str(tmp_path / "none"))


@pytest.mark.parametrize(("user", "rule"), [(0, "lockdown"), (1000, "CAP_SYS_RAWIO")])
def test_why_it_may_not_be_read(monkeypatch, user, rule):
    def refuse(*_):
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    with pytest.raises(PermissionDenied) as caught:
        LiveMemory()
    assert rule in str(caught.value)
