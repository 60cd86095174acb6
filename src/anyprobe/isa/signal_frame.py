"""Where the kernel's signal frame has what: ``struct ucontext`` and ``siginfo_t`` as a handler gets them (rdx, rsi)."""

LINK = 8
"""A pointer that the kernel clears in each frame."""
STACK, STACK_SIZE = 16, 32
"""Where the alternate stack begins, and its size: 0 if there is none."""
R8, R9, R10, R11, R12, R13, R14, R15 = range(40, 104, 8)
RDI, RSI, RBP, RBX, RDX, RAX, RCX, RSP, RIP = range(104, 176, 8)
REGISTERS = R8
"""Where the saved registers begin."""
EFLAGS, TRAPNO, CR2, SIGMASK = 176, 200, 216, 296
BYTES = 304
"""How far after the ``ucontext`` the ``siginfo`` is."""
SI_CODE = 8
STATUS_FLAGS = 0x8D5
"""OF SF ZF AF PF CF, in the saved flags."""
