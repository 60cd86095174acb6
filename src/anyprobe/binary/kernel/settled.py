"""A kernel's text with what the kernel rewrites while it runs put into one form, whatever it is at the moment.

The analysis then holds whichever way a static key stands, whatever is traced, and with retpolines or without. Each form
has as many bytes as what it stands for, and is one instruction, so instructions begin where they do in the live text:

- a static key's place is a ``nop``; where its jump leads is an entry of the function;
- what a function begins with for ftrace is a ``nop``;
- a static call calls, or jumps, where a register says;
- a jump to a return thunk is a ``ret``, and one to an indirect thunk jumps where the register says.
"""

import struct
from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from anyprobe.binary.kernel.names import KernelNames
from anyprobe.binary.kernel.tables import KernelTables
from anyprobe.core.arrays import among

_CALL, _JUMP, _SHORT_JUMP = 0xE8, 0xE9, 0xEB
NOP2, NOP5 = b"\x66\x90", b"\x0f\x1f\x44\x00\x00"
_RET5 = b"\x2e\x2e\x2e\x2e\xc3"
_BRANCH_BYTES = 5
_ENDBR, _SEALED = b"\xf3\x0f\x1e\xfa", b"\x66\x0f\x1f\x00"
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
        self.keys = self._keys(tables.keys)
        """Rows of where a static key's place begins, where it ends, and where it jumps to."""
        self.calls = self._calls(tables.calls)
        """Where static calls begin."""
        self.traced = self._traced(functions, names)
        """Where what ftrace uses begins."""
        self._thunks(names)
        self.content = bytes(self._text)

    def _put(self, address: int, code: bytes) -> None:
        at = address - self._start
        self._text[at : at + len(code)] = code

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
        for place, tail in kept.tolist():
            if self._text[place - self._start] != 0x0F or self._text[place - self._start + 1] >> 4 != 8:
                self._put(place, _through("rax", _JUMP if tail else _CALL))
        return kept[:, 0]

    def _traced(self, functions: NDArray[np.int64], names: KernelNames) -> NDArray[np.int64]:
        """Put a ``nop`` where ftrace calls or may call."""
        tracers = {names.address(name) for name in _TRACERS}
        text, start = self._text, self._start
        low, high = start, start + len(text)
        found: list[int] = []
        for function in functions[self._inside(functions)].tolist():
            at = function - start
            if text[at : at + 4] in (_ENDBR, _SEALED):
                at += 4
            if text[at : at + 5] == NOP5:
                found.append(start + at)
            elif text[at] == _CALL:
                target = start + at + 5 + struct.unpack_from("<i", text, at + 1)[0]
                if target in tracers or not low <= target < high:
                    text[at : at + 5] = NOP5
                    found.append(start + at)
        return np.array(found, np.int64)

    def _thunks(self, names: KernelNames) -> None:
        """Put returns and indirect branches where there are branches to thunks that do the same."""
        returns = {address for name in _RETURNS if (address := names.address(name)) is not None}
        through: dict[int, str] = {}
        for prefix in _INDIRECT:
            for name, address in names.starting(prefix).items():
                register = name.removeprefix(prefix)
                if register in _REGISTERS:
                    through[address] = register
        self.has_thunks = bool(through)
        """Whether the kernel is compiled for retpolines."""
        own = [(target - self._start) for target in (*returns, *through)]
        view = np.frombuffer(bytes(self._text), np.uint8)
        if len(view) < _BRANCH_BYTES:
            return
        at = np.flatnonzero(view[:-4] & 0xFE == _CALL)
        words = np.ndarray((len(view) - 3,), "<i4", buffer=bytes(self._text), strides=(1,))
        targets = at + _BRANCH_BYTES + words[at + 1]
        leads = among(targets, np.array(own, np.int64))
        self._replace(at[leads].tolist(), targets[leads].tolist(), returns, through)

    def _replace(
        self, places: Iterable[int], targets: Iterable[int], returns: set[int], through: Mapping[int, str]
    ) -> None:
        for at, aim in zip(places, targets, strict=True):
            target, opcode = aim + self._start, self._text[at]
            if target in through:
                self._text[at : at + _BRANCH_BYTES] = _through(through[target], opcode)
            elif opcode == _JUMP and target in returns:
                self._text[at : at + _BRANCH_BYTES] = _RET5


def _through(register: str, opcode: int) -> bytes:
    """Return a call or jump through a register in five bytes; ``cs`` prefixes do nothing, and go before REX."""
    number = _REGISTERS.index(register)
    rex = b"\x41" if number >= 8 else b""
    code = rex + bytes([0xFF, (0xD0 if opcode == _CALL else 0xE0) | number & 7])
    return b"\x2e" * (_BRANCH_BYTES - len(code)) + code
