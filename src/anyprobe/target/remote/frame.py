"""The signal frame that lets a thread finish an injected system call alone (docs/safety.md, rule 1).

It is what the kernel would have pushed for a signal at this point, so that returning into the restorer brings back
every register, the extended state and the signal mask, with or without a controller.
"""

import struct

from anyprobe.target.remote.gadgets import Gadgets
from anyprobe.target.system.ptrace import Registers

_MAGIC1, _MAGIC2 = 0x46505853, 0x46505845
_SOFTWARE_BYTES = 464  # of the 512 bytes of FXSAVE, 48 are for software; XCR0 is at their start in a ptrace image
_COMPONENTS = 512
"""Where in it stands which components are not as they are at first (XSTATE_BV)."""
_TILE_DATA = 1 << 18
_TILE_DATA_BYTES = 8192
_UC_FLAGS = 7  # UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS
_INVALID_STACK_FLAGS = 0x55  # sigaltstack(2) refuses it, so the alternate stack stays as it is
_WORDS = 39
_SYS_RT_SIGRETURN = 15
RED_ZONE = 128
ROOM = 16384
"""What must be free below the red zone."""


def build(top: int, registers: Registers, extended: bytes, mask: int, gadgets: Gadgets) -> tuple[int, bytes]:
    """Return where the frame goes below ``top``, and its bytes; its first word is the restorer.

    Without a restorer, two words before it load the number of the signal return before a ``syscall``.
    """
    size = len(extended)
    fpstate = (top - size - 4) & ~63
    state = bytearray(extended)
    features = struct.unpack_from("<Q", extended, _SOFTWARE_BYTES)[0]
    own = _own_size(extended, features)
    struct.pack_into("<IIQI28x", state, _SOFTWARE_BYTES, _MAGIC1, own + 4, features, own)
    state += struct.pack("<I", _MAGIC2)
    struct.pack_into("<I", state, own, _MAGIC2)
    start = ((fpstate - 8 * _WORDS) & ~15) - 8  # as after a call: 16-byte aligned when the restorer is entered
    r = registers
    head = struct.pack(
        f"<{_WORDS}Q",
        gadgets.restorer or gadgets.syscall_ret,
        _UC_FLAGS, 0,
        0, _INVALID_STACK_FLAGS, 0,
        r.r8, r.r9, r.r10, r.r11, r.r12, r.r13, r.r14, r.r15, r.rdi, r.rsi, r.rbp, r.rbx, r.rdx, r.rax, r.rcx, r.rsp,
        r.rip, r.eflags, r.cs & 0xFFFF | (r.ss & 0xFFFF) << 48,
        0, 0, 0, 0, fpstate,
        *[0] * 8,
        mask,
    )  # fmt: skip
    content = head + bytes(fpstate - start - len(head)) + bytes(state)
    if gadgets.restorer:
        return start, content
    return start - 16, struct.pack("<QQ", gadgets.pop_rax, _SYS_RT_SIGRETURN) + content


def _own_size(extended: bytes, features: int) -> int:
    """Return how much of its state the thread itself may have in a frame.

    AMX's tile data comes last, and only threads that have asked for it (``ARCH_REQ_XCOMP_PERM``) and use it have
    room for it in the kernel: all but SSE would be lost on return from a frame that is larger. Kernels before 6.8 go by
    the size that the frame names, later ones look for the second magic word where the thread's state ends, which for
    one that has used tiles before is after them; so there is one in both places.
    """
    used = struct.unpack_from("<Q", extended, _COMPONENTS)[0]
    has_none = features & _TILE_DATA and not used & _TILE_DATA
    return len(extended) - _TILE_DATA_BYTES if has_none else len(extended)


def fits(top: int, start: int) -> bool:
    """Return whether the frame stayed within the room that was checked."""
    return top - start <= ROOM
