"""Threads of a simulated target: registers and what the kernel would know of each."""

from anyprobe.target.system.ptrace import Registers

NOT_IN_A_CALL = (1 << 64) - 1
RED_ZONE = 128


class SimulatedThread:
    """A thread that stands still unless the machine runs it."""

    def __init__(self, pid: int, tid: int, registers: Registers) -> None:
        """Begin with some registers."""
        self.pid, self.tid = pid, tid
        self.registers = registers
        """What a controller sees, and changes."""
        self.actual = registers.copy()
        """What it goes on with."""
        self.awaited: set[int] = set()
        """Signals that it is about to be given."""
        self.blocked: set[int] = set()
        self.vectors: bytes = b""
        """Registers of other kinds, as the emulator keeps them."""

    def load_registers(self) -> None:
        """See the registers as they are."""
        self.registers = self.actual.copy()

    def store_registers(self) -> None:
        """Have the thread go on with the registers as they were changed."""
        self.actual = self.registers.copy()

    def awaits(self, *signals: int) -> bool:
        """Return whether it is about to be given one of these signals."""
        return not self.awaited.isdisjoint(signals)

    def awaits_trap(self) -> bool:
        """Return whether it has met an ``int3`` and the signal for it is still to come."""
        return self.awaits(5)

    def blocks(self, signal: int) -> bool:
        """Return whether it blocks a signal."""
        return signal in self.blocked
