"""Bytes to assembly text, for ``explain``, listings and tests."""

from functools import cache

from iced_x86 import Decoder, Formatter, FormatterSyntax, Instruction


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
