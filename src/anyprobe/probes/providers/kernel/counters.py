"""Counters in the kernel, one row for each processor, and the programs that count.

The programs are written here, instruction by instruction: they are there at once, without a compiler. A processor adds
to its own row alone, but atomically: an interrupt or another thread may come between its load and its store.
"""

import struct
from array import array
from operator import add
from typing import Final

from anyprobe.probes.providers.kernel.chosen import LOOK_UP, Chosen
from anyprobe.target.kernel import bpf
from anyprobe.target.system import gateway

_WORD, _LINE = 8, 64
_COOKIE, _PROCESSOR, _PROCESS = 174, 8, 14
"""Helpers: what was said when the probe was attached; which processor this is; which process, and thread, it is in."""
_CALL, _EXIT, _MOV, _COPY, _IF_ABOVE = 0x85, 0x95, 0xB7, 0xBF, 0x25
_MUL, _SHIFT, _SHIFT_DOWN, _ADD, _ATOMIC_ADD, _IF_EQUAL = 0x27, 0x67, 0x77, 0x0F, 0xDB, 0x15
_LOAD_ADDRESS, _MAP, _MAP_VALUE = 0x18, 1, 2
_STORE, _ADD_NUMBER, _IF_OTHER, _FRAME = 0x63, 0x07, 0x55, 10
GO_ON: Final = 1
"""A program's result where other users of a tracepoint are to see the hit too."""


def _instruction(code: int, target: int = 0, source: int = 0, jump: int = 0, number: int = 0) -> bytes:
    return struct.pack("<BBhi", code, target | source << 4, jump, number)


class Counters:
    """A number of counters, all zero at first, until they are closed; a program keeps them as long as it lives.

    Where processes are ``chosen``, programs end at once in all others, or in those that are left out.
    """

    def __init__(self, count: int, chosen: Chosen | None = None) -> None:
        """Make them, room for one at least."""
        self.count, self.chosen = max(count, 1), chosen or None
        self._rows = bpf.possible_processors()
        self._row_bytes = -(-self.count * _WORD // _LINE) * _LINE
        self._descriptor = bpf.create_array(self._rows * self._row_bytes)

    def close(self) -> None:
        """Give them back."""
        if self._descriptor >= 0:
            gateway.close(self._descriptor)
            self._descriptor = -1

    def read(self) -> list[int]:
        """Return what has been counted by all processors, by counter."""
        content = bpf.read_array(self._descriptor, self._rows * self._row_bytes)
        sums = [0] * self.count
        for at in range(0, len(content), self._row_bytes):
            row = array("Q", content[at : at + self.count * _WORD])
            if any(row):
                sums = list(map(add, sums, row))
        return sums

    def program(self, slot: int, *, result: int = 0) -> bytes:
        """Return a program that counts in one counter."""
        return self._program(b"", self._row(slot), result)

    def before(self, slot: int, *, result: int = 0) -> bytes:
        """Return instructions that count, before a program that is passed its context in the same register."""
        counting = self._wanted(result) + self._counting(self._row(slot))
        return _instruction(_COPY, 6, 1) + counting + _instruction(_COPY, 1, 6)

    def program_for_many(self) -> bytes:
        """Return a program that counts in the counter of which the probe's cookie has the number."""
        head = _instruction(_CALL, number=_COOKIE) + _instruction(_COPY, 6, 0)
        adding = _instruction(_SHIFT, 6, number=3) + _instruction(_ADD, 1, 6)
        return self._program(head, self._row(0) + adding, 0, limit=self.count - 1)

    def _wanted(self, result: int) -> bytes:
        """Return instructions that end the program in a process that is not one of those to be counted."""
        if self.chosen is None:
            return b""
        head = _instruction(_CALL, number=_PROCESS) + _instruction(_SHIFT_DOWN, 0, number=32)
        end = _instruction(_MOV, 0, number=result) + _instruction(_EXIT)
        if self.chosen.without:
            tests = (_instruction(_IF_OTHER, 0, jump=2, number=pid) + end for pid in self.chosen.without)
            return head + b"".join(tests)
        if self.chosen.table is None:
            pids = self.chosen.pids
            left = range(len(pids) - 1, -1, -1)
            tests = (
                _instruction(_IF_EQUAL, 0, jump=more + 2, number=pid) for more, pid in zip(left, pids, strict=True)
            )
            return head + b"".join(tests) + end
        head += _instruction(_STORE, _FRAME, 0, jump=-8)
        key = _instruction(_COPY, 2, _FRAME) + _instruction(_ADD_NUMBER, 2, number=-8)
        table = _instruction(_LOAD_ADDRESS, 1, _MAP, number=self.chosen.table) + _instruction(0)
        return head + table + key + _instruction(_CALL, number=LOOK_UP) + _instruction(_IF_OTHER, 0, jump=2) + end

    def _row(self, slot: int) -> bytes:
        """Return instructions that make the address of a counter in r1 of the processor's number in r0."""
        address = _instruction(_LOAD_ADDRESS, 1, _MAP_VALUE, number=self._descriptor)
        address += _instruction(0, number=slot * _WORD)
        return _instruction(_MUL, 0, number=self._row_bytes) + address + _instruction(_ADD, 1, 0)

    def _counting(self, address: bytes) -> bytes:
        """Return instructions that add one at an address, which others make of the processor's number."""
        body = address + _instruction(_MOV, 2, number=1) + _instruction(_ATOMIC_ADD, 1, 2)
        # no processor has a greater number, but the verifier does not know that
        above = _instruction(_IF_ABOVE, 0, jump=len(body) // 8, number=self._rows - 1)
        return _instruction(_CALL, number=_PROCESSOR) + above + body

    def _program(self, head: bytes, address: bytes, result: int, limit: int | None = None) -> bytes:
        head += self._wanted(result)
        counting = self._counting(address)
        if limit is not None:  # no probe has another cookie, which the verifier does not know either
            head += _instruction(_IF_ABOVE, 6, jump=len(counting) // 8, number=limit)
        return head + counting + _instruction(_MOV, 0, number=result) + _instruction(_EXIT)
