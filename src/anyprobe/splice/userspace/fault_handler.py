"""The generated handler for a signal of faults that the program leaves to its default action.

It is entered as the kernel enters any handler. The signal view's routine looks whether a probe waits for this fault;
then the handler returns at once, into the patch's landing. Any other signal is the program's: its default action is
restored and the same signal raised again, so that the program ends where and as it would have. All signals are blocked
meanwhile.
"""

from dataclasses import dataclass

from anyprobe.isa import signal_frame as uc
from anyprobe.isa.assemble import Assembler
from anyprobe.splice.userspace.trap_handler import RESTORER, SIG_IGN, SignalAction, emit_raise_again

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
    """Return the handler for ``address`` before the action ``old``; ``view``: the signal view's routine."""
    asm = Assembler()
    asm.code("lea rsp, [rsp-128]; push 0; call view; lea rsp, [rsp+136]", view=view)
    if old.handler == SIG_IGN:  # what the kernel forces cannot be ignored
        asm.code(f"cmp dword [rsi+{uc.SI_CODE}], 0; jg default; ret")
    asm.label("default")
    emit_raise_again(asm, address + FAULT_HANDLER_BYTES - SignalAction.SIZE)
    asm.label("restorer")
    asm.code(RESTORER)
    code = asm.finish(address)
    default = bytes(SignalAction.SIZE)
    content = code.ljust(FAULT_HANDLER_BYTES - len(default), b"\xcc") + default
    assert len(content) == FAULT_HANDLER_BYTES
    return FaultHandler(address, content, address + asm.offset_of("restorer"), asm.listing(address))
