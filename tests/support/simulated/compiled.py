"""C functions in a simulated target, with whole sessions in it: specs, handlers, snapshots, and no process."""

from typing import Unpack

from anyprobe.binary.images.image import Image
from anyprobe.probes.options import OptionNames, SessionOptions
from anyprobe.probes.session import Session
from support.driver import build
from support.simulated.loading import FilesByPath, load
from support.simulated.target import SimulatedTarget, as_process

_FLAGS = ("-shared", "-nostdlib", "-fno-stack-protector", "-fcf-protection=none", "-O1", "-Wl,-Bsymbolic")
_LIBC = "int libc_is_here(void) { return 1; }"
"""Where there is a C library, threads have its control blocks: these have, see ``SimulatedTarget.new_thread``."""
_BASE, _LIBC_BASE = 0x5555_5560_0000, 0x7F00_0000_0000


class CompiledProgram:
    """An object made of C, which calls nothing outside of itself."""

    def __init__(self, source: str) -> None:
        """Compile and map it, and a C library; raise ``MissingTool`` where there is no compiler."""
        self.target = SimulatedTarget()
        path = build("simulated_program.c", *_FLAGS, text=source)
        self.bias = load(self.target, path, _BASE)
        self.target.exe = str(path)
        self.image = Image.open(str(path))
        libc = build("libc.so.6.c", *_FLAGS, "-Wl,-soname,libc.so.6", text=_LIBC)
        load(self.target, libc, _LIBC_BASE)

    def session(self, **options: Unpack[OptionNames]) -> Session:
        """Return a session in it."""
        return Session(as_process(self.target), SessionOptions(**options), files=FilesByPath())

    def __getitem__(self, name: str) -> int:
        """Return a function's run-time address."""
        (found,) = self.image.functions.lookup(name)
        return found.start + self.bias

    def call(self, name: str, *arguments: int) -> int:
        """Call a function in the target's first thread."""
        return self.target.call(self[name], *arguments)
