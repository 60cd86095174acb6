"""``/dev/anyprobe``: patches, memory and batches of one client; all of it goes when the device is closed."""

import ctypes
import errno
import os
import struct
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from anyprobe.core.closing import Closing
from anyprobe.core.errors import KernelRefused, TargetError
from anyprobe.target.kernel import descriptors
from anyprobe.target.kernel.driver import layout, permission
from anyprobe.target.kernel.driver.layout import MEANINGS, Fixup, Verdict, Write
from anyprobe.target.system import gateway

PATH: Final = "/dev/anyprobe"
TRIES: Final = 1000
"""How often a batch is tried, a millisecond apart, while tasks are inside what is to be replaced."""
_PAUSE: Final = 0.001


class BatchRefused(KernelRefused):
    """The driver has written nothing. ``verdict`` says why, ``write`` is the one that it concerns, if any.

    ``verdicts``: what is known of all writes that must not be, that one among them.
    """

    def __init__(
        self, number: int, verdict: Verdict, write: Write | None, verdicts: "Mapping[int, Verdict] | None" = None
    ) -> None:
        """Keep the parts; ``verdicts`` are by address."""
        where = f"{write.address:#x}: " if write is not None else ""
        super().__init__("write its text", number, where + MEANINGS.get(verdict, "an unknown reason"))
        self.verdict, self.write = verdict, write
        self.verdicts = dict(verdicts or {})
        if write is not None:
            self.verdicts[write.address] = verdict


@dataclass(frozen=True, slots=True)
class Applied:
    """What a batch took."""

    tries: int
    stopped_ns: int
    """How long all processors stood still in the last try, in nanoseconds."""


@dataclass(frozen=True, slots=True)
class Shared:
    """Memory that the kernel and this process have in common."""

    address: int
    """Where the kernel has it."""
    view: memoryview
    """The memory as it is mapped here."""


class Driver(Closing):
    """The open device; a context manager. Closing it takes all writes of this client out of the kernel's text.

    Raises:
        KernelRefused: the device cannot be opened; ``errno`` ENOENT where the driver is not loaded.
        TargetError: the driver that is loaded is of another version.
    """

    def __init__(self, path: str = PATH) -> None:
        """Open the device."""
        self._fd = -1
        self._mapped: list[tuple[int, int]] = []
        self._inherited = False
        try:
            self._fd = descriptors.made(f"open {path}", lambda: gateway.open_file(path, os.O_RDWR | os.O_CLOEXEC))
        except KernelRefused as refusal:
            if refusal.errno != errno.EPERM:
                raise
            raise KernelRefused(refusal.what, refusal.errno, permission.obstacle()) from None
        _open.add(self)
        abi, self.processors, self.patches, self.patches_size, _ = self._info()
        if abi != layout.ABI:
            self.close()
            raise TargetError(f"the driver that is loaded is of version {abi}, this is {layout.ABI}: load it again")

    def close(self) -> None:
        """Give everything back; patches that a task is still in are freed by the driver when it has left them."""
        if self._fd >= 0:
            fd, self._fd = self._fd, -1
            gateway.close(fd)

    @property
    def is_open(self) -> bool:
        """Whether it has not been closed; in a forked child it is closed."""
        return self._fd >= 0

    @property
    def live(self) -> int:
        """How many writes are in force, of all clients."""
        return int(self._info()[4])

    def reserve(self, size: int) -> int:
        """Return the address of that much memory for patches, in reach of all text."""
        return int(self._ask("give memory for patches", layout.RESERVE, layout.REGION, size, 0)[1])

    def write_patch(self, address: int, code: bytes) -> None:
        """Write code to memory that was reserved; tasks may run it from then on."""
        offset = address - self.patches
        try:
            written = gateway.pwrite(self._fd, code, offset)
        except OSError as failure:
            raise KernelRefused("write a patch", failure.errno or errno.EIO) from None
        if written != len(code):
            raise KernelRefused("write a patch", errno.EIO)

    def share(self, size: int) -> Shared:
        """Return zeroed memory that handlers in the kernel and this process both read and write."""
        size, address, offset = self._ask("give memory", layout.SHARE, layout.MEMORY, size, 0, 0)
        view = memoryview(gateway.mmap_shared(self._fd, size, offset))
        self._mapped.append((ctypes.addressof(ctypes.c_char.from_buffer(view)), size))
        return Shared(address, view)

    def per_processor(self, size: int) -> int:
        """Return the ``gs:`` offset of zeroed memory that each processor has for itself.

        It has 64 bits, or 31 if the client is the first to ask for the few that are in reach of a displacement.
        """
        return int(self._ask("give memory", layout.PERCPU, layout.MEMORY, size, 0, 0)[1])

    def read_per_processor(self, offset: int, size: int) -> list[bytes]:
        """Return what each processor has at a ``gs:`` offset."""
        values = ctypes.create_string_buffer(size * self.processors)
        self._ask("read counters", layout.READ_COUNTS, layout.COUNTS, offset, size, ctypes.addressof(values))
        return [values.raw[at : at + size] for at in range(0, len(values), size)]

    def apply(self, writes: Iterable[Write], fixups: Sequence[Fixup] = (), *, tries: int = TRIES) -> Applied:
        """Write all or nothing, while every processor stands still and no task is between replaced instructions.

        Raises:
            BatchRefused: nothing was written.
        """
        ordered = sorted(writes, key=lambda write: write.address)
        data = ctypes.create_string_buffer(b"".join(write.packed() for write in ordered))
        more = ctypes.create_string_buffer(b"".join(fixup.packed() for fixup in sorted(fixups, key=_copy)))
        addresses = ctypes.addressof(data), ctypes.addressof(more)
        reasons = ctypes.create_string_buffer(len(ordered))
        told = ctypes.addressof(reasons)
        tried = 0
        while True:  # a task may be inside; the driver looks again some times, and lets others at the text in between
            at_once = min(tries - tried, layout.MAX_TRIES)
            batch = bytearray(layout.BATCH.pack(*addresses, len(ordered), len(fixups), at_once, 0, 0, 0, 0, told))
            try:
                gateway.ioctl(self._fd, layout.APPLY, batch)
            except OSError as failure:
                failed, verdict, now_tried = layout.BATCH.unpack(batch)[5:8]
                tried += now_tried
                if verdict == Verdict.BUSY and tried < tries:
                    time.sleep(_PAUSE)
                    continue
                if verdict == Verdict.DONE:
                    why = permission.obstacle() if failure.errno == errno.EPERM else ""
                    raise KernelRefused("write its text", failure.errno or errno.EIO, why) from None
                concerned = ordered[failed] if verdict != Verdict.BAD_FIXUP and failed < len(ordered) else None
                every = {write.address: Verdict(byte) for write, byte in zip(ordered, reasons.raw, strict=True) if byte}
                raise BatchRefused(failure.errno or errno.EIO, Verdict(verdict), concerned, every) from None
            *_, now_tried, stopped, _ = layout.BATCH.unpack(batch)
            return Applied(tried + now_tried, stopped)

    def changes(self) -> list[Write]:
        """Return the writes in force, of all clients, in ascending order."""
        size, room, count = layout.WRITE.size, 0, self.live
        found = ctypes.create_string_buffer(0)
        while room < count:
            room = count
            found = ctypes.create_string_buffer(size * room)
            count = self._ask("list writes", layout.LIST, layout.CHANGES, ctypes.addressof(found), room, 0)[2]
        return [Write.unpacked(found.raw[at : at + size]) for at in range(0, count * size, size)]

    def disinherit(self) -> None:
        """Leave to the parent, in a child that has just been forked, what is the parent's alone.

        The driver lets none but the process that has opened it call, and a child has none of the mappings: where they
        would be there is memory of the child's own, all zero, for those who read their views once more.
        """
        for address, size in self._mapped:
            gateway.map_zeros_at(address, size)
        self._inherited = True
        self.close()

    def _info(self) -> tuple[int, ...]:
        return self._ask("tell of its driver", layout.GET_INFO, layout.INFO, 0, 0, 0, 0, 0)

    def _ask(self, what: str, request: int, form: struct.Struct, *values: int) -> tuple[int, ...]:
        if self._inherited:
            raise TargetError("this session in the kernel is of the process that this one was forked from")
        answer = bytearray(form.pack(*values))
        try:
            gateway.ioctl(self._fd, request, answer)
        except OSError as failure:
            raise KernelRefused(what, failure.errno or errno.EIO) from None
        return form.unpack(answer)


_open: "weakref.WeakSet[Driver]" = weakref.WeakSet()


def _disinherit() -> None:
    for each in list(_open):
        each.disinherit()


os.register_at_fork(after_in_child=_disinherit)


def _copy(fixup: Fixup) -> int:
    return fixup.copy
