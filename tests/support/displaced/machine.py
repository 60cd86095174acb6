"""A world of memory in which one instruction runs natively from a whole machine state: registers, flags, vectors.

For processes of their own only, since what runs here may do anything: signal handlers and fs are taken over. Faults are
caught and belong to the outcome.
"""

import ctypes
import mmap
import struct
from typing import NamedTuple

ENTER, LEAVE, HANDLER, RESTORER, STATE, HOST, VECTORS_IN, VECTORS_OUT, SIGNAL_STACK, ORIGINAL, DATA = (
    0x1000, 0x2000, 0x3000, 0x3100, 0x4000, 0x5000, 0x7000, 0x9000, 0xC000, 0x20800, 0x40000,
)  # fmt: skip
SIZE, CODE_SIZE, DATA_SIZE, SIGNAL_STACK_SIZE = 0x80000, 0x2000, 0x18000, 0x10000
SEGMENT, OPERAND, STACK = DATA + 0x2000, DATA + 0x8000, DATA + 0x10000
"""Where fs and gs, memory operands and rsp point."""
REGS, FLAGS, HARNESS_RSP, START, SEGMENT_BASE, HOST_FS = (STATE + at for at in (0, 0x80, 0x88, 0x90, 0x98, 0xA0))
OUT_REGS, OUT_FLAGS, WHICH, OUT_FS, SIGNAL, CODE, ADDRESS, FAULT_RIP = (
    STATE + at for at in (0x100, 0x180, 0x188, 0x190, 0x198, 0x1A0, 0x1A8, 0x1B0)
)
BEHIND, TAKEN, FAULTED = range(3)
"""How the instruction was left."""
STATUS = 0x8D5 | 0x400  # OF SF ZF AF PF CF and DF
VECTOR_SIZE = 0x1000
XSTATE_BV = 512  # of an xsave area: the mask of components that are in use
SIGNALS = {4: "SIGILL", 5: "SIGTRAP", 7: "SIGBUS", 8: "SIGFPE", 11: "SIGSEGV"}
COMPONENTS = 0xE7  # x87, SSE, AVX, opmask, ZMM_Hi256, Hi16_ZMM
_SET_FS, _GET_FS, _SET_GS = 0x1002, 0x1003, 0x1001

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_uint64
_libc.mmap.argtypes = [ctypes.c_uint64, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


class Image(NamedTuple):
    """What a run starts from."""

    regs: list[int]
    flags: int
    vectors: bytes
    data: bytes


class Outcome(NamedTuple):
    """What a run ends with."""

    which: int
    regs: list[int]
    flags: int
    fs: int
    vectors: bytes
    data: bytes
    signal: int
    code: int
    address: int
    rip: int


def map_at(address, size):
    """Map memory at an address and nowhere else; return a view of it."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x100000  # MAP_FIXED_NOREPLACE
    got = _libc.mmap(address, size, mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC, flags, -1, 0)
    if got != address:
        raise MemoryError(f"{address:#x} cannot be mapped: errno {ctypes.get_errno()}")
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


class Code:
    """Machine code under construction at an offset of the world."""

    def __init__(self, at):
        self.at, self.out = at, b""

    def raw(self, content):
        self.out += content if isinstance(content, bytes) else bytes.fromhex(content)
        return self

    def rel(self, code, target, after=b""):
        """Append an instruction that ends with a displacement to an offset of the world and an immediate."""
        code = bytes.fromhex(code)
        end = self.at + len(self.out) + len(code) + 4 + len(after)
        self.out += code + struct.pack("<i", target - end) + after
        return self

    def registers(self, opcode, base):
        for number in range(16):
            head = bytes([0x48 | (number >> 3) << 2, opcode, 5 | (number & 7) << 3]).hex()
            self.rel(head, base + 8 * number)  # mov to or from [state + 8 * number]
        return self

    def prctl(self, request, opcode, at):
        """arch_prctl(request, [at] or its address)."""
        self.raw(b"\xbf" + struct.pack("<i", request))  # mov edi, request
        return self.rel(opcode, at).raw("b89e0000000f05")  # mov/lea rsi, [at]; mov eax, 158; syscall

    def components(self):
        return self.raw(b"\xb8" + struct.pack("<i", COMPONENTS) + b"\x31\xd2")  # mov eax, COMPONENTS; xor edx, edx


def jump_to(address):
    """Return code that jumps anywhere and changes nothing."""
    return b"\xff\x25\0\0\0\0" + struct.pack("<Q", address)  # jmp [rip]; address


class Machine:
    def __init__(self, base):
        self.base = base
        self.memory = map_at(base, SIZE)
        # The last two are near, at the ends of reach; the second is not.
        places = (base + 0x200000, base + 0x2_0000_0000, base + 0x7F00_0000, base - 0x7F00_0000)
        self.copies = {place: map_at(place, 0x1000) for place in places if place > 0x10000}
        self._ask_processor()
        self._build()
        self._take_signals()
        self.enter = ctypes.CFUNCTYPE(None)(base + ENTER)

    def put(self, offset, content):
        self.memory[offset : offset + len(content)] = content

    def word(self, offset):
        return struct.unpack_from("<Q", self.memory, offset)[0]

    def _ask_processor(self):
        """Learn which vector components exist and where xsave puts them."""
        # push rbx; mov eax, 13; mov ecx, edi; mov r8, rsi; cpuid; shl rbx, 32; or rax, rbx; pop rbx; ret
        self.put(ENTER, bytes.fromhex("53b80d00000089f90fa248c1e3204809d85bc3"))
        size_and_offset = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_uint64)(self.base + ENTER)
        self.put(LEAVE, bytes.fromhex("31c90f01d0c3"))  # xor ecx, ecx; xgetbv; ret
        self.enabled = ctypes.CFUNCTYPE(ctypes.c_uint32)(self.base + LEAVE)() & COMPONENTS
        self.offsets = {n: size_and_offset(n) >> 32 for n in (2, 5, 6, 7) if self.enabled >> n & 1}

    def _build(self):
        enter = Code(ENTER).raw("53554154415541564157")  # push rbx, rbp, r12-r15
        enter.rel("488925", HARNESS_RSP).components()  # mov [harness rsp], rsp
        enter.rel("480fae25", HOST).rel("480fae2d", VECTORS_IN)  # xsave64 [host]; xrstor64 [vectors in]
        enter.prctl(_SET_FS, "488b35", SEGMENT_BASE).prctl(_SET_GS, "488b35", SEGMENT_BASE)
        enter.rel("ff35", FLAGS).raw("9d").registers(0x8B, REGS)  # push [flags]; popfq; mov reg, [state]
        self.put(ENTER, enter.rel("ff25", START).out)  # jmp [start]
        for which in range(3):
            leave = Code(LEAVE + 0x400 * which).registers(0x89, OUT_REGS)  # mov [state], reg
            leave.rel("488b25", HARNESS_RSP).raw("9c").rel("8f05", OUT_FLAGS)  # mov rsp, [..]; pushfq; pop [flags]
            leave.raw("68020200009d")  # push 0x202; popfq
            leave.rel("c705", WHICH, struct.pack("<i", which)).components()  # mov dword [which], which
            leave.rel("480fae25", VECTORS_OUT).rel("480fae2d", HOST)  # xsave64 [vectors out]; xrstor64 [host]
            leave.prctl(_GET_FS, "488d35", OUT_FS).prctl(_SET_FS, "488b35", HOST_FS)
            self.put(leave.at, leave.raw("415f415e415d415c5d5bc3").out)  # pop r15-r12, rbp, rbx; ret
        handler = Code(HANDLER).rel("893d", SIGNAL)  # mov [signal], edi
        handler.raw("8b4608").rel("8905", CODE)  # mov eax, [si_code]; mov [code], eax
        handler.raw("488b4610").rel("488905", ADDRESS)  # mov rax, [si_addr]; mov [address], rax
        handler.raw("488b82a8000000").rel("488905", FAULT_RIP)  # mov rax, [context's rip]; mov [fault rip], rax
        handler.rel("488d05", LEAVE + 0x400 * FAULTED).raw("488982a8000000")  # context's rip = leave
        self.put(HANDLER, handler.raw("4881a2b0000000fffefbffc3").out)  # and [context's flags], ~(AC | TF); ret
        self.put(RESTORER, bytes.fromhex("b80f0000000f05"))  # mov eax, rt_sigreturn; syscall
        self.put(SEGMENT_BASE, struct.pack("<Q", self.base + SEGMENT))
        if _libc.syscall(158, _GET_FS, ctypes.c_void_p(self.base + HOST_FS)):
            raise OSError("arch_prctl failed")

    def _take_signals(self):
        # SA_SIGINFO | SA_RESTORER | SA_ONSTACK | SA_NODEFER
        action = struct.pack("<4Q", self.base + HANDLER, 0x4C000004, self.base + RESTORER, 0)
        stack = struct.pack("<3Q", self.base + SIGNAL_STACK, 0, SIGNAL_STACK_SIZE)
        failed = _libc.syscall(131, stack, None)  # sigaltstack
        for signal in SIGNALS:
            failed |= _libc.syscall(13, signal, action, None, ctypes.c_size_t(8))  # rt_sigaction
        if failed:
            raise OSError("signal handlers refused")

    def place(self, code, taken):
        """Put the original in its place; both ways out of it lead to the stores."""
        self.put(ORIGINAL - 0x800, b"\xcc" * CODE_SIZE)
        if taken is not None:
            self.put(taken - self.base, jump_to(self.base + LEAVE + 0x400 * TAKEN))
        self.put(ORIGINAL, code + jump_to(self.base + LEAVE + 0x400 * BEHIND))

    def place_copy(self, place, copy, after):
        """Put a copy in its place, continued behind the original."""
        content = copy + jump_to(after)
        self.copies[place][: len(content)] = content

    def run(self, start, image):
        """Run from an image; return the outcome."""
        memory = self.memory
        self.put(REGS, struct.pack("<17Q", *image.regs, image.flags))
        self.put(START, struct.pack("<Q", start))
        self.put(VECTORS_IN, image.vectors)
        self.put(VECTORS_OUT, bytes(VECTOR_SIZE))
        self.put(SIGNAL, bytes(32))
        memory[DATA : DATA + DATA_SIZE] = image.data
        self.enter()
        # Which components the processor calls unused depends on whether the thread was switched, not on what ran.
        self.put(VECTORS_OUT + XSTATE_BV, bytes(8))
        return Outcome(
            self.word(WHICH) & 3,
            list(struct.unpack_from("<16Q", memory, OUT_REGS)),
            self.word(OUT_FLAGS) & STATUS,
            self.word(OUT_FS),
            bytes(memory[VECTORS_OUT : VECTORS_OUT + VECTOR_SIZE]),
            bytes(memory[DATA : DATA + DATA_SIZE]),
            *(self.word(at) for at in (SIGNAL, CODE, ADDRESS, FAULT_RIP)),
        )
