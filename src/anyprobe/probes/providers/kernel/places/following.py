"""The place after an instruction of the kernel, if that instruction alone leads there."""

from collections.abc import Callable, Iterator

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.isa.decode import Flow, Insn, decode_range
from anyprobe.target.kernel.symbols import KernelFunction, Symbols

Reader = Callable[[int, int], bytes]
"""Returns bytes of the running kernel: at an address, so many."""
_ENTRY_BYTES = 5
"""Length of the call of ftrace, or of the nop in its place."""
_BREAKPOINT = b"\xcc"
_COLD, _THUNK = ".cold", "__x86_indirect_thunk_rax"


def following(symbols: Symbols, read: Reader, function: KernelFunction, offset: int) -> int | Refusal:
    """Return the offset of the next instruction, or why a handler there would not run as often as this one is run.

    The instruction has to lead there and nowhere else, and no jump of the function or of its cold part to go there.
    """
    code = _instructions(symbols, read, function)
    first = code[0].length if code and code[0].is_endbr else 0  # a kprobe at the entry is after it
    at = offset or first
    here = next((each for each in code if each.address == at), None)
    address = function.address + offset
    if here is None:
        return Refusal(Reason.NOT_A_BOUNDARY, address, f"no instruction of {function.name} starts here")
    if here.raw[:1] == _BREAKPOINT:
        return Refusal(Reason.FOREIGN_BYTES, address, "another kprobe is here, so the instruction is not to be seen")
    calls_ftrace = at == first and here.length == _ENTRY_BYTES and here.flow in {Flow.CALL, Flow.NEXT}
    if here.flow is not Flow.NEXT and not calls_ftrace:
        detail = f"{here.text} leads to another place than the next instruction, or to several"
        return Refusal(Reason.CONTROL_FLOW_UNKNOWN, address, detail)
    for base, each in _with_cold_part(symbols, read, function, code):
        if each.flow is Flow.INDIRECT_JUMP and not symbols.named(_THUNK):  # with thunks there are no tables of jumps
            detail = f"{function.name} has jumps of which the targets are not known"
            return Refusal(Reason.CONTROL_FLOW_UNKNOWN, address, detail)
        if each.target is not None and _signed(each.target + base) == here.end:
            detail = f"what follows is reached from +{_signed(each.address + base):#x}, too"
            return Refusal(Reason.CONTROL_FLOW_UNKNOWN, address, detail)
    return here.end


def _instructions(symbols: Symbols, read: Reader, function: KernelFunction) -> list[Insn]:
    """Return the instructions of a function, at their offsets."""
    end = symbols.next_after(function)
    return decode_range(read(function.address, 0 if end is None else end - function.address), 0)


def _with_cold_part(
    symbols: Symbols, read: Reader, function: KernelFunction, code: list[Insn]
) -> Iterator[tuple[int, Insn]]:
    """Yield all instructions of the function, each with the offset to which its own is relative."""
    yield from ((0, each) for each in code)
    for cold in symbols.named(function.name + _COLD):
        if cold.module == function.module:
            base = cold.address - function.address
            yield from ((base, each) for each in _instructions(symbols, read, cold))


def _signed(offset: int) -> int:
    """Return an offset of 64 bits as a signed number."""
    offset &= (1 << 64) - 1
    return offset - (1 << 64) if offset >> 63 else offset
