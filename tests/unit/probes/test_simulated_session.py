"""Whole sessions, from specs to snapshots, on a target that is memory and an emulator."""

import pytest
from support.driver import MissingTool, build
from support.simulated.loading import FilesByPath, load
from support.simulated.target import SimulatedTarget, as_process

from anyprobe.binary.objects.elf import ElfFile
from anyprobe.probes.session import Session

SOURCE = """
__attribute__((noinline)) long twice(long n) { return n + n; }
__attribute__((noinline)) long sum(long n) { long s = 0; for (long i = 1; i <= n; i++) s += i * twice(i); return s; }
"""
LIBC = """
int libc_is_here(void) { return 1; }
"""
FLAGS = ("-shared", "-nostdlib", "-fno-stack-protector", "-O1")
BASE, LIBC_BASE = 0x5555_5560_0000, 0x7F00_0000_0000


class Simulation:
    """A program of C functions in a simulated target, with sessions in it."""

    def __init__(self, source, *, libc=True):
        self.target = SimulatedTarget()
        path = build("simulated_program.c", *FLAGS, text=source)
        self.bias = load(self.target, path, BASE)
        self.target.exe = str(path)
        self.symbols = {name: start for name, start in symbols_of(path).items()}
        if libc:
            made = build("simulated_libc.c", *FLAGS, "-Wl,-soname,libc.so.6", text=LIBC)
            named = made.with_name("libc.so.6")
            if not named.exists():
                named.write_bytes(made.read_bytes())
            load(self.target, named, LIBC_BASE)
        self.before = self.target.mappings()

    def session(self, **options):
        return Session(as_process(self.target), files=FilesByPath(), **options)

    def call(self, name, *arguments):
        return self.target.call(self.symbols[name] + self.bias, *arguments)


def symbols_of(path):
    from anyprobe.binary.images.image import Image

    return {name: Image.open(str(path)).functions.lookup(name)[0].start for name in ("twice", "sum")}


@pytest.fixture
def simulation():
    try:
        return Simulation(SOURCE)
    except MissingTool as missing:
        pytest.skip(f"{missing} is not installed")


def test_counts(simulation):
    assert ElfFile
    with simulation.session() as session:
        session.count("twice", "sum", "sum:return")
        print(session.refused, session.warnings)
        assert simulation.call("sum", 4) == 60
        snapshot = session.snapshot()
        print([(s.spec, s.count) for s in snapshot.sites])
    assert simulation.target.mappings() == simulation.before
