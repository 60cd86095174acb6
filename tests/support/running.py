"""Runs compiled handlers in this very process, with memory that stands for the target's."""

import ctypes
import mmap
import struct

from anyprobe.core.code import MISSES, InputKind, NativeCode

MASK = (1 << 64) - 1


def executable(code: bytes) -> tuple[mmap.mmap, int]:
    """Return memory with the code in it, and its address."""
    area = mmap.mmap(-1, max(len(code), 1), prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    area.write(code)
    return area, ctypes.addressof(ctypes.c_char.from_buffer(area))


# read(to=rdi, from=rsi, size=rdx) -> 0 if it could; addresses below 4096 and from 2**47 on are bad.
#   mov eax, 1; cmp rsi, 0x1000; jb end; mov r11, rsi; shr r11, 47; jnz end
#   push rdi; push rsi; push rcx; mov rcx, rdx; rep movsb; pop rcx; pop rsi; pop rdi; xor eax, eax; end: ret
READ = bytes.fromhex("b8010000004881fe0010000072164989f349c1eb2f750d5756514889d1f3a4595e5f31c0c3")
# read_text(to=rdi, from=rsi, limit=rdx) -> length or -1
#   mov rax, -1; cmp rsi, 0x1000; jb end; mov r11, rsi; shr r11, 47; jnz end; xor eax, eax; push rcx
#   loop: cmp rax, rdx; jae done; mov cl, [rsi+rax]; test cl, cl; jz done; mov [rdi+rax], cl; inc rax; jmp loop
#   done: pop rcx; end: ret
READ_TEXT = bytes.fromhex(
    "48c7c0ffffffff4881fe0010000072214989f349c1eb2f751831c0514839d0730f8a0c0684c97408880c0748ffc0ebec59c3"
)
# write(to=rdi, from=rsi, size=rdx) -> 0 if it could: like read, but the address in rdi is checked
WRITE = bytes.fromhex("b8010000004881ff0010000072164989fb49c1eb2f750d5756514889d1f3a4595e5f31c0c3")


class Runner:
    """One compiled handler, and what it counts."""

    def __init__(self, code: NativeCode, regions: dict[int, int] | None = None) -> None:
        self.code = code
        self._area, self.address = executable(code.code)
        result = ctypes.c_uint64 if code.returns else None
        self._call = ctypes.CFUNCTYPE(result, ctypes.c_void_p)(self.address)
        self.words = (ctypes.c_uint64 * max(len(code.inputs), 1))()
        self._misses = (ctypes.c_uint64 * len(MISSES))()
        self.instance = (ctypes.c_uint64 * 16)()
        self._routines = {"read": executable(READ), "read_text": executable(READ_TEXT), "write": executable(WRITE)}
        self.regions = regions or {}

    def run(self, *parameters: int, context: dict[str, int] | None = None) -> int | None:
        """Run once; parameters are 64-bit words."""
        self.fill(parameters, context or {})
        return self._call(ctypes.addressof(self.words))

    def fill(self, parameters, context: dict[str, int]) -> None:
        """Fill in the words of the context."""
        for index, each in enumerate(self.code.inputs):
            match each.kind:
                case InputKind.PARAMETER:
                    value = parameters[each.index]
                case InputKind.CONTEXT | InputKind.REGISTER:
                    value = context[each.name]
                case InputKind.MISSES:
                    value = ctypes.addressof(self._misses)
                case InputKind.INSTANCE:
                    value = ctypes.addressof(self.instance) if self.instance is not None else 0
                case InputKind.ROUTINE:
                    value = self._routines[each.name][1]
                case InputKind.THREAD:
                    value = 1
                case InputKind.STORAGE:
                    value = self.regions[each.index]
            self.words[index] = value & MASK

    @property
    def misses(self) -> dict[str, int]:
        return {miss.value: count for miss, count in zip(MISSES, self._misses, strict=True)}


def word(value: float, kind) -> int:
    """Return a value as it arrives in a word."""
    name = str(kind)
    if name == "f64":
        return struct.unpack("<Q", struct.pack("<d", value))[0]
    if name == "f32":
        return struct.unpack("<I", struct.pack("<f", value))[0]
    return int(value) & MASK


def unword(value: int, kind) -> int | float:
    """Return the value that a handler has left in ``rax``."""
    name = str(kind)
    if name == "f64":
        return struct.unpack("<d", struct.pack("<Q", value))[0]
    if name == "f32":
        return struct.unpack("<f", struct.pack("<I", value & 0xFFFFFFFF))[0]
    return kind.wrap(value) if hasattr(kind, "wrap") else value
