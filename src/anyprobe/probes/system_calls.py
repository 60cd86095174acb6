"""The system calls that a program's own code makes: where its ``syscall`` instructions are, and with which numbers."""

from typing import TYPE_CHECKING, NamedTuple

from iced_x86 import FlowControl, Mnemonic, OpKind, Register, RegisterExt

from anyprobe.core.errors import TargetError
from anyprobe.probes.waiting.libc_places import SYSCALL, Library

if TYPE_CHECKING:
    from collections.abc import Iterator

    from iced_x86 import Instruction, Register_

    from anyprobe.binary.flow.function import FunctionCode
    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.probes.session import Session

NUMBERS = {
    "read": 0, "write": 1, "open": 2, "close": 3, "stat": 4, "lstat": 6, "mmap": 9, "mprotect": 10, "ioctl": 16,
    "access": 21, "socket": 41, "connect": 42, "accept": 43, "sendto": 44, "recvfrom": 45, "shutdown": 48, "bind": 49,
    "listen": 50, "clone": 56, "fork": 57, "vfork": 58, "execve": 59, "exit": 60, "kill": 62, "truncate": 76,
    "ftruncate": 77, "chdir": 80, "fchdir": 81, "rename": 82, "mkdir": 83, "rmdir": 84, "creat": 85, "link": 86,
    "unlink": 87, "symlink": 88, "readlink": 89, "chmod": 90, "fchmod": 91, "chown": 92, "fchown": 93, "lchown": 94,
    "ptrace": 101, "setuid": 105, "setgid": 106, "setpgid": 109, "setsid": 112, "setreuid": 113, "setregid": 114,
    "setgroups": 116, "setresuid": 117, "setresgid": 119, "setfsuid": 122, "setfsgid": 123, "capset": 126,
    "mknod": 133, "prctl": 157, "chroot": 161, "mount": 165, "umount2": 166, "sethostname": 170, "init_module": 175,
    "delete_module": 176, "tkill": 200, "exit_group": 231, "tgkill": 234, "openat": 257, "mkdirat": 258,
    "mknodat": 259, "fchownat": 260, "newfstatat": 262, "unlinkat": 263, "renameat": 264, "linkat": 265,
    "symlinkat": 266, "readlinkat": 267, "fchmodat": 268, "faccessat": 269, "unshare": 272, "accept4": 288,
    "setns": 308, "finit_module": 313, "renameat2": 316, "memfd_create": 319, "execveat": 322, "statx": 332,
    "pidfd_open": 434, "clone3": 435, "openat2": 437, "faccessat2": 439,
}  # fmt: skip
"""System calls of x86-64 that are known by name."""
_CONSTANTS = frozenset({OpKind.IMMEDIATE32, OpKind.IMMEDIATE32TO64})
_ONLY_READS = frozenset({Mnemonic.TEST, Mnemonic.CMP, Mnemonic.PUSH, Mnemonic.BT})
_ODD = frozenset({Mnemonic.CPUID, Mnemonic.RDTSC, Mnemonic.RDTSCP, Mnemonic.XGETBV, Mnemonic.CMPXCHG, Mnemonic.CDQE,
                  Mnemonic.MUL, Mnemonic.DIV, Mnemonic.IDIV, Mnemonic.LAHF})  # fmt: skip
"""Instructions that change registers which are none of their first operands."""
_CHANGED_BY_SOME = frozenset({Register.RAX, Register.RBX, Register.RCX, Register.RDX})
_NO_WAY_ON = frozenset({FlowControl.UNCONDITIONAL_BRANCH, FlowControl.INDIRECT_BRANCH, FlowControl.RETURN})
_CALLS = frozenset({FlowControl.CALL, FlowControl.INDIRECT_CALL, FlowControl.INTERRUPT})
"""System calls are among them."""
_CHANGED_BY_KERNEL = frozenset({Register.RAX, Register.RCX, Register.R11})
_KEPT = frozenset({Register.RBX, Register.RBP, Register.R12, Register.R13, Register.R14, Register.R15})


class SystemCall(NamedTuple):
    """One ``syscall`` instruction."""

    spec: str
    numbers: frozenset[int]
    """Which calls it may make; none where the code does not say, as in ``syscall(3)``."""


def system_calls(session: "Session", *, known: "set[str]") -> list[SystemCall]:
    """Return all ``syscall`` instructions in a program's code.

    Args:
        session: the program's.
        known: the paths of objects that were looked at before; those that are looked at now are added.
    """
    found: list[SystemCall] = []
    for loaded in session.objects.objects:
        if loaded.path in known or loaded.path.startswith("["):  # the vdso makes calls for the C library's alone
            continue
        try:
            found += _in_object(session, loaded)
        except TargetError:  # an object that cannot be read has no functions that could be probed
            continue
        known.add(loaded.path)
    return found


def _in_object(session: "Session", loaded: "LoadedObject") -> "Iterator[SystemCall]":
    library, image = Library(session, loaded), loaded.image
    starts: dict[int, None] = {}
    for part in image.code_ranges:
        text = image.read(part.start, part.end - part.start)
        at = text.find(SYSCALL)
        while at >= 0:
            function = image.functions.containing(part.start + at)
            if function is not None:
                starts[function.start] = None
            at = text.find(SYSCALL, at + 1)
    for start in starts:
        code = library.code(start)
        if code is not None:
            for place, address in enumerate(code.addresses):
                if code.raw_at(place) == SYSCALL:
                    yield SystemCall(library.spec(start, address - start), frozenset(_numbers(code, place) or ()))


def _numbers(code: "FunctionCode", place: int) -> set[int] | None:
    """Return the numbers that may be in ``rax`` at a ``syscall``, on whatever way that is reached; None: any."""
    found: set[int] = set()
    ways: list[tuple[int, Register_]] = [(place, Register.RAX)]
    seen = set(ways)
    while ways:
        at, register = ways.pop()
        address = code.addresses[at]
        before = list(code.branches_to(address))  # none, and nothing above: padding, which does not run
        if address in code.leaders and not before and not _follows_call(code, at):
            return None  # something leads here of which it is not known where it comes from
        if at and code.one(at - 1).flow_control not in _NO_WAY_ON:
            before.append(at - 1)
        if not before and at == 0:
            return None
        for each in before:
            wanted = _sought(code.one(each), register)
            if wanted is None:
                return None
            if isinstance(wanted, _Constant):
                found.add(wanted.value)
            elif (each, wanted) not in seen:
                seen.add((each, wanted))
                ways.append((each, wanted))
    return found


class _Constant(NamedTuple):
    value: int


def _sought(one: "Instruction", register: "Register_") -> "Register_ | _Constant | None":
    """Return what holds, before an instruction, what a register has after it; None where that is not known."""
    if one.mnemonic == Mnemonic.SYSCALL:
        return None if register in _CHANGED_BY_KERNEL else register
    if one.flow_control in _CALLS:
        return register if register in _KEPT else None
    if not one.op_count or one.op0_kind != OpKind.REGISTER or one.mnemonic in _ONLY_READS:
        return None if one.mnemonic in _ODD and register in _CHANGED_BY_SOME else register
    own = one.op0_register
    if not RegisterExt.is_gpr(own) or RegisterExt.full_register(own) != register:
        return register
    if one.mnemonic == Mnemonic.MOV and one.op1_kind in _CONSTANTS:
        return _Constant(one.immediate(1) & 0xFFFF_FFFF)
    if one.mnemonic == Mnemonic.MOV and one.op1_kind == OpKind.REGISTER and RegisterExt.size(own) >= 4:
        return RegisterExt.full_register(one.op1_register)
    if one.mnemonic == Mnemonic.XOR and one.op1_kind == OpKind.REGISTER and one.op1_register == own:
        return _Constant(0)
    return None


def _follows_call(code: "FunctionCode", at: int) -> bool:
    return at > 0 and code.one(at - 1).flow_control in _CALLS
