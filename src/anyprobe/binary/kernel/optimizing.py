"""What the kernel's optimiser does with a kprobe: a jump instead of the trap, or why not, by the kernel's own rules.

``can_optimize`` and ``can_boost`` in ``arch/x86/kernel/kprobes`` look at the whole function, up to the next symbol, and
at the instructions that would be displaced. They know nothing of control flow but jumps that they see; so what they
refuse is not what the analysis here would.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from anyprobe.binary.kernel.source import KernelSource
from anyprobe.binary.kernel.tables import KernelTables
from anyprobe.core.address import AddressRange
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import Flow, Insn, decode_one, decode_range

JUMP_BYTES = 5
_ADDRESS_SIZE, _CS = 0x67, 0x2E
_LEGACY = frozenset(b"\x66\x67\x2e\x36\x3e\x26\x64\x65\xf0\xf2\xf3")
_ROWS = (
    0x034C, 0x8000, 0x000F, 0x0002, 0xFFFF, 0x0000, 0xCFFF, 0xC0F0,
    0x0000, 0xFFFF, 0xBB3B, 0xF8FF, 0xFF03, 0xBB2E, 0xBB26, 0x772E,
)  # fmt: skip
"""``twobyte_is_boostable``: a row for each high half of the second byte, a bit for each low half."""
_NEVER = frozenset(
    [0x62, *range(0x70, 0x80), 0x9A, *range(0xCC, 0xCF), 0xD6, *range(0xD8, 0xE4), 0xE8, 0xE9, 0xEB, *range(0xF0, 0xF5)]
)
_SHIFTS = frozenset([0xC0, 0xC1, *range(0xD0, 0xD4)])
_FAULTS = "an instruction of the function may fault, and the kernel does not see where that leads"


@dataclass(frozen=True, slots=True)
class Rules:
    """In what the optimisers of kernels differ."""

    boosts_groups: bool = True
    """Whether shifts, ``neg``, ``not``, ``mul``, ``div``, ``inc`` and ``dec`` are displaced (since Linux 6.9)."""
    refuses_thunks: bool = False
    """Whether a jump to an indirect thunk anywhere in the function forbids it (until Linux 6.6)."""


@dataclass(frozen=True, slots=True)
class Optimized:
    """The kernel will put a jump there."""

    insns: tuple[Insn, ...]
    """What it displaces."""


class Optimizer:
    """The kernel's optimiser of kprobes, asked about one kernel; addresses are the analysis's."""

    def __init__(self, source: KernelSource, tables: Sequence[KernelTables], rules: Rules) -> None:
        """Ask about the kernel and the modules that some tables belong to."""
        self._source, self._rules = source, rules
        names = source.names
        self._faulting = np.sort(np.concatenate([each.fixups[:, 0] for each in tables]))
        self._keys = np.sort(np.concatenate([each.keys[:, 0] for each in tables]))
        self._calls = np.sort(np.concatenate([each.calls[:, 0] for each in tables]))
        self._bugs = np.sort(np.concatenate([each.bugs[:, 0] for each in tables]))
        self._entry = names.between("__entry_text_start", "__entry_text_end")
        self._thunks = names.between("__indirect_thunk_start", "__indirect_thunk_end")

    @cached_property
    def _symbols(self) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
        return np.sort(self._source.names.table.symbols["value"].astype(np.int64))

    def function_around(self, address: int) -> AddressRange | None:
        """Return what the kernel takes for the function: from one symbol to the next."""
        row = int(np.searchsorted(self._symbols, address, side="right"))
        if row == 0 or row == len(self._symbols):
            return None
        return AddressRange(int(self._symbols[row - 1]), int(self._symbols[row]))

    def forbids(self, address: int) -> Refusal | None:
        """Return why the kernel takes no kprobe at an address at all, as far as its tables say it."""
        for places, reason, detail in (
            (self._keys, Reason.STATIC_KEY, "a static key rewrites this instruction"),
            (self._calls, Reason.STATIC_CALL, "a static call is rewritten here"),
            (self._bugs, Reason.KERNEL_REFUSES, "the trap of a BUG or WARN"),
        ):
            if self._first(places, address, address + 1) is not None:
                return Refusal(reason, address, f"{detail}, and the kernel refuses kprobes on it")
        return None

    def look_at(self, address: int, text: bytes, start: int, traced: Sequence[int] = ()) -> Optimized | Refusal:
        """Say what becomes of a kprobe; ``text`` is live, from ``start`` on, and ftrace's calls at ``traced``."""
        area = self.function_around(address)
        if area is None:
            return Refusal(Reason.KERNEL_REFUSES, address, "no symbol of the kernel tells of this code")
        if self._entry is not None and address in self._entry:
            return Refusal(Reason.KERNEL_REFUSES, address, "the kernel does not optimize kprobes in entry code")
        if area.end - address < JUMP_BYTES:
            return Refusal(Reason.TOO_SHORT, address, f"a jump needs {JUMP_BYTES} bytes to the end of the function")
        content = bytearray(text[area.start - start : area.end - start])
        for place in traced:
            if area.start <= place and place + JUMP_BYTES <= area.end:
                content[place - area.start : place - area.start + JUMP_BYTES] = b"\x0f\x1f\x44\0\0"
        return self._whole(address, bytes(content), area) or self._displaced(address, bytes(content), area, traced)

    def _whole(self, address: int, content: bytes, area: AddressRange) -> Refusal | None:
        """Look at all instructions of the function, as ``can_optimize`` does."""
        low, high = np.searchsorted(self._faulting, (area.start, area.end))
        faulting = set(self._faulting[low:high].tolist())
        for insn in decode_range(content, area.start):
            if insn.flow is Flow.INVALID:
                return Refusal(Reason.UNDECODABLE, insn.address, "the kernel decodes the whole function")
            if insn.address in faulting:
                return Refusal(Reason.MAY_FAULT, insn.address, _FAULTS)
            if insn.target is None or insn.flow not in (Flow.JUMP, Flow.JCC):
                continue
            if self._rules.refuses_thunks and self._thunks is not None and insn.target in self._thunks:
                detail = "the function jumps where a register says, through a thunk: it may lead anywhere"
                return Refusal(Reason.CONTROL_FLOW_UNKNOWN, insn.address, detail)
            if address + 1 <= insn.target <= address + JUMP_BYTES:
                detail = f"jumps to {insn.target - address} bytes behind the place, which the kernel permits nobody"
                return Refusal(Reason.JUMP_TARGET_IN_JTPR, insn.address, detail)
        return None

    def _displaced(
        self, address: int, content: bytes, area: AddressRange, traced: Sequence[int]
    ) -> Optimized | Refusal:
        """Look at the instructions that would be displaced, as ``copy_optimized_instructions`` does."""
        found: list[Insn] = []
        end = address
        while end - address < JUMP_BYTES:
            insn = decode_one(content[end - area.start : end - area.start + 15], end)
            if isinstance(insn, Refusal):
                return insn
            if not self._boosts(insn):
                detail = f"the kernel displaces no {insn.text.split()[0]}"
                return Refusal(Reason.NO_DISPLACED_FORM, insn.address, detail)
            found.append(insn)
            end = insn.end
        return self._reserved({insn.address for insn in found}, traced) or Optimized(tuple(found))

    def _reserved(self, places: set[int], traced: Sequence[int]) -> Refusal | None:
        low, high = min(places), max(places) + 1
        for where, reason in ((self._keys, Reason.STATIC_KEY), (self._calls, Reason.STATIC_CALL)):
            first = self._first(where, low, high)
            if first is not None:
                return Refusal(reason, first, "the kernel rewrites an instruction that would be displaced")
        first = next((each for each in traced if each in places), None)
        return None if first is None else Refusal(Reason.FTRACE_SITE, first, "the kernel's tracer rewrites it")

    @staticmethod
    def _first(places: "np.ndarray[tuple[int], np.dtype[np.int64]]", low: int, high: int) -> int | None:
        row = int(np.searchsorted(places, low))
        return int(places[row]) if row < len(places) and places[row] < high else None

    def _boosts(self, insn: Insn) -> bool:
        """Return what ``can_boost`` does."""
        if self._first(self._faulting, insn.address, insn.address + 1) is not None:
            return False
        opcode, at = _opcode(insn.raw)
        if opcode == 0x0F:
            second = insn.raw[at + 1]
            return second not in (0x38, 0x3A) and bool(_ROWS[second >> 4] >> (second & 15) & 1)
        if {_ADDRESS_SIZE, _CS}.intersection(insn.raw[:at]) or opcode in _NEVER:
            return False
        group = insn.raw[at + 1] >> 3 & 7 if at + 1 < len(insn.raw) else 0
        newer = self._rules.boosts_groups
        if opcode in _SHIFTS:
            return newer and group != 6
        if opcode in (0xF6, 0xF7):
            return newer and group != 1
        if opcode == 0xFE:
            return newer and group in (0, 1)
        return opcode != 0xFF or group == 4 or (newer and group in (0, 1))


def _opcode(raw: bytes) -> tuple[int, int]:
    """Return the first byte of an instruction after its prefixes, REX included, and where it stands."""
    at = 0
    while at < len(raw) - 1 and raw[at] in _LEGACY:
        at += 1
    if at < len(raw) - 1 and raw[at] >> 4 == 4:
        at += 1
    return raw[at], at
