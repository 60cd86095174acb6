"""What the kernel does for signals: frames put up for handlers, and taken down when these return."""

import struct
from typing import TYPE_CHECKING

from anyprobe.splice.userspace.trap_handler import SignalAction
from anyprobe.target.remote import frame
from anyprobe.target.remote.gadgets import Gadgets
from anyprobe.target.system.ptrace import Registers
from support.simulated.threads import NOT_IN_A_CALL, RED_ZONE, SimulatedThread

if TYPE_CHECKING:
    from support.simulated.target import SimulatedTarget

RETURN_NUMBER = 15
SI_KERNEL = 0x80
_STATE_BYTES = 576
_REGISTERS_AT = 40
_NAMES = ("r8", "r9", "r10", "r11", "r12", "r13", "r14", "r15", "rdi", "rsi", "rbp", "rbx", "rdx", "rax", "rcx", "rsp",
          "rip", "eflags")  # fmt: skip
_HEAD_BYTES, _INFO_BYTES = 8 + 0x130, 128
"""The restorer's address and the ``ucontext``, then the ``siginfo``: so the kernel lays them out."""


def enter_handler(target: "SimulatedTarget", thread: SimulatedThread, signal: int, code: int = SI_KERNEL) -> None:
    """Have a thread begin with the handler of a signal, which the target must have."""
    action = SignalAction.unpack(target.actions[signal])
    assert action.is_handler, f"signal {signal} ends the program"
    thread.awaited.discard(signal)
    registers = thread.actual.copy()
    gadgets = Gadgets(0, action.restorer)
    above, content = frame.build(registers.rsp - RED_ZONE, registers, bytes(_STATE_BYTES), 0, gadgets)
    start = above - _INFO_BYTES & ~15 | 8  # as after a call; the vector registers' state stays where it is, above
    info = struct.pack("<iii", signal, 0, code).ljust(_INFO_BYTES, b"\0")
    target.mem.write(above, content)
    target.mem.write(start, content[:_HEAD_BYTES] + info)
    registers.rdi, registers.rsi, registers.rdx = signal, start + _HEAD_BYTES, start + 8
    registers.rip, registers.rsp = action.handler, start
    thread.actual = registers
    thread.load_registers()


def return_from_handler(target: "SimulatedTarget", thread: SimulatedThread) -> None:
    """Give a thread that has called ``rt_sigreturn`` the registers of the frame that it stands on."""
    registers: Registers = thread.actual.copy()
    values = struct.unpack(f"<{len(_NAMES)}Q", target.mem.read(registers.rsp + _REGISTERS_AT, 8 * len(_NAMES)))
    for name, value in zip(_NAMES, values, strict=True):
        setattr(registers, name, value)
    registers.orig_rax = NOT_IN_A_CALL
    thread.actual = registers
    thread.load_registers()
