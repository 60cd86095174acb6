"""The generated SIGTRAP handler: finds the site in a table and has the thread continue in the site's patch.

It is entered as the kernel enters any handler: rdi is the signal, rsi the ``siginfo_t``, rdx the ``ucontext_t``, and
``[rsp]`` the restorer. The return through the restorer brings back every register, rip as it was set here, so there is
never a single step. No lock, no thread-local storage, and at most 32 bytes of stack below the kernel's frame, which
itself lies below the red zone. All signals are blocked in it, so that no handler of the program runs on top of it: such
a one could meet a trap with SIGTRAP blocked, or pile frame upon frame.

An ``int3`` of anyprobe's shows as a signal from the kernel with rip one byte after a site of the table. Everything else
belongs to the program and is passed on: to the program's own handler by a jump, so that it returns as if the kernel
had called it; where there is none, the default action is restored and the same signal raised again, so that the program
dies where and as it would have.

Another thread may send SIGTRAP to this one at the moment of a trap; the kernel then merges the two and keeps the
sender's. rip still tells, except where a thread can also come to the byte after the site without a trap
(``AMBIGUOUS``); such sites are refused where the program uses SIGTRAP.
"""

import signal
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from anyprobe.isa import signal_frame as uc
from anyprobe.isa.assemble import Assembler

SIGTRAP = 5
RESTORER = "mov rax, 15; syscall"
"""``rt_sigreturn``, in the very bytes that unwinders know a restorer by."""
_SYS_RT_SIGACTION, _SYS_RT_SIGPROCMASK, _SYS_GETPID, _SYS_GETTID, _SYS_RT_TGSIGQUEUEINFO = 13, 14, 39, 186, 297
TRAP_BIT = 1 << (SIGTRAP - 1)
SA_RESTART, SA_RESETHAND = 0x10000000, 0x80000000
SA_SIGINFO, _SA_RESTORER, SA_ONSTACK, _ALL_SIGNALS = 4, 0x04000000, 0x08000000, (1 << 64) - 1
SIG_DFL, SIG_IGN = 0, 1
AMBIGUOUS = 1
"""Flag in a patch's address (patches are aligned): the byte after the site is an instruction too."""

_TABLE, _OLD, _DEFAULT, _CODE = 0, 8, 40, 128
_SI_KERNEL = 0x80
_ACTION = struct.Struct("<QQQQ")
_ENTRY = struct.Struct("<QQ")
_HEADER_BYTES = 16


@dataclass(frozen=True, slots=True)
class SignalAction:
    """A signal's action as the kernel keeps it (``struct kernel_sigaction``)."""

    handler: int
    flags: int
    restorer: int
    mask: int

    SIZE = _ACTION.size

    def pack(self) -> bytes:
        """Return it as rt_sigaction takes it."""
        return _ACTION.pack(self.handler, self.flags, self.restorer, self.mask)

    @classmethod
    def unpack(cls, raw: bytes) -> "SignalAction":
        """Read what rt_sigaction wrote."""
        return cls(*_ACTION.unpack(raw))

    @property
    def is_handler(self) -> bool:
        """Whether it is a function of the program."""
        return self.handler not in (SIG_DFL, SIG_IGN)


@dataclass(frozen=True, slots=True)
class TrapHandler:
    """The handler placed at an address: its words and code, and where it begins."""

    address: int
    """Address of its words; the first is the table's address."""
    content: bytes
    entry: int
    restorer: int
    listing: str

    @property
    def end(self) -> int:
        """Address after its code."""
        return self.address + len(self.content)

    def action(self, old: SignalAction) -> SignalAction:
        """Return the action that makes it the handler; calls that others' signals interrupt restart as before."""
        restart = SA_RESTART if not old.is_handler else old.flags & SA_RESTART
        return SignalAction(self.entry, SA_SIGINFO | _SA_RESTORER | SA_ONSTACK | restart, self.restorer, _ALL_SIGNALS)

    def old_action(self, old: SignalAction) -> tuple[int, bytes]:
        """Return where the action that was replaced is kept, and the bytes to write there.

        SIGTRAP itself stays open in the program's handler, since traps may be met there.
        """
        return self.address + _OLD, SignalAction(old.handler, old.flags, old.restorer, old.mask & ~TRAP_BIT).pack()


def pack_table(entries: Mapping[int, int]) -> bytes:
    """Return the table of sites and patches (with their flags), sorted by site."""
    packed = b"".join(_ENTRY.pack(site, patch) for site, patch in sorted(entries.items()))
    return struct.pack("<QQ", len(entries), 0) + packed


def table_size(entries: int) -> int:
    """Return the bytes of a table with so many sites."""
    return _HEADER_BYTES + entries * _ENTRY.size


def assemble_handler(address: int) -> TrapHandler:
    """Return the handler for ``address`` with an empty table after its code and the default action before it."""
    asm = Assembler()
    _find_site(asm, address)
    _pass_on(asm, address)
    asm.label("restorer")
    asm.code(RESTORER)
    start = address + _CODE
    code = asm.finish(start)
    code += bytes(-len(code) % 16)
    content = struct.pack("<Q", start + len(code)).ljust(_CODE, b"\0") + code + pack_table({})
    return TrapHandler(address, content, start, start + asm.offset_of("restorer"), asm.listing(start))


def _find_site(asm: Assembler, words: int) -> None:
    """Emit the search: on a hit rip becomes the patch's address."""
    asm.code(
        f"""
            mov r8, [rdx+{uc.RIP}]; dec r8
            mov r9, [rel table]
            xor eax, eax; mov rcx, [r9]; add r9, 16
        search:
            cmp rax, rcx; jae foreign
            lea r10, [rax+rcx]; shr r10, 1
            mov r11, r10; shl r11, 4
            cmp [r9+r11], r8; je short found
            ja short above
            lea rax, [r10+1]; jmp short search
        above:
            mov rcx, r10; jmp short search
        found:
            mov rax, [r9+r11+8]
            mov ecx, [rsi+{uc.SI_CODE}]
            cmp ecx, {_SI_KERNEL}; je short take
            test al, {AMBIGUOUS}; jnz short foreign
        take:
            and rax, {~AMBIGUOUS}
            mov [rdx+{uc.RIP}], rax
            cmp ecx, {_SI_KERNEL}; jne short foreign  # a signal that was sent, merged with our trap
            ret
        """,
        table=words + _TABLE,
    )


def _pass_on(asm: Assembler, words: int) -> None:
    """Emit what becomes of a SIGTRAP that is not anyprobe's; registers and stack are as at the handler's entry."""
    old_handler, old_restorer, old_mask = words + _OLD, words + _OLD + 16, words + _OLD + 24
    asm.code(
        f"""
        foreign:
            mov rax, [rel old_handler]
            cmp rax, {SIG_IGN}; ja short theirs
            jb short default
            cmp dword [rsi+{uc.SI_CODE}], 0
            jg short default  # what the kernel forces cannot be ignored
            ret
        theirs:
            push rdi; push rsi; push rdx
            mov rax, [rdx+{uc.SIGMASK}]
            or rax, [rel old_mask]
            push rax
            mov eax, {_SYS_RT_SIGPROCMASK}; mov edi, {signal.SIG_SETMASK}
            mov rsi, rsp; xor edx, edx; mov r10d, 8; syscall
            pop rax; pop rdx; pop rsi; pop rdi
            mov rax, [rel old_restorer]
            test rax, rax; jz short enter
            mov [rsp], rax
        enter:
            xor eax, eax; jmp qword [rel old_handler]
        default:
        """,
        old_handler=old_handler,
        old_mask=old_mask,
        old_restorer=old_restorer,
    )
    emit_raise_again(asm, words + _DEFAULT)


def emit_raise_again(asm: Assembler, default: int) -> None:
    """Emit: the signal edi has its default action again, whose words are at ``default``, and is raised once more.

    It stays blocked until the handler's return: it hits the program, not this code.
    """
    asm.code(
        f"""
            push rsi; push rdi
            mov eax, {_SYS_RT_SIGACTION}; lea rsi, [rel sig_dfl]
            xor edx, edx; mov r10d, 8; syscall
            mov eax, {_SYS_GETPID}; syscall; mov edi, eax
            mov eax, {_SYS_GETTID}; syscall; mov esi, eax
            pop rdx; pop r10
            mov eax, {_SYS_RT_TGSIGQUEUEINFO}; syscall; ret
        """,
        sig_dfl=default,
    )
