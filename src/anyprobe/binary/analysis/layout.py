"""Where the code of one module is, and where functions begin and end in it."""

from array import array
from bisect import bisect_left, bisect_right

from anyprobe.binary.decoding.code_scan import CodeBytes, code_bytes
from anyprobe.binary.objects.padding import padding_length
from anyprobe.binary.objects.text import ModuleText
from anyprobe.core.cachedproperty import cached_property

_MOST_NOPS = 64
"""How many bytes of padding may lie between two functions of which one runs on into the other."""


class Layout:
    """The stretches of code of one module and the bounds of its functions, by address."""

    def __init__(self, text: ModuleText) -> None:
        """Read nothing before it is asked for."""
        self._text = text
        self._last: CodeBytes | None = None
        """The stretch that was asked for last, which mostly is asked for again."""

    @cached_property
    def code(self) -> tuple[CodeBytes, ...]:
        """The bytes of all code."""
        return code_bytes(self._text)

    @cached_property
    def starts(self) -> "array[int]":
        """Where functions begin, ascending."""
        return array("q", self._text.function_starts.astype("<i8").tobytes())

    @cached_property
    def ends(self) -> "array[int]":
        """Where each of them ends at the latest."""
        return array("q", self._text.function_ends.astype("<i8").tobytes())

    def area_of(self, address: int) -> CodeBytes | None:
        """Return the stretch of code around an address."""
        last = self._last
        if last is not None and last.start <= address < last.end:
            return last
        self._last = next((part for part in self.code if part.start <= address < part.end), None)
        return self._last

    def start_of(self, address: int) -> int | None:
        """Return the start of the function whose bounds hold an address."""
        number = bisect_right(self.starts, address) - 1
        if number < 0 or address >= self.ends[number]:
            return None
        return self.starts[number]

    def end_of(self, start: int) -> int:
        """Return where the bounds of the function that starts at an address end."""
        return self.ends[bisect_left(self.starts, start)]

    def start_before(self, start: int) -> int | None:
        """Return the start of the function before one."""
        number = bisect_left(self.starts, start)
        return self.starts[number - 1] if number else None

    def start_after(self, start: int) -> int | None:
        """Return the start of the function after one."""
        number = bisect_right(self.starts, start)
        return self.starts[number] if number < len(self.starts) else None

    def starts_between(self, low: int, high: int) -> list[int]:
        """Return the function starts in ``[low, high)``."""
        return list(self.starts[bisect_left(self.starts, low) : bisect_left(self.starts, high)])

    def gap_around(self, address: int) -> tuple[int, bytes] | None:
        """Return where the bytes outside of all functions begin that hold an address, and those bytes."""
        area, number = self.area_of(address), bisect_right(self.starts, address) - 1
        if area is None or (number >= 0 and address < self.ends[number]):
            return None
        low = max(area.start, self.ends[number] if number >= 0 else 0)
        high = min(area.end, self.starts[number + 1] if number + 1 < len(self.starts) else area.end)
        return low, bytes(area.content[low - area.start : high - area.start])

    def byte_at(self, address: int) -> int:
        """Return the byte of code at an address, or -1."""
        area = self.area_of(address)
        return area.content[address - area.start] if area is not None else -1

    def next_code(self, address: int) -> int | None:
        """Return the function that control runs into from an address, over nothing but ``nop`` instructions."""
        starts = self.starts_between(address, address + _MOST_NOPS)
        area = self.area_of(address)
        if not starts or area is None:
            return None
        between = area.content[address - area.start : starts[0] - area.start]
        traps = b"\xcc" in between
        return None if traps or padding_length(between, 0, zeros=False) < len(between) else starts[0]
