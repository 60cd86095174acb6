"""Our counts of single instructions beside those of somebody else."""

import ctypes
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyprobe
from anyprobe.binary.images.image import Image
from anyprobe.isa.decode import decode_one
from support.driver import build
from support.filters import functions_run

_NO_RANDOMIZE, _AS_IT_IS = 0x0040000, 0xFFFFFFFF


@dataclass
class Module:
    """What was counted in one file, by link-time address."""

    path: str
    hits: dict[int, int] = field(default_factory=dict)
    functions: dict[int, str] = field(default_factory=dict)
    refused: dict[int, str] = field(default_factory=dict)
    text: object = None

    def is_outside_of_text(self, address: int) -> bool:
        """Return whether an address lies in ``.init`` or ``.fini``, whose code is nobody's to callgrind."""
        sections = map(Image.open(self.path).elf.section, (".init", ".fini"))
        return any(each.address <= address < each.address + each.size for each in sections if each is not None)

    def repeats(self, address: int) -> bool:
        """Return whether the instruction at an address is a string instruction with ``rep``."""
        insn = decode_one(self.text.read(address, 15), address)
        return bool(insn.iced.has_rep_prefix or insn.iced.has_repne_prefix) and insn.iced.is_string_instruction


@contextmanager
def fixed_addresses() -> Iterator[None]:
    """Have the programs started meanwhile lie where they would lie without address space layout randomisation."""
    libc = ctypes.CDLL(None)
    before = libc.personality(_AS_IT_IS)
    libc.personality(before | _NO_RANDOMIZE)
    try:
        yield
    finally:
        libc.personality(before)


def run_counted(
    argv: Sequence[str | Path],
    specs: Sequence[str],
    directory: Path,
    *,
    given: Path | str = os.devnull,
    environment: Mapping[str, str],
    path: bool = True,
) -> tuple[bytes, "anyprobe.Snapshot", dict[str, Module]]:
    """Run a program with probes from its first instruction on; return its output and the counts, by module."""
    output = directory / "output"
    argv, environment = [str(word) for word in argv], {**({"PATH": os.environ["PATH"]} if path else {}), **environment}
    with open(given, "rb") as stdin, output.open("wb") as file:
        with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=file) as cat:
            with anyprobe.run(argv, stdin=stdin, stdout=cat.stdin, env=environment) as session:
                session.count(*specs)
                session.resume()
                assert session.wait(150) is not None
                snapshot = session.snapshot()
                modules = by_module(session, snapshot)
            cat.stdin.close()
        assert cat.returncode == 0
    return output.read_bytes(), snapshot, modules


def by_module(session: "anyprobe.Session", snapshot: "anyprobe.Snapshot") -> dict[str, Module]:
    """Return the counts of each module."""
    objects = {each.name: each for each in session.objects.objects}
    found = {}
    for site in snapshot.sites:
        loaded = objects[site.module]
        module = found.get(site.module)
        if module is None:
            text = session.module(loaded).code.text.memory
            module = found[site.module] = Module(os.path.realpath(loaded.path), text=text)
        address = loaded.link_time(site.address)
        module.hits[address], module.functions[address] = site.hits, site.function
    for refusal in snapshot.refused:
        name = refusal.spec.split(":")[1]
        if name in found:
            address = objects[name].link_time(refusal.address)
            found[name].refused[address] = refusal.reason
            found[name].hits.pop(address, None)
    return found


def specs_of_functions(snapshot: "anyprobe.Snapshot", kind: str = "insn") -> list[str]:
    """Return specs for all instructions of the functions that a snapshot of entries says were run."""
    # as a glob the name means all functions that have it, where an ambiguous one is an error
    return [f"pid:{module}:[{name[0]}]{name[1:]}:{kind}" for module, name in functions_run(snapshot)]


def single_stepped(program: Path, low: int, high: int, directory: Path) -> tuple[int, Counter[int]]:
    """Return a program's exit status and how often each instruction in a range was come to, step by step."""
    report = directory / "steps"
    command = [build("single_step.c"), report, f"{low:x}", f"{high:x}", program]
    # a pipe, as our count has one: the C library asks what its output is
    options = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "env": {}, "timeout": 170}
    status = subprocess.run(command, **options).returncode
    lines = (line.split() for line in report.read_text().splitlines())
    return status, Counter({int(address, 16): int(count) for address, count in lines})


def differences(module: Module, theirs: Mapping[int, int]) -> dict[int, tuple[str, int | None, int]]:
    """Return where two counts differ, but for ``rep``: theirs may count its rounds. Ours is None where we have none."""
    found = {}
    for address in sorted({*module.hits, *theirs} - module.refused.keys()):
        ours, other = module.hits.get(address), theirs.get(address, 0)
        if ours == other or (ours is None and other == 0):
            continue
        if ours is not None and module.repeats(address):
            continue
        found[address] = (module.functions.get(address, ""), ours, other)
    return found


def text_of(program: Path) -> tuple[int, int]:
    """Return the bounds of a program's code, which is at fixed addresses."""
    listing = subprocess.run(["readelf", "-lW", program], capture_output=True, text=True, check=True).stdout
    (segment,) = re.findall(r"LOAD\s+\S+ (0x\S+) \S+ \S+ (0x\S+) R E", listing)
    return int(segment[0], 16), int(segment[0], 16) + int(segment[1], 16)
