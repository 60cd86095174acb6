"""A module made from assembly or C for tests of the code analysis, with its functions by name."""

from anyprobe.binary.flow.cfg import CodeMap, FunctionCode
from anyprobe.binary.images.image import Image

HEADER = """
    .intel_syntax noprefix
    .text
"""


def function(name: str, body: str, *, align: int = 16) -> str:
    """Return a global function in assembly, with symbol type and size."""
    return f"""
    .globl {name}
    .type {name}, @function
    .p2align {align.bit_length() - 1}
{name}:
{body}
    .size {name}, .-{name}
"""


class Module:
    def __init__(self, path):
        self.image = Image.open(path)
        self.text = self.image.text()
        self.map = CodeMap(self.text)

    @classmethod
    def assembled(cls, build, *functions, flags=()):
        source = HEADER + "".join(functions) + '\n.section .note.GNU-stack,"",@progbits\n'
        return cls(build(source, "-shared", "-nostdlib", *flags, language="assembler"))

    @classmethod
    def compiled(cls, build, source, *flags):
        return cls(build(source, "-shared", "-fPIC", "-O2", "-nostdlib", *flags))

    def start(self, name):
        (found,) = self.image.functions.lookup(name)
        return found.start

    def __getitem__(self, name) -> FunctionCode:
        found = self.map.function_at(self.start(name))
        assert isinstance(found, FunctionCode), found
        return found

    def texts(self, name):
        return [insn.text for insn in self[name].insns]
