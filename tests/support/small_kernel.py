"""A kernel of a few functions, with the tables that kernels have, linked where kernels are."""

from dataclasses import dataclass

from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.kernel.addresses import BIAS
from anyprobe.binary.kernel.source import KernelSource, listing_of
from anyprobe.binary.objects.elf import ElfFile

TEXT, CONSTANTS = 0xFFFF_FFFF_8100_0000, 0xFFFF_FFFF_8200_0000
LINKED = (
    "-nostdlib", "-static", "-no-pie", f"-Wl,-Ttext={TEXT:#x}", f"-Wl,--section-start=.rodata={CONSTANTS:#x}",
    "-Wl,--no-warn-rwx-segments", "-Wl,--discard-all",
)  # fmt: skip
PATCH = 0xFFFF_FFFF_C000_0000
"""Where patches are."""
TRACED = ".byte 0x0f, 0x1f, 0x44, 0, 0"
BODY = "push rbx\n mov rbx, rdi\n push rbp\n mov ecx, 1\n mov edx, 2\n pop rbp\n pop rbx\n ret"
NEXT = ("next", "ret\n .balign 32")
_LABELS = (
    ("keys", "__start___jump_table", "__stop___jump_table"),
    ("exceptions", "__start___ex_table", "__stop___ex_table"),
    ("bugs", "__start___bug_table", "__stop___bug_table"),
    ("calls", "__start_static_call_sites", "__stop_static_call_sites"),
    ("alternatives", "__alt_instructions", "__alt_instructions_end"),
)
THUNKS = """
    .globl __x86_return_thunk
    __x86_return_thunk: ret
    .balign 32
    .globl __x86_indirect_thunk_rax
    __x86_indirect_thunk_rax: call 1f
    2: pause; lfence; jmp 2b
    1: mov [rsp], rax; ret
    .globl __x86_indirect_thunk_r10
    __x86_indirect_thunk_r10: call 1f
    2: pause; lfence; jmp 2b
    1: mov [rsp], r10; ret
"""


def key(place, target):
    return f".long {place} - .; .long {target} - .; .quad 0\n"


def exception(place, fixup):
    return f".long {place} - .; .long {fixup} - .; .long 0\n"


def bug(place, *, warns):
    return f".long {place} - .; .long 0; .short 7; .short {int(warns)}\n"


def static_call(place, *, tail=False):
    return f".long {place} - .; .long a_key - . + {int(tail)}\n"


def alternative(place, size, by, by_size):
    return f".long {place} - .; .long {by} - .; .short 1; .byte {size}, {by_size}\n"


@dataclass(eq=False)
class SmallKernel:
    """The kernel's file, and its code as the analysis sees it."""

    path: str
    source: KernelSource

    @classmethod
    def made(cls, build, *functions, **tables):
        """Assemble functions, (name, text) each, and tables by the names of ``_LABELS``."""
        text = "\n".join(f".globl {name}\n.type {name}, @function\n{name}:\n{code}" for name, code in functions)
        rows = "".join(
            f".balign 8\n.globl {low}\n{low}:\n{tables.pop(name, '')}.globl {high}\n{high}:\n"
            for name, low, high in _LABELS
        )
        constants = tables.pop("constants", "")
        assert not tables
        source = (
            f".intel_syntax noprefix\n.text\n.globl _stext\n_stext:\n{text}\n{THUNKS}\n.globl _etext\n_etext:\n"
            f".section .rodata\n.globl __start_rodata\n__start_rodata:\n{rows}.balign 8\na_key: .quad 0\n{constants}\n"
            ".globl __end_rodata\n__end_rodata:\n"
        )
        path = build(source, *LINKED, language="assembler")
        return cls(str(path), KernelSource.of_file(str(path)))

    @property
    def image(self):
        return self.source.kernel

    @property
    def map(self):
        if "_map" not in self.__dict__:
            self._map = CodeMap(self.image.text(), self.image.cold_parts)
        return self._map

    def __getitem__(self, name):
        """Return the code of a function."""
        return self.map.function_at(self.source.names.address(name))

    def texts(self, name):
        return [insn.text for insn in self[name].insns]

    def at(self, name):
        """Return the address of a label, as the kernel has it."""
        return self.source.names.address(name) + BIAS

    @property
    def listing(self):
        """Return its symbols as kallsyms lists them."""
        return listing_of(ElfFile.open(self.path))

    @property
    def memory(self):
        """Return what can be read at the kernel's own addresses."""
        return ElfFile.open(self.path)
