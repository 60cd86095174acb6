"""The lines of kallsyms that are of functions, all looked at together.

There are some hundred thousand lines; a loop over them takes seconds in an emulated machine.
"""

from typing import TYPE_CHECKING, NamedTuple

from anyprobe.core.arrays import among

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from anyprobe.core.later import np

_DIGITS, _LETTER_AT, _NAME_AT = 16, 17, 19
"""Columns of a line, ``ffffffff81000000 T name``, or with ``\\t[module]`` after it."""
_NEWLINE, _TAB = 10, 9
_FUNCTIONS = b"tTwW"
NO_MODULES = (b"bpf", b"__builtin__")
"""What the kernel has made itself: programs, trampolines."""


class Lines(NamedTuple):
    """Functions in the order of their addresses."""

    addresses: "NDArray[np.uint64]"
    names: list[bytes]
    modules: dict[int, bytes]
    """Module names of symbols that are in modules, by their places."""


def functions_in(listing: bytes) -> Lines:
    """Return the functions of a text of kallsyms, without what the kernel has made itself."""
    text = np.frombuffer(listing + b"\n", np.uint8)
    ends = np.flatnonzero(text == _NEWLINE)
    starts = np.append(0, ends[:-1] + 1)
    whole = ends - starts > _NAME_AT
    starts, ends = starts[whole], ends[whole]
    letters = text[starts + _LETTER_AT]
    wanted = np.logical_or.reduce([letters == letter for letter in _FUNCTIONS])
    starts, ends = starts[wanted], ends[wanted]
    tabs = np.append(np.flatnonzero(text == _TAB), len(text))
    tabs = tabs[np.searchsorted(tabs, starts)]
    named = np.flatnonzero(tabs < ends).tolist()
    modules = {line: listing[tabs[line] + 2 : ends[line] - 1] for line in named}
    addresses = _addresses(text[starts[:, None] + np.arange(_DIGITS)])
    order = np.argsort(addresses, kind="stable")
    made = [line for line, module in modules.items() if module.startswith(NO_MODULES)]
    order = order[~among(order, np.array(made, np.int64))] if made else order
    first, last = (starts + _NAME_AT)[order].tolist(), np.minimum(tabs, ends)[order].tolist()
    names = [listing[low:high] for low, high in zip(first, last, strict=True)]
    lines = order.tolist()
    places = {line: place for place, line in enumerate(lines)} if modules else {}
    return Lines(addresses[order], names, {places[line]: module for line, module in modules.items() if line in places})


def leading_addresses(text: bytes) -> "NDArray[np.uint64]":
    """Return the addresses with which lines begin, in order; raise ``ValueError`` where lines begin with else."""
    content = np.frombuffer(text, np.uint8)
    starts = np.append(0, np.flatnonzero(content[:-1] == _NEWLINE) + 1) if text else np.empty(0, np.int64)
    rows = content[np.minimum(starts[:, None] + np.arange(_DIGITS + 1), len(content) - 1)]
    digits = rows[:, :_DIGITS]
    decimal, letters = (digits >= ord("0")) & (digits <= ord("9")), (digits >= ord("a")) & (digits <= ord("f"))
    if not (decimal | letters).all() or not (rows[:, _DIGITS] == ord(" ")).all():
        raise ValueError("a line does not begin with an address")
    return np.sort(_addresses(digits))


def _addresses(digits: "NDArray[np.uint8]") -> "NDArray[np.uint64]":
    """Return the numbers of rows of hexadecimal digits."""
    values = np.where(digits >= ord("a"), digits - (ord("a") - 10), digits - ord("0"))
    pairs = np.ascontiguousarray(values[:, ::2] << 4 | values[:, 1::2], np.uint8)
    return pairs.view(">u8").ravel().astype(np.uint64)
