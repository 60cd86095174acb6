"""``regs``: the registers of a hit by the names of the kernel's ``struct pt_regs``."""

from anyprobe.handlers.frontend.values import Alias

_NAMES = {
    "r15": "r15", "r14": "r14", "r13": "r13", "r12": "r12", "bp": "rbp", "bx": "rbx", "r11": "r11", "r10": "r10",
    "r9": "r9", "r8": "r8", "ax": "rax", "cx": "rcx", "dx": "rdx", "si": "rsi", "di": "rdi", "sp": "rsp",
    "flags": "rflags",
}  # fmt: skip
_USER_SEGMENTS, _KERNEL_SEGMENTS = (0x33, 0x2B), (0x10, 0x18)
"""Selectors of code and stack."""
_NO_SYSTEM_CALL = -1


def _registers(ip: Alias, *, kernel: bool = False, **others: Alias) -> type:
    content: dict[str, object] = {name: Alias(("regs", register)) for name, register in _NAMES.items()}
    segments = _KERNEL_SEGMENTS if kernel else _USER_SEGMENTS
    content |= dict(zip(("cs", "ss"), segments, strict=True)) | {"orig_ax": _NO_SYSTEM_CALL, "ip": ip}
    return type("pt_regs", (), content | others)


CALLER = Alias(("caller",))
"""The return address, where ``sp`` points at it."""
REGISTERS = _registers(Alias(("regs", "rip")))
"""``regs`` of a handler at an instruction: ``ip`` is its address, after it where control goes."""
REGISTERS_AT_RETURN = _registers(CALLER, ax=Alias(("retval",)))
"""``regs`` where a function returns: ``ip`` is the return address, and not to be changed; where the function ends in a
jump to another one, there is no ``ax`` yet."""
KERNEL_REGISTERS = _registers(Alias(("regs", "rip")), kernel=True)
"""``regs`` of a handler in the kernel; none of them may be changed."""
KERNEL_REGISTERS_AT_RETURN = _registers(CALLER, kernel=True, ax=Alias(("retval",)))
SPLICED_REGISTERS = _registers(Alias(("ip",)), kernel=True)
"""``regs`` of a handler that a splice of the kernel runs: the same, but nothing has saved them."""
PROCESSOR = type("processor", (), {"number": Alias(("cpu",))})
TASK = type("task_struct", (), {"pid": Alias(("tid",)), "tgid": Alias(("pid",)), "comm": Alias(("comm",))})
"""``ri.task``: ``pid`` is the thread's number, as in the kernel."""
