"""One table of the general purpose registers: encoding, DWARF, ptrace and signal context numbers.

A set of registers is an ``int`` mask whose bit *n* is the register with encoding number *n*.
"""

from collections.abc import Iterable
from typing import NamedTuple


class Gpr(NamedTuple):
    """One general purpose register."""

    name: str
    number: int
    """The number in instruction encodings, and the bit in masks."""
    iced: int
    """``iced_x86.Register`` of the 64-bit form."""
    dwarf: int
    ptrace: int
    """Index of the 8-byte word in ``user_regs_struct``."""
    sigcontext: int
    """Index of the 8-byte word in ``gregs`` of a signal frame."""


# The order is that of the encodings, which is also iced's order from Register.RAX (53) on.
GPRS: tuple[Gpr, ...] = (
    Gpr("rax", 0, 53, 0, 10, 13),
    Gpr("rcx", 1, 54, 2, 11, 14),
    Gpr("rdx", 2, 55, 1, 12, 12),
    Gpr("rbx", 3, 56, 3, 5, 11),
    Gpr("rsp", 4, 57, 7, 19, 15),
    Gpr("rbp", 5, 58, 6, 4, 10),
    Gpr("rsi", 6, 59, 4, 13, 9),
    Gpr("rdi", 7, 60, 5, 14, 8),
    Gpr("r8", 8, 61, 8, 9, 0),
    Gpr("r9", 9, 62, 9, 8, 1),
    Gpr("r10", 10, 63, 10, 7, 2),
    Gpr("r11", 11, 64, 11, 6, 3),
    Gpr("r12", 12, 65, 12, 3, 4),
    Gpr("r13", 13, 66, 13, 2, 5),
    Gpr("r14", 14, 67, 14, 1, 6),
    Gpr("r15", 15, 68, 15, 0, 7),
)

NUMBERS: dict[str, int] = {gpr.name: gpr.number for gpr in GPRS}
"""Encoding number by name."""

ALL_GPRS = 0xFFFF
"""The mask of all of them."""


def mask_of(names: Iterable[str]) -> int:
    """Return the mask of registers given by name."""
    mask = 0
    for name in names:
        mask |= 1 << NUMBERS[name]
    return mask


def names_of(mask: int) -> frozenset[str]:
    """Return the names of the registers in a mask; bits above the sixteenth are ignored."""
    return frozenset(gpr.name for gpr in GPRS if mask >> gpr.number & 1)


def part_of(name: str, bits: int) -> str:
    """Return what the low ``bits`` of a register are called."""
    if bits == 64:
        return name
    if name[1].isdigit():
        return name + {32: "d", 16: "w", 8: "l"}[bits]
    short = name[1:]
    return {32: "e" + short, 16: short, 8: short.removesuffix("x") + "l"}[bits]


SYSV_PRESERVED = mask_of(("rbx", "rbp", "rsp", "r12", "r13", "r14", "r15"))
SYSV_CLOBBERED = ALL_GPRS & ~SYSV_PRESERVED
"""What functions may leave changed by the System V convention."""
