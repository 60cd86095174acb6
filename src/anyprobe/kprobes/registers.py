"""``regs``: the registers of a hit by the names of the kernel's ``struct pt_regs``."""

from anyprobe.handlers.frontend.values import Alias

_NAMES = {
    "r15": "r15", "r14": "r14", "r13": "r13", "r12": "r12", "bp": "rbp", "bx": "rbx", "r11": "r11", "r10": "r10",
    "r9": "r9", "r8": "r8", "ax": "rax", "cx": "rcx", "dx": "rdx", "si": "rsi", "di": "rdi", "sp": "rsp",
    "flags": "rflags",
}  # fmt: skip
_USER_CODE_SEGMENT, _USER_STACK_SEGMENT = 0x33, 0x2B
_NO_SYSTEM_CALL = -1


def _registers(ip: Alias, **others: Alias) -> type:
    content: dict[str, object] = {name: Alias(("regs", register)) for name, register in _NAMES.items()}
    content |= {"cs": _USER_CODE_SEGMENT, "ss": _USER_STACK_SEGMENT, "orig_ax": _NO_SYSTEM_CALL, "ip": ip}
    return type("pt_regs", (), content | others)


CALLER = Alias(("caller",))
"""The return address, where ``sp`` points at it."""
REGISTERS = _registers(Alias(("regs", "rip")))
"""``regs`` of a handler at an instruction: ``ip`` is its address, after it where control goes."""
REGISTERS_AT_RETURN = _registers(CALLER, ax=Alias(("retval",)))
"""``regs`` where a function returns: ``ip`` is the return address, and not to be changed; where the function ends in a
jump to another one, there is no ``ax`` yet."""
PROCESSOR = type("processor", (), {"number": Alias(("cpu",))})
TASK = type("task_struct", (), {"pid": Alias(("tid",)), "tgid": Alias(("pid",)), "comm": Alias(("comm",))})
"""``ri.task``: ``pid`` is the thread's number, as in the kernel."""
