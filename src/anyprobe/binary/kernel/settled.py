"""A kernel's text with what the kernel rewrites while it runs put into one form, whatever it is at the moment.

The analysis then holds whichever way a static key stands, whatever is traced, and with retpolines or without. Each form
has as many bytes as what it stands for, and is one instruction, so instructions begin where they do in the live text:

- a static key's place is a ``nop``; where its jump leads is an entry of the function;
- what a function begins with for ftrace is a ``nop``;
- a static call calls, or jumps, where a register says;
- a jump to a return thunk is a ``ret``, and one to an indirect thunk jumps where the register says.
"""

import numpy as np
from numpy.typing import NDArray

from anyprobe.binary.kernel.names import KernelNames
from anyprobe.binary.kernel.tables import KernelTables
from anyprobe.core.arrays import among

_CALL, _JUMP, _SHORT_JUMP = 0xE8, 0xE9, 0xEB
NOP2, NOP5 = b"\x66\x90", b"\x0f\x1f\x44\x00\x00"
_RET5 = b"\x2e\x2e\x2e\x2e\xc3"
_BRANCH_BYTES, _LOOKED_AT = 5, 12
_BEGINNINGS = (b"\xf3\x0f\x1e\xfa", b"\x66\x0f\x1f\x00")
"""What functions may begin with before what ftrace uses: ``endbr64``, and what the kernel makes of it."""
_RETURNS = ("__x86_return_thunk", "retbleed_return_thunk", "srso_return_thunk", "srso_alias_return_thunk",
            "its_return_thunk", "call_depth_return_thunk", "zen_untrain_ret")  # fmt: skip
_INDIRECT = ("__x86_indirect_thunk_", "__x86_indirect_call_thunk_", "__x86_indirect_jump_thunk_",
             "__x86_indirect_its_thunk_")  # fmt: skip
_REGISTERS = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", *(f"r{number}" for number in range(8, 16)))
_TRACERS = ("__fentry__", "ftrace_caller", "ftrace_regs_caller")


class Settled:
    """The text of a kernel or of one of its modules, from ``start`` on, and where it was put into another form."""

    def __init__(
        self, start: int, text: bytes, tables: KernelTables, names: KernelNames, functions: NDArray[np.int64]
    ) -> None:
        """Put ``text`` into form."""
        self._start = start
        self._text = bytearray(text)
        self._view = np.frombuffer(self._text, np.uint8)
        self.keys = self._keys(tables.keys)
        """Rows of where a static key's place begins, where it ends, and where it jumps to."""
        self.calls = self._calls(tables.calls)
        """Where static calls begin."""
        self.traced = self._traced(functions, names)
        """Where what ftrace uses begins."""
        self._thunks(names)
        self.content = bytes(self._text)

    def _inside(self, addresses: NDArray[np.int64]) -> NDArray[np.bool_]:
        return (addresses >= self._start) & (addresses < self._start + len(self._text) - _BRANCH_BYTES)

    def _keys(self, keys: NDArray[np.int64]) -> NDArray[np.int64]:
        found: list[tuple[int, int, int]] = []
        text, start = self._text, self._start
        for place, target in keys[self._inside(keys[:, 0])].tolist():
            at = place - start
            if text[at] == _SHORT_JUMP or text[at : at + 2] == NOP2:
                form = NOP2
            elif text[at] == _JUMP or text[at : at + 5] == NOP5:
                form = NOP5
            else:
                continue
            text[at : at + len(form)] = form
            found.append((place, place + len(form), target))
        return np.array(found, np.int64).reshape(-1, 3)

    def _calls(self, calls: NDArray[np.int64]) -> NDArray[np.int64]:
        kept = calls[self._inside(calls[:, 0])]
        at = kept[:, 0] - self._start
        plain = (self._view[at] != 0x0F) | (self._view[at + 1] >> 4 != 8)  # a conditional jump stays one
        for tail, opcode in ((0, _CALL), (1, _JUMP)):
            self._put(at[plain & (kept[:, 1] == tail)], _through("rax", opcode))
        return kept[:, 0]

    def _put(self, places: NDArray[np.int64], code: bytes) -> None:
        """Put the same bytes at some places of the text."""
        self._view[places[:, None] + np.arange(len(code))] = np.frombuffer(code, np.uint8)

    def _words(self, kind: str) -> "NDArray[np.int64]":
        """Return the text as numbers of four bytes that begin at each byte of it."""
        return np.ndarray((len(self._text) - 3,), kind, buffer=self._text, strides=(1,))

    def _traced(self, functions: NDArray[np.int64], names: KernelNames) -> NDArray[np.int64]:
        """Put a ``nop`` where ftrace calls or may call."""
        if len(self._text) < _LOOKED_AT:
            return np.empty(0, np.int64)
        tracers = [address for name in _TRACERS if (address := names.address(name)) is not None]
        at = functions[self._inside(functions)] - self._start
        at = at[at < len(self._text) - _LOOKED_AT]
        heads = self._words("<u4")
        at = at + 4 * among(heads[at], np.array([int.from_bytes(each, "little") for each in _BEGINNINGS], np.uint32))
        is_nop = (heads[at] == int.from_bytes(NOP5[:4], "little")) & (self._view[at + 4] == NOP5[4])
        targets = at + _BRANCH_BYTES + self._words("<i4")[at + 1]
        inside = (targets >= 0) & (targets < len(self._text))
        by_tracer = among(targets + self._start, np.array(tracers, np.int64))
        calls = (self._view[at] == _CALL) & (by_tracer | ~inside)
        self._put(at[calls], NOP5)
        found: NDArray[np.int64] = at[is_nop | calls] + self._start
        return found

    def _thunks(self, names: KernelNames) -> None:
        """Put returns and indirect branches where there are branches to thunks that do the same."""
        returns = [address for name in _RETURNS if (address := names.address(name)) is not None]
        through = {
            address: name.removeprefix(prefix)
            for prefix in _INDIRECT
            for name, address in names.starting(prefix).items()
            if name.removeprefix(prefix) in _REGISTERS
        }
        self.has_thunks = bool(through)
        """Whether the kernel is compiled for retpolines."""
        aims = np.array([*returns, *through], np.int64) - self._start
        if len(self._text) < _BRANCH_BYTES or not len(aims):
            return
        at = np.flatnonzero(self._view[:-4] & 0xFE == _CALL)
        targets = at + _BRANCH_BYTES + self._words("<i4")[at + 1]
        near = (targets >= aims.min()) & (targets <= aims.max())
        at, targets = at[near], targets[near] + self._start
        opcodes = self._view[at]
        self._put(at[(opcodes == _JUMP) & among(targets, np.array(returns, np.int64))], _RET5)
        for address, register in through.items():
            for opcode in (_CALL, _JUMP):
                self._put(at[(targets == address) & (opcodes == opcode)], _through(register, opcode))


def _through(register: str, opcode: int) -> bytes:
    """Return a call or jump through a register in five bytes; ``cs`` prefixes do nothing, and go before REX."""
    number = _REGISTERS.index(register)
    rex = b"\x41" if number >= 8 else b""
    code = rex + bytes([0xFF, (0xD0 if opcode == _CALL else 0xE0) | number & 7])
    return b"\x2e" * (_BRANCH_BYTES - len(code)) + code
