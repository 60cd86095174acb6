"""Keys of tables as 64-bit words: what a tuple of integers and strings looks like in shared memory.

An integer part is one word, extended to 64 bits by its own signedness. A string part is its bytes, cut at the bound
and padded with zeros to whole words. So equal keys are equal words, and comparing words is all that generated code
does.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from anyprobe.core.errors import UsageError
from anyprobe.data.layouts.cells import Key

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
else:
    from anyprobe.core.later import np

KEY_WORDS_LIMIT = 16
"""A key has at most 128 bytes."""


KeyKind = Literal["unsigned", "signed", "string", "func", "stack", "gotype", "address"]
"""``func`` is an address of code, ``stack`` the id of a stack, and ``gotype`` the address of what Go's runtime keeps of
a type, which are shown by name; so is an ``address``, which stays a number.
"""
NAMED = frozenset({"func", "stack", "gotype"})
"""Kinds of numbers that are shown by name."""


class Place(int):
    """An address in a key: a number like any other, shown as the symbol that is there, or in hexadecimal digits."""

    text: str

    def __new__(cls, number: int, text: str = "") -> Self:
        """Keep how it is shown."""
        made = super().__new__(cls, number)
        made.text = text or f"{number:#x}"
        return made

    def __str__(self) -> str:
        """Return how it is shown."""
        return self.text

    def __format__(self, form: str) -> str:
        """Return how it is shown, or the number in a form for numbers."""
        return format(int(self), form) if form else self.text

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle both."""
        return Place, (int(self), self.text)


class KeyPart(NamedTuple):
    """One element of a key; ``words`` is 1 for integers and an eighth of the bound for strings."""

    kind: KeyKind = "unsigned"
    words: int = 1


Names = Callable[[str, int], str]
"""Returns how a number is shown that is of one of the kinds ``NAMED``."""


@dataclass(frozen=True, slots=True)
class KeyShape:
    """The parts of a key, as the compiler has found them where the key is used."""

    parts: tuple[KeyPart, ...]

    def __post_init__(self) -> None:
        """Refuse keys that are too long."""
        if self.words > KEY_WORDS_LIMIT:
            raise UsageError(
                f"a key of {self.words * 8} bytes is longer than the {KEY_WORDS_LIMIT * 8} that it may have"
            )

    @property
    def words(self) -> int:
        """Number of words of one key."""
        return sum(part.words for part in self.parts)

    def serves(self, other: "KeyShape") -> bool:
        """Return whether keys of another shape are the same words: addresses and numbers without a sign are."""
        plain = [
            tuple("unsigned" if part.kind == "address" else part.kind for part in each.parts) for each in (self, other)
        ]
        return plain[0] == plain[1] and [part.words for part in self.parts] == [part.words for part in other.parts]

    def encode(self, key: Key) -> tuple[int, ...]:
        """Return the words of a key."""
        words: list[int] = []
        for part, value in zip(self.parts, key, strict=True):
            if part.kind == "string":
                raw = str(value).encode(errors="surrogateescape")[: part.words * 8].ljust(part.words * 8, b"\0")
                words += np.frombuffer(raw, np.uint64).tolist()
            else:
                words.append(int(value) & (1 << 64) - 1)
        return tuple(words)

    def decode(self, rows: "NDArray[np.uint64]", names: Names | None = None) -> list[Key]:
        """Return the keys of rows of words; without ``names``, addresses and stacks stay numbers."""
        columns: list[Sequence[int | str]] = []
        first = 0
        for part in self.parts:
            words = np.ascontiguousarray(rows[:, first : first + part.words])
            first += part.words
            if part.kind == "string":
                raw = words.view(f"S{part.words * 8}").ravel().tolist()
                columns.append([text.partition(b"\0")[0].decode(errors="backslashreplace") for text in raw])
            elif part.kind == "address":
                numbers = words.ravel().tolist()
                columns.append([Place(each, names("func", each) if names is not None else "") for each in numbers])
            elif part.kind in NAMED and names is not None:
                columns.append([names(part.kind, number) for number in words.ravel().tolist()])
            else:
                columns.append((words.view(np.int64) if part.kind == "signed" else words).ravel().tolist())
        return list(zip(*columns, strict=True)) if columns else [()] * len(rows)

    def key_of(self, content: bytes, names: Names | None = None) -> Key:
        """Return the key of the bytes of one row, as ``decode`` does of many."""
        found: list[int | str] = []
        first = 0
        for part in self.parts:
            raw = content[8 * first : 8 * (first + part.words)]
            first += part.words
            number = int.from_bytes(raw[:8], "little", signed=part.kind == "signed")
            if part.kind == "string":
                found.append(raw.partition(b"\0")[0].decode(errors="backslashreplace"))
            elif part.kind == "address":
                found.append(Place(number, names("func", number) if names is not None else ""))
            elif part.kind in NAMED and names is not None:
                found.append(names(part.kind, number))
            else:
                found.append(number)
        return tuple(found)


UNKEYED = KeyShape(())
