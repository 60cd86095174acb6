"""What the kernel's optimiser does with a kprobe: a jump instead of the trap, or why not, by the kernel's own rules.

``can_optimize`` and ``can_boost`` in ``arch/x86/kernel/kprobes`` look at the whole function, up to the next symbol, and
at the instructions that would be displaced. They know nothing of control flow but jumps that they see; so what they
refuse is not what the analysis here would.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from anyprobe.binary.kernel.image import KernelImage
from anyprobe.binary.kernel.settled import NOP5
from anyprobe.binary.kernel.source import KernelSource
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
_INT3, _TRAPS, _UNDEFINED = 0xCC, frozenset(b"\xcd\xce\xf1"), (b"\x0f\x0b", b"\x0f\xb9", b"\x0f\xff")
_SHIFTS = frozenset([0xC0, 0xC1, *range(0xD0, 0xD4)])
_FAULTS = "an instruction of the function may fault, and the kernel does not see where that leads"


@dataclass(frozen=True, slots=True)
class Rules:
    """In what the optimisers of kernels differ."""

    is_new: bool = True
    """Since Linux 6.9: shifts, ``neg``, ``mul``, ``inc`` and their like are displaced; kprobes on traps are refused."""


@dataclass(frozen=True, slots=True)
class Optimized:
    """The kernel will put a jump there."""

    insns: tuple[Insn, ...]
    """What it displaces."""


class Optimizer:
    """The kernel's optimiser of kprobes, asked about one kernel; addresses are the analysis's."""

    def __init__(self, source: KernelSource, images: Sequence[KernelImage], rules: Rules) -> None:
        """Ask about the kernel and some of its modules."""
        self._source, self._rules = source, rules
        names, tables = source.names, [each.tables for each in images]
        self._faulting = np.sort(np.concatenate([each.fixups[:, 0] for each in tables]))
        self._keys = np.sort(np.concatenate([each.keys[:, 0] for each in tables]))
        self._calls = np.sort(np.concatenate([each.calls[:, 0] for each in tables]))
        self._bugs = np.sort(np.concatenate([each.bugs[:, 0] for each in tables]))
        self._traced = np.sort(np.concatenate([each.settled.traced for each in images]))
        self._entry = names.between("__entry_text_start", "__entry_text_end")
        # until Linux 6.6 a jump there anywhere in the function forbids it; since then there are no such symbols
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

    def traced_in(self, area: AddressRange) -> int | None:
        """Return where ftrace's call is in a function, ``None`` where there is none."""
        return self._first(self._traced, area.start, area.end)

    def forbids(self, address: int) -> Refusal | None:
        """Return why the kernel takes no kprobe of an event or a program at an instruction at all."""
        for places, reason, detail in (
            (self._keys, Reason.STATIC_KEY, "a static key rewrites this instruction"),
            (self._calls, Reason.STATIC_CALL, "a static call is rewritten here"),
            (self._bugs, Reason.KERNEL_REFUSES, "the trap of a BUG or WARN"),
        ):
            if self._first(places, address, address + 1) is not None:
                return Refusal(reason, address, f"{detail}, and the kernel refuses kprobes on it")
        raw = self._source.memory.read(address, 2)
        if raw[0] == _INT3 or (self._rules.is_new and (raw[0] in _TRAPS or raw in _UNDEFINED)):
            return Refusal(Reason.NOT_CODE, address, "a trap or padding, on which the kernel refuses kprobes")
        area = self.function_around(address)
        if area is not None and not self._is_traceable(area):
            detail = "the kernel takes kprobes of events and programs in functions that ftrace can trace only"
            return Refusal(Reason.KERNEL_REFUSES, address, detail)
        return None

    def _is_traceable(self, area: AddressRange) -> bool:
        """Return whether ftrace can trace a function, or for ``name.isra.0`` the function ``name``."""
        if self.traced_in(area) is not None:
            return True
        base, dot, _ = self._source.names.name_at(area.start).partition(".")
        whole = self._source.names.address(base) if dot else None
        around = None if whole is None else self.function_around(whole)
        return around is not None and self.traced_in(around) is not None

    def look_at(self, address: int) -> Optimized | Refusal:
        """Say what becomes of a kprobe at an instruction, by the text as it is at the moment."""
        area = self.function_around(address)
        if area is None:
            return Refusal(Reason.KERNEL_REFUSES, address, "no symbol of the kernel tells of this code")
        traced = self.traced_in(area)
        if traced is not None and address in (area.start, traced):  # the kernel steps over endbr64
            return Refusal(Reason.FTRACE_SITE, address, "a kprobe here is a callback of the function tracer, no trap")
        if self._entry is not None and address in self._entry:
            return Refusal(Reason.KERNEL_REFUSES, address, "the kernel does not optimize kprobes in entry code")
        if area.end - address < JUMP_BYTES:
            return Refusal(Reason.TOO_SHORT, address, f"a jump needs {JUMP_BYTES} bytes to the end of the function")
        content = bytearray(self._source.memory.read(area.start, len(area)))
        if traced is not None:
            content[traced - area.start : traced - area.start + JUMP_BYTES] = NOP5
        return self._whole(address, bytes(content), area) or self._displaced(address, bytes(content), area)

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
            if self._thunks is not None and insn.target in self._thunks:
                detail = "the function jumps where a register says, through a thunk: it may lead anywhere"
                return Refusal(Reason.CONTROL_FLOW_UNKNOWN, insn.address, detail)
            if address + 1 <= insn.target <= address + JUMP_BYTES:
                detail = f"jumps to {insn.target - address} bytes after the place, which the kernel never permits"
                return Refusal(Reason.JUMP_TARGET_IN_JTPR, insn.address, detail)
        return None

    def _displaced(self, address: int, content: bytes, area: AddressRange) -> Optimized | Refusal:
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
        return self._reserved(address, found[-1].address + 1) or Optimized(tuple(found))

    def _reserved(self, low: int, high: int) -> Refusal | None:
        for places, reason in (
            (self._keys, Reason.STATIC_KEY), (self._calls, Reason.STATIC_CALL), (self._traced, Reason.FTRACE_SITE),
        ):  # fmt: skip
            first = self._first(places, low, high)
            if first is not None:
                return Refusal(reason, first, "the kernel rewrites an instruction that would be displaced")
        return None

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
        newer = self._rules.is_new
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
