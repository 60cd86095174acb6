"""Code as its bytes decode: the instructions, where they are, and what iced says of them."""

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from functools import partial
from itertools import count
from typing import TYPE_CHECKING, Protocol, cast

from iced_x86 import Decoder

from anyprobe.binary.decoding.body import Body, Facts, decode_to_end, examine
from anyprobe.binary.decoding.kept_lines import KeptLines
from anyprobe.binary.decoding.together import Together
from anyprobe.binary.objects.text import ModuleText
from anyprobe.core.cachedproperty import Lazy, cached_property
from anyprobe.core.checkpoints import checkpoint
from anyprobe.isa.decode import Flow, Insn, decode_iced

if TYPE_CHECKING:
    from iced_x86 import Instruction


_DEARER = 16
"""How much more it costs to decode an instruction alone, and to look it up, than as one of many."""


class StaticEntries(Protocol):
    """What enters functions other than through code."""

    def static_entries(self, low: int, high: int) -> list[int]:
        """Return the known entries in ``[low, high)`` other than through code."""
        ...


class DecodingContext(Protocol):
    """What decoding asks of the module that a function lies in."""

    @property
    def text(self) -> ModuleText:
        """What the object's file says of its code."""
        ...

    @property
    def kept_lines(self) -> KeptLines:
        """The functions whose decoded instructions are kept."""
        ...

    @property
    def entries(self) -> StaticEntries:
        """What enters the functions."""
        ...


class DecodedCode:
    """The instructions of one function, decoded when they are first asked about, and again when they were dropped."""

    def __init__(self, code_map: DecodingContext, start: int, content: bytes) -> None:
        """Name the code; ``content`` lies at ``start`` and is decoded when first asked about."""
        self._map = code_map
        self.start = start
        self.whole = content
        self._made: dict[int, Insn] = {}
        self._alone = 0
        """How many instructions were decoded alone."""
        self.examined: tuple[Together, int] | None = None
        """Where its instructions are, and at which place, if it was examined together with others and is not odd."""

    @Lazy
    def end(self) -> int:
        """The end of the code, padding not included."""
        iced, end = decode_to_end(self.whole, self.start)
        self._keep(iced)
        return end

    @Lazy
    def _line(self) -> "Sequence[Instruction]":
        """The instructions as they are decoded one after the other, until they are dropped."""
        if DecodedCode.end.made(self) is None:
            self.end  # noqa: B018 - it has to decode them to know
            return cast("Sequence[Instruction]", self.__dict__["_line"])
        iced = decode_iced(self.content, self.start)
        self._keep(iced)
        return iced

    def _keep(self, iced: "Sequence[Instruction]") -> None:
        self.__dict__["_line"] = iced
        self._map.kept_lines.note(self, len(iced))

    def drop_instructions(self) -> None:
        """Keep the decoded instructions no longer, nor their numbers: they are found again when they are wanted."""
        for name in ("_line", "iced", "_index"):
            self.__dict__.pop(name, None)

    @cached_property
    def content(self) -> bytes:
        """The bytes of the code."""
        return self.whole[: self.end - self.start]

    @Lazy
    def _body(self) -> Body:
        checkpoint()  # what looks at functions by the thousand asks for the instructions of each
        if self.examined is not None:
            return self.examined[0].body(self.examined[1])
        entries = partial(self._map.entries.static_entries, self.start + 1, self.end)
        return examine(self._line, self.content, self.start, entries, self._map.text.noreturn)

    @property
    def is_examined(self) -> bool:
        """Whether its instructions have been looked at."""
        return self.examined is not None or DecodedCode._body.made(self) is not None

    def take(self, together: Together, place: int, end: int) -> None:
        """Take note of where its instructions are among those of others."""
        self.examined = together, place
        self.__dict__["end"] = end

    @cached_property
    def mask_numbers(self) -> "array[int] | None":
        """What each instruction does, by number in ``instruction_masks.MASKS``, where many were looked at together."""
        return None if self.examined is None else self.examined[0].mask_numbers(self.examined[1])

    @Lazy
    def iced(self) -> "Sequence[Instruction]":
        """The instructions as iced decoded them; only those that are reached where there is data between them."""
        kept = self._body.iced
        return self._line if kept is None else kept

    @cached_property
    def _facts(self) -> Facts:
        return self._body.facts

    @property
    def turns(self) -> list[tuple[int, Flow]]:
        """The numbers and flows of the instructions after which control does not simply go on, ascending."""
        return self._facts.turns

    @cached_property
    def _index(self) -> dict[int, int]:
        """The numbers of the instructions by address."""
        return dict(zip(self.addresses, count(), strict=False))

    @cached_property
    def addresses(self) -> "array[int]":
        """The instruction starts, ascending."""
        return self._body.addresses

    @cached_property
    def ends(self) -> "array[int]":
        """Where each instruction ends."""
        if self._body.iced is not None or not self.addresses:
            return array("Q", [one.next_ip for one in self.iced])
        found = self.addresses[1:]
        found.append(self._body.end)
        return found

    def end_of(self, number: int) -> int:
        """Return where one instruction ends."""
        if self._body.iced is not None:
            return self._body.iced[number].next_ip
        return self.addresses[number + 1] if number + 1 < len(self.addresses) else self._body.end

    @cached_property
    def codes(self) -> "array[int]":
        """What iced calls each instruction."""
        return self._facts.codes

    @cached_property
    def special(self) -> tuple[Insn, ...]:
        """Every instruction that does not simply go on to the next."""
        return tuple(self.insn(number) for number, _ in self.turns)

    def covering(self, address: int) -> Insn | None:
        """Return the instruction whose bytes hold an address."""
        number = self.number_over(address)
        return None if number is None else self.insn(number)

    def number_over(self, address: int) -> int | None:
        """Return the number of the instruction whose bytes hold an address."""
        number = bisect_right(self.addresses, address) - 1
        return number if number >= 0 and address < self.end_of(number) else None

    @cached_property
    def insns(self) -> tuple[Insn, ...]:
        """All instructions in address order."""
        return tuple(self.insn(number) for number in range(len(self.addresses)))

    def insn(self, number: int) -> Insn:
        """Return the instruction with this number."""
        made = self._made.get(number)
        if made is None:
            address, raw = self.addresses[number], self.raw_at(number)
            kept = self.__dict__.get("iced")  # as nearly always where many are asked for: no call
            one = self.one(number) if kept is None else kept[number]
            made = self._made[number] = Insn(one, raw, address, self.codes[number])
        return made

    def one(self, number: int) -> "Instruction":
        """Return an instruction as iced decoded it, by its number: alone, where few are asked for and none is kept."""
        found = DecodedCode.iced.made(self), DecodedCode._line.made(self), self._body.iced
        kept = any(each is not None for each in found)
        if not kept and self._alone * _DEARER < len(self.addresses):
            self._alone += 1
            return Decoder(64, self.raw_at(number), ip=self.addresses[number]).decode()
        return self.iced[number]

    def raw_at(self, index: int) -> bytes:
        """Return the bytes of the instruction with this number."""
        addresses, start, following = self.addresses, self.start, index + 1
        if following < len(addresses) and self._body.iced is None:  # as for nearly all: no call
            return self.whole[addresses[index] - start : addresses[following] - start]
        return self.whole[addresses[index] - start : self.end_of(index) - start]

    def is_boundary(self, address: int) -> bool:
        """Return whether an instruction starts here."""
        return address in self._index

    def index_of(self, address: int) -> int | None:
        """Return the number of the instruction that starts at an address."""
        return self._index.get(address)
