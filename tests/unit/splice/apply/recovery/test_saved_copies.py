"""Copies of a jump in a program's memory: as it was, moved into a trampoline, or as the address it led to."""

import os
from types import SimpleNamespace

import pytest

from anyprobe.core.memory import MemoryFault
from anyprobe.splice.apply.recovery import saved_copies
from anyprobe.splice.apply.recovery.saved_copies import Saved, held_copies

LOW, SITE, PATCH = 0x7F00_0000_0000, 0x5500_0000_0000, 0x54FF_0000_0000
JUMP = b"\xe9" + (PATCH - SITE - 5 & 0xFFFFFFFF).to_bytes(4, "little")
NEAR_PATCH = LOW + 0x12345


def held(monkeypatch, content, saved, *, size=None):
    mapping = SimpleNamespace(start=LOW, end=LOW + len(content))

    def read(address, count):
        if size is None:
            return content[address - LOW : address - LOW + count]
        raise MemoryFault(address, count)

    monkeypatch.setattr(saved_copies, "may_hold_stacks", lambda _: True)
    monkeypatch.setattr(saved_copies, "present", lambda _, m: [(m.start, size or len(content))])
    return held_copies(SimpleNamespace(pid=1, mem=SimpleNamespace(read=read)), [saved], [mapping])


def noise(size):
    return bytes(byte | 0x40 for byte in os.urandom(size))


@pytest.mark.parametrize("at", [0, 1, 77, 4090])
def test_the_bytes_themselves(monkeypatch, at):
    content = bytearray(noise(4096))
    content[at : at + 5] = JUMP
    assert held(monkeypatch, bytes(content), Saved(SITE, JUMP, (PATCH,))) == [SITE]


@pytest.mark.parametrize("at", [100, 101, 102, 103])
def test_a_jump_that_was_moved(monkeypatch, at):
    content = bytearray(noise(4096))
    content[at : at + 4] = (NEAR_PATCH - (LOW + at + 4)).to_bytes(4, "little")
    assert held(monkeypatch, bytes(content), Saved(SITE, JUMP, (PATCH, NEAR_PATCH))) == [SITE]


def test_the_address_of_the_patch(monkeypatch):
    content = noise(333) + PATCH.to_bytes(8, "little") + noise(100)
    assert held(monkeypatch, content, Saved(SITE, JUMP, (PATCH,))) == [SITE]


def test_none(monkeypatch):
    assert held(monkeypatch, bytes(4096), Saved(SITE, JUMP, (PATCH,))) == []


@pytest.mark.parametrize("size", [4096, 1 << 31])
def test_memory_that_cannot_be_searched_may_hold_one(monkeypatch, size):
    assert held(monkeypatch, bytes(4096), Saved(SITE, JUMP, (PATCH,)), size=size) == [SITE]
