"""Patches in the kernel, made by hand: each counts in a counter of the processor, and goes on as the text would."""

import os
import struct
import subprocess
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from anyprobe.core.refusal import Refusal
from anyprobe.isa import relocate
from anyprobe.isa.decode import Flow, Insn, decode_range
from anyprobe.target.kernel import symbols
from anyprobe.target.kernel.driver.device import BatchRefused, Driver
from anyprobe.target.kernel.driver.layout import NEAR_COUNTERS, Fixup, Write
from anyprobe.target.kernel.kcore import LiveMemory

JUMP = 5
_COUNTERS = NEAR_COUNTERS // 4
"""Of one client: several have their counters in reach."""
_NOPS = {
    0: "", 1: "90", 2: "6690", 3: "0f1f00", 4: "0f1f4000", 5: "0f1f440000", 6: "660f1f440000", 7: "0f1f8000000000",
    8: "0f1f840000000000", 9: "660f1f840000000000", 10: "66660f1f840000000000", 11: "6666660f1f840000000000",
    12: "666666660f1f840000000000", 13: "66666666660f1f840000000000", 14: "6666666666660f1f840000000000",
}  # fmt: skip


def jump(at: int, to: int) -> bytes:
    """Return ``jmp`` with 32 bits."""
    return b"\xe9" + struct.pack("<i", to - (at + JUMP))


def warnings() -> list[str]:
    """Return what the kernel's log has of warnings and worse."""
    log = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
    return [line for line in log.splitlines() if "WARNING:" in line or "BUG:" in line or "Oops" in line]


def function(name: str) -> list[Insn]:
    """Return the instructions of a function of the running kernel."""
    found = symbols.running().named(name)[0]
    end = symbols.running().next_after(found)
    assert end is not None
    with LiveMemory() as memory:
        return decode_range(memory.read(found.address, end - found.address), found.address)


def fixups() -> dict[int, int]:
    """Return where control goes on after a fault, by the instruction that may fault, of the kernel itself."""
    start, end = (symbols.running().data(f"__{which}___ex_table") for which in ("start", "stop"))
    assert start is not None
    assert end is not None
    found = {}
    for index, (place, after, _) in enumerate(struct.iter_unpack("<iii", text(start, end - start))):
        at = start + 12 * index
        found[at + place] = at + 4 + after
    return found


def text(address: int, size: int) -> bytes:
    """Return what the running kernel has there."""
    with LiveMemory() as memory:
        return memory.read(address, size)


def whole_text() -> tuple[int, int]:
    """Return where the kernel's own text is."""
    low, high = (symbols.running().named(name) for name in ("_stext", "_etext"))
    end = high[0].address if high else symbols.running().data("_etext")
    assert end is not None
    return low[0].address, end


def static_keys() -> list[int]:
    """Return the instructions that the kernel itself changes as its static keys flip."""
    start, end = (symbols.running().data(f"__{which}___jump_table") for which in ("start", "stop"))
    assert start is not None
    assert end is not None
    places = struct.iter_unpack("<iiq", text(start, end - start))
    return [start + 16 * index + place for index, (place, _, _) in enumerate(places)]


def keys_apart(content: bytes, low: int, keys: list[int]) -> bytes:
    """Return text without its static keys, of which each has to be off or on."""
    found = bytearray(content)
    for at in keys:
        if low <= at < low + len(content):
            code = content[at - low : at - low + 5]
            is_short = code[:1] == b"\xeb" or code[:2] == b"\x66\x90"
            assert is_short or code[:1] == b"\xe9" or code == b"\x0f\x1f\x44\0\0", (hex(at), code)
            size = 2 if is_short else 5
            found[at - low : at - low + size] = bytes(size)
    return bytes(found)


@contextmanager
def unharmed() -> Iterator[None]:
    """Check that text and log are the same afterwards, but for keys of the kernel's that flip, some of them later."""
    keys = static_keys()
    low, high = whole_text()
    before, log = text(low, high - low), warnings()
    yield
    with Driver() as driver:
        assert driver.live == 0
    before, after = (keys_apart(each, low, keys) for each in (before, text(low, high - low)))
    changed = [low + at for at in range(len(before)) if before[at] != after[at]] if after != before else []
    assert [hex(at) for at in changed[:10]] == []
    new = [line for line in warnings() if line not in log]
    assert not new, subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout.partition(new[0])[1:]


def call_getppid(times: int, threads: int = 1) -> None:
    """Make a system call that does nothing, in each of some threads."""

    def work() -> None:
        for _ in range(times):
            os.getppid()

    several = [threading.Thread(target=work) for _ in range(threads)]
    for each in several:
        each.start()
    for each in several:
        each.join()


class Counting(NamedTuple):
    """A write that leads through a counter."""

    write: Write
    slot: int
    fixups: tuple[Fixup, ...]


@dataclass
class Patches:
    """Where patches of one client are laid, one after the other, and their counters."""

    driver: Driver
    size: int = 1 << 16
    used: int = 0
    slots: int = 0
    start: int = field(init=False)
    counters: int = field(init=False)

    def __post_init__(self) -> None:
        """Reserve the memory."""
        self.start = self.driver.reserve(self.size)
        self.counters = self.driver.per_processor(8 * _COUNTERS)
        assert self.counters < 1 << 31

    def counting(self, body: list[Insn], index: int, faulting: dict[int, int] | None = None) -> Counting | None:
        """Return the write that leads through a new counter at an instruction, with what faults in its copies do.

        ``None`` where no jump fits before the function's end, where a branch goes between the instructions that it
        would replace, or where an instruction has no copy.
        """
        displaced = [body[index]]
        while displaced[-1].end - body[index].address < JUMP:
            if displaced[-1].flow is not Flow.NEXT or index + len(displaced) == len(body):
                return None
            displaced.append(body[index + len(displaced)])
        if {insn.address for insn in displaced[1:]} & {*(insn.target for insn in body), *(faulting or {}).values()}:
            return None
        fixed: list[Fixup] = []
        slot = self.next_slot()
        at = self.start + self.used
        count = b"\x65\x48\xff\x04\x25" + struct.pack("<I", self.counters + 8 * slot)
        code = b"\x9c" + count + b"\x9d"  # pushfq; inc qword gs:[slot]; popfq
        for insn in displaced:
            where = at + len(code)
            if insn.flow is Flow.CALL:  # its return address is that of the call: stack traces stay as they are
                assert insn.target is not None
                copy: bytes | Refusal = relocate.push_address(insn.end)
                copy = copy + jump(where + len(copy), insn.target)
            else:
                copy = relocate.displace(insn, where)
            if isinstance(copy, Refusal):
                return None
            if insn.address in (faulting or {}):
                fixed.append(Fixup(where, insn.address))
            code += copy
        code += jump(at + len(code), displaced[-1].end)
        self.slots += 1
        self.used += len(code) + 15 & ~15
        assert self.used <= self.size
        self.lay(at, code)
        old = b"".join(insn.raw for insn in displaced)
        new = jump(displaced[0].address, at) + bytes.fromhex(_NOPS[len(old) - JUMP])
        boundaries = tuple(insn.address - displaced[0].address for insn in displaced[1:])
        return Counting(Write(displaced[0].address, old, new, boundaries), slot, tuple(fixed))

    def next_slot(self) -> int:
        """Return the counter of the next patch."""
        assert self.slots < _COUNTERS
        return self.slots

    def lay(self, at: int, code: bytes) -> None:
        """Write a patch."""
        self.driver.write_patch(at, code)

    def again(self, writes: Iterable[Write]) -> list[Write]:
        """Return writes at the same places as others, which lead to patches of this client."""
        made = []
        for write in writes:
            body = decode_range(write.old, write.address)
            counting = self.counting(body, 0)
            assert counting is not None
            made.append(counting.write)
        return made

    def count(self, slot: int) -> int:
        """Return what a counter has, over all processors."""
        parts = self.driver.read_per_processor(self.counters + 8 * slot, 8)
        return sum(int.from_bytes(part, "little") for part in parts)


def is_refused(driver: Driver, write: Write) -> bool:
    """Return whether the driver refuses a write; it is not in force afterwards."""
    try:
        driver.apply([write])
    except BatchRefused:
        return True
    driver.apply([write.undone()])
    return False


def writes_of(patches: Patches, names: Iterable[str], most: int = 8) -> list[Write]:
    """Return up to so many writes in each of some functions, which the driver accepts together."""
    made: list[Write] = []
    for name in names:
        body, end, found = function(name), 0, 0
        for index in range(3, len(body)):
            before = patches.slots, patches.used
            counting = patches.counting(body, index) if body[index].address >= end and found < most else None
            if counting is None or is_refused(patches.driver, counting.write):
                patches.slots, patches.used = before
                continue
            made.append(counting.write)
            end = counting.write.address + len(counting.write.old)
            found += 1
    return made


@dataclass
class ManyPatches(Patches):
    """Patches by the thousand, which share counters and are written together."""

    size: int = 4 << 20
    code: bytearray = field(default_factory=bytearray)

    def next_slot(self) -> int:
        """Return a counter that other patches have as well."""
        return self.slots % _COUNTERS

    def lay(self, at: int, code: bytes) -> None:
        """Keep a patch until all are written."""
        self.code += b"\xcc" * (at - self.start - len(self.code)) + code

    def write(self) -> None:
        """Write all patches."""
        self.driver.write_patch(self.start, bytes(self.code))

    def hits(self) -> int:
        """Return what all have counted together."""
        return sum(self.count(slot) for slot in range(_COUNTERS))

    def single(self, body: Iterable[Insn], most: int, faulting: dict[int, int]) -> list[Counting]:
        """Return writes at up to so many instructions of a function that have room for a jump each.

        Nothing is between two of them, so branches may lead anywhere. What the kernel rewrites the driver refuses.
        """
        made: list[Counting] = []
        for insn in body:
            if len(made) < most and insn.end - insn.address >= JUMP:
                counting = self.counting([insn], 0, faulting)
                made += [] if counting is None else [counting]
        return made
