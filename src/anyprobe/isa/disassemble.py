"""Bytes to assembly text, for ``explain``, listings and tests."""

import re
from collections.abc import Callable
from functools import cache

from iced_x86 import Decoder, Formatter, FormatterSyntax, Instruction

_BRANCH = re.compile(r"((?:j\w+|call|loop\w*|xbegin) )(0x[0-9a-f]+)")


@cache
def _formatter() -> Formatter:
    formatter = Formatter(FormatterSyntax.INTEL)
    formatter.hex_prefix, formatter.hex_suffix = "0x", ""
    formatter.uppercase_hex = False
    formatter.space_after_operand_separator = True
    formatter.show_branch_size = False
    formatter.small_hex_numbers_in_decimal = False
    formatter.branch_leading_zeros = False
    formatter.rip_relative_addresses = False
    return formatter


def format_instruction(instruction: Instruction) -> str:
    """Return one instruction as Intel assembly."""
    return str(_formatter().format(instruction))


def format(content: bytes, address: int) -> list[tuple[int, bytes, str]]:  # noqa: A001 - used as disassemble.format
    """Return (address, bytes, assembly) of each instruction."""
    lines: list[tuple[int, bytes, str]] = []
    offset = 0
    for instruction in Decoder(64, content, ip=address):
        end = offset + instruction.len
        lines.append((address + offset, content[offset:end], format_instruction(instruction)))
        offset = end
    return lines


def with_name(text: str, name: Callable[[int], str]) -> str:
    """Return an instruction's text with the name of the place that it branches to, if that has one."""
    found = _BRANCH.fullmatch(text)
    return text if found is None else found[1] + name(int(found[2], 16))


def target_in(text: str) -> int | None:
    """Return where the instruction of a text branches to directly, ``None`` for others."""
    found = _BRANCH.fullmatch(text)
    return None if found is None else int(found[2], 16)
