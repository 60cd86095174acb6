"""The generated SIGTRAP handler: finds the site in a table and has the thread continue in the site's patch.

It is entered as the kernel enters any handler: rdi is the signal, rsi the ``siginfo_t``, rdx the ``ucontext_t``, and
``[rsp]`` the restorer. The return through the restorer brings back every register, rip as it was set here, so there is
never a single step. No lock, no thread-local storage, and at most 32 bytes of stack below the kernel's frame, which
itself lies below the red zone. All signals are blocked in it, so that no handler of the program runs on top of it: such
a one could meet a trap with SIGTRAP blocked, or pile frame upon frame.

An ``int3`` of ours shows as a signal from the kernel with rip one byte behind a site of the table. Everything else
belongs to somebody else and is passed on: to the program's own handler by a jump, so that it returns as if the kernel
had called it; where there is none, the default action is restored and the same signal raised again, so that the program
dies where and as it would have.

Another thread may send SIGTRAP to this one at the moment of a trap; the kernel then merges the two and keeps the
sender's. rip still tells, except where a thread can also come to the byte behind the site without a trap
(``AMBIGUOUS``); such sites are refused where the program uses SIGTRAP.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass

from anyprobe.isa.assemble import Assembler

SIGTRAP = 5
TRAP_BIT = 1 << (SIGTRAP - 1)
SA_RESTART, SA_RESETHAND = 0x10000000, 0x80000000
SA_SIGINFO, _SA_RESTORER, _SA_ONSTACK, _ALL_SIGNALS = 4, 0x04000000, 0x08000000, (1 << 64) - 1
SIG_DFL, SIG_IGN = 0, 1
AMBIGUOUS = 1
"""Flag in a patch's address (patches are aligned): the byte behind the site is an instruction too."""

_TABLE, _OLD, _DEFAULT, _CODE = 0, 8, 40, 128
_UC_RIP, _UC_SIGMASK = struct.pack("<I", 0xA8), struct.pack("<I", 0x128)
_SI_KERNEL = struct.pack("<I", 0x80)
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
    """Of its words; the first is the table's address."""
    content: bytes
    entry: int
    restorer: int
    listing: str

    @property
    def end(self) -> int:
        """Address behind its code."""
        return self.address + len(self.content)

    def action(self, old: SignalAction) -> SignalAction:
        """Return the action that makes it the handler; calls that others' signals interrupt restart as before."""
        restart = SA_RESTART if not old.is_handler else old.flags & SA_RESTART
        return SignalAction(self.entry, SA_SIGINFO | _SA_RESTORER | _SA_ONSTACK | restart, self.restorer, _ALL_SIGNALS)

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
    """Return the handler for ``address`` with an empty table behind its code and the default action before it."""
    asm = Assembler()
    _find_site(asm, address)
    _pass_on(asm, address)
    asm.label("restorer")  # unwinders know these very bytes
    asm.emit(b"\x48\xc7\xc0\x0f\x00\x00\x00", "mov rax, SYS_rt_sigreturn")
    asm.emit(b"\x0f\x05", "syscall")
    start = address + _CODE
    code = asm.finish(start)
    code += bytes(-len(code) % 16)
    content = struct.pack("<Q", start + len(code)).ljust(_CODE, b"\0") + code + pack_table({})
    return TrapHandler(address, content, start, start + asm.offset_of("restorer"), asm.listing(start))


def _find_site(asm: Assembler, words: int) -> None:
    """Emit the search: on a hit rip becomes the patch's address."""
    asm.emit(b"\x4c\x8b\x82" + _UC_RIP, "mov r8, [rdx+UC_RIP]")
    asm.emit(b"\x49\xff\xc8", "dec r8")
    asm.relative(b"\x4c\x8b\x0d", 4, b"", words + _TABLE, "mov r9, [table]")
    asm.emit(b"\x31\xc0", "xor eax, eax")
    asm.emit(b"\x49\x8b\x09", "mov rcx, [r9]")
    asm.emit(b"\x49\x83\xc1\x10", "add r9, 16")
    asm.label("search")
    asm.emit(b"\x48\x39\xc8", "cmp rax, rcx")
    asm.jump(b"\x0f\x83", "foreign", "jae foreign")
    asm.emit(b"\x4c\x8d\x14\x08", "lea r10, [rax+rcx]")
    asm.emit(b"\x49\xd1\xea", "shr r10, 1")
    asm.emit(b"\x4d\x89\xd3", "mov r11, r10")
    asm.emit(b"\x49\xc1\xe3\x04", "shl r11, 4")
    asm.emit(b"\x4f\x39\x04\x19", "cmp [r9+r11], r8")
    asm.jump(b"\x74", "found", "je found")
    asm.jump(b"\x77", "above", "ja above")
    asm.emit(b"\x49\x8d\x42\x01", "lea rax, [r10+1]")
    asm.jump(b"\xeb", "search", "jmp search")
    asm.label("above")
    asm.emit(b"\x4c\x89\xd1", "mov rcx, r10")
    asm.jump(b"\xeb", "search", "jmp search")
    asm.label("found")
    asm.emit(b"\x4b\x8b\x44\x19\x08", "mov rax, [r9+r11+8]")
    asm.emit(b"\x8b\x4e\x08", "mov ecx, [rsi+SI_CODE]")
    asm.emit(b"\x81\xf9" + _SI_KERNEL, "cmp ecx, SI_KERNEL")
    asm.jump(b"\x74", "take", "je take")
    asm.emit(b"\xa8\x01", "test al, AMBIGUOUS")
    asm.jump(b"\x75", "foreign", "jnz foreign")
    asm.label("take")
    asm.emit(b"\x48\x83\xe0\xfe", "and rax, ~AMBIGUOUS")
    asm.emit(b"\x48\x89\x82" + _UC_RIP, "mov [rdx+UC_RIP], rax")
    asm.emit(b"\x81\xf9" + _SI_KERNEL, "cmp ecx, SI_KERNEL")
    asm.jump(b"\x75", "foreign", "jne foreign")  # somebody's signal, merged with our trap
    asm.emit(b"\xc3", "ret")


def _pass_on(asm: Assembler, words: int) -> None:
    """Emit what becomes of a SIGTRAP that is not ours; registers and stack are as at the handler's entry."""
    old_handler, old_restorer, old_mask = words + _OLD, words + _OLD + 16, words + _OLD + 24
    asm.label("foreign")
    asm.relative(b"\x48\x8b\x05", 4, b"", old_handler, "mov rax, [old handler]")
    asm.emit(b"\x48\x83\xf8\x01", "cmp rax, SIG_IGN")
    asm.jump(b"\x77", "theirs", "ja theirs")
    asm.jump(b"\x72", "default", "jb default")
    asm.emit(b"\x83\x7e\x08\x00", "cmp dword [rsi+SI_CODE], 0")
    asm.jump(b"\x7f", "default", "jg default")  # what the kernel forces cannot be ignored
    asm.emit(b"\xc3", "ret")

    asm.label("theirs")
    asm.emit(b"\x57\x56\x52", "push rdi; push rsi; push rdx")
    asm.emit(b"\x48\x8b\x82" + _UC_SIGMASK, "mov rax, [rdx+UC_SIGMASK]")
    asm.relative(b"\x48\x0b\x05", 4, b"", old_mask, "or rax, [old mask]")
    asm.emit(b"\x50", "push rax")
    asm.emit(b"\xb8\x0e\x00\x00\x00", "mov eax, SYS_rt_sigprocmask")
    asm.emit(b"\xbf\x02\x00\x00\x00", "mov edi, SIG_SETMASK")
    asm.emit(b"\x48\x89\xe6", "mov rsi, rsp")
    asm.emit(b"\x31\xd2", "xor edx, edx")
    asm.emit(b"\x41\xba\x08\x00\x00\x00", "mov r10d, 8")
    asm.emit(b"\x0f\x05", "syscall")
    asm.emit(b"\x58\x5a\x5e\x5f", "pop rax; pop rdx; pop rsi; pop rdi")
    asm.relative(b"\x48\x8b\x05", 4, b"", old_restorer, "mov rax, [old restorer]")
    asm.emit(b"\x48\x85\xc0", "test rax, rax")
    asm.jump(b"\x74", "enter", "jz enter")
    asm.emit(b"\x48\x89\x04\x24", "mov [rsp], rax")
    asm.label("enter")
    asm.emit(b"\x31\xc0", "xor eax, eax")
    asm.relative(b"\xff\x25", 4, b"", old_handler, "jmp [old handler]")

    asm.label("default")
    emit_raise_again(asm, words + _DEFAULT)


def emit_raise_again(asm: Assembler, default: int) -> None:
    """Emit: the signal edi has its default action again, whose words are at ``default``, and is raised once more.

    It stays blocked until the handler's return: it hits the program, not this code.
    """
    asm.emit(b"\x56\x57", "push rsi; push rdi")
    asm.emit(b"\xb8\x0d\x00\x00\x00", "mov eax, SYS_rt_sigaction")
    asm.relative(b"\x48\x8d\x35", 4, b"", default, "lea rsi, [SIG_DFL]")
    asm.emit(b"\x31\xd2", "xor edx, edx")
    asm.emit(b"\x41\xba\x08\x00\x00\x00", "mov r10d, 8")
    asm.emit(b"\x0f\x05", "syscall")
    asm.emit(b"\xb8\x27\x00\x00\x00", "mov eax, SYS_getpid")
    asm.emit(b"\x0f\x05", "syscall")
    asm.emit(b"\x89\xc7", "mov edi, eax")
    asm.emit(b"\xb8\xba\x00\x00\x00", "mov eax, SYS_gettid")
    asm.emit(b"\x0f\x05", "syscall")
    asm.emit(b"\x89\xc6", "mov esi, eax")
    asm.emit(b"\x5a\x41\x5a", "pop rdx; pop r10")
    asm.emit(b"\xb8\x29\x01\x00\x00", "mov eax, SYS_rt_tgsigqueueinfo")
    asm.emit(b"\x0f\x05", "syscall")
    asm.emit(b"\xc3", "ret")
