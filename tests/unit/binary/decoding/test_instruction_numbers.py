"""Modules are analysed in several threads, and all number what instructions do in the same tables."""

import threading

import pytest
from iced_x86 import Decoder

from anyprobe.binary.decoding import instruction_kinds, instruction_masks

PATIENCE = 180
FIRST, SECOND = bytes.fromhex("48 01 d8"), bytes.fromhex("48 89 f7")
"""``add rax, rbx`` and ``mov rdi, rsi``."""


def decoded(raw):
    return Decoder(64, raw).decode()


@pytest.fixture
def nothing_known(monkeypatch):
    monkeypatch.setattr(instruction_masks, "_shapes", {})
    monkeypatch.setattr(instruction_masks, "MASKS", [])
    monkeypatch.setattr(instruction_kinds, "_numbers", {})


@pytest.mark.parametrize("numbered", ["masks", "kinds"])
def test_each_has_a_number_of_its_own(nothing_known, monkeypatch, numbered):
    """One thread is held in the middle of finding out about its instruction, while another numbers another one."""
    find_out = instruction_masks._masks_of
    expected = {raw: find_out(decoded(raw), raw) for raw in (FIRST, SECOND)}
    begun, go_on = threading.Event(), threading.Event()

    def held(one, raw):
        if raw == FIRST:
            begun.set()
            assert go_on.wait(PATIENCE)
        return find_out(one, raw)

    monkeypatch.setattr(instruction_masks, "_masks_of", held)

    def masks_of(raw):
        if numbered == "masks":
            return instruction_masks.MASKS[instruction_masks.shape_number(decoded(raw), raw)]
        kind = instruction_kinds._kind(decoded(raw), raw, len(raw))
        return instruction_masks.MASKS[instruction_kinds.mask_numbers_of([kind])[0]]

    found = {}
    first = threading.Thread(target=lambda: found.update({FIRST: masks_of(FIRST)}))
    first.start()
    assert begun.wait(PATIENCE)
    try:
        found[SECOND] = masks_of(SECOND)
    finally:
        go_on.set()
        first.join(PATIENCE)
    assert found == expected
    assert {raw: masks_of(raw) for raw in expected} == expected
