"""The generated handler for a signal of faults that the program leaves to its default action.

It is entered as the kernel enters any handler. The signal view's routine looks whether a probe waits for this fault;
then the handler returns at once, into the patch's landing. Any other signal is the program's: its default action is
restored and the same signal raised again, so that the program ends where and as it would have. All signals are blocked
meanwhile.
"""

from dataclasses import dataclass

from anyprobe.isa.assemble import Assembler
from anyprobe.splice.userspace.trap_handler import SIG_IGN, SignalAction, emit_raise_again

SA_SIGINFO, SA_RESTORER, SA_ONSTACK, ALL_SIGNALS = 4, 0x04000000, 0x08000000, (1 << 64) - 1
FAULT_HANDLER_BYTES = 256
"""At most."""


@dataclass(frozen=True, slots=True)
class FaultHandler:
    """The handler placed at an address."""

    entry: int
    code: bytes
    restorer: int
    listing: str

    def action(self) -> SignalAction:
        """Return the action that makes it the handler."""
        return SignalAction(self.entry, SA_SIGINFO | SA_RESTORER | SA_ONSTACK, self.restorer, ALL_SIGNALS)


def assemble_fault_handler(address: int, view: int, old: SignalAction) -> FaultHandler:
    """Return the handler for ``address`` in front of the action ``old``; ``view``: the signal view's routine."""
    asm = Assembler()
    asm.emit(b"\x48\x8d\x64\x24\x80\x6a\x00", "lea rsp, [rsp-128]; push 0")
    asm.relative(b"\xe8", 4, b"", view, "call view")
    asm.emit(b"\x48\x8d\xa4\x24\x88\x00\x00\x00", "lea rsp, [rsp+136]")
    if old.handler == SIG_IGN:  # what the kernel forces cannot be ignored
        asm.emit(b"\x83\x7e\x08\x00", "cmp dword [rsi+SI_CODE], 0")
        asm.jump(b"\x0f\x8f", "default", "jg default")
        asm.emit(b"\xc3", "ret")
    asm.label("default")
    emit_raise_again(asm, address + FAULT_HANDLER_BYTES - SignalAction.SIZE)
    asm.label("restorer")  # unwinders know these very bytes
    asm.emit(b"\x48\xc7\xc0\x0f\x00\x00\x00", "mov rax, SYS_rt_sigreturn")
    asm.emit(b"\x0f\x05", "syscall")
    code = asm.finish(address)
    default = bytes(SignalAction.SIZE)
    content = code.ljust(FAULT_HANDLER_BYTES - len(default), b"\xcc") + default
    assert len(content) == FAULT_HANDLER_BYTES
    return FaultHandler(address, content, address + asm.offset_of("restorer"), asm.listing(address))
