"""Splices at random places of a guest's kernel, planned on the host: an emulated guest takes twenty times as long.

``python place_planner.py COMMAND [ARGUMENT...]`` runs a command that boots a guest, and meanwhile plans what is asked
for in there. Both sides share a folder, which ``ANYPROBE_PLANNER`` names. Each request and each answer is a file in it
that appears whole.
"""

import os
import pickle
import random
import subprocess
import sys
import tempfile
import time
import traceback
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, TypeVar, cast
from unittest import mock

import numpy as np

from anyprobe.binary.flow.blocks import block_starts
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.kernel.addresses import BIAS
from anyprobe.core.memory import Memory, MemoryFault
from anyprobe.core.refusal import Refusal
from anyprobe.isa.decode import Flow
from anyprobe.probes.providers.kernel.code import LiveModule, RunningCode
from anyprobe.probes.providers.kernel.places.sites import KernelNames, KernelSite
from anyprobe.probes.providers.kernel.splices import joints, splicing
from anyprobe.probes.providers.kernel.splices.joints import Change
from anyprobe.probes.providers.kernel.splices.processor_counters import ProcessorCounters
from anyprobe.target.kernel import symbols
from anyprobe.target.kernel.armed import PristineMemory
from anyprobe.target.kernel.driver.device import Driver
from anyprobe.target.kernel.kcore import LiveMemory
from anyprobe.target.kernel.symbols import KERNEL, KernelFunction, Symbols

VARIABLE = "ANYPROBE_PLANNER"
_AREAS = (
    ("_stext", "_etext"), ("__start_rodata", "__end_rodata"), ("__start___bug_table", "__stop___bug_table"),
    ("__start___jump_table", "__stop___jump_table"), ("__start___ex_table", "__stop___ex_table"),
    ("__start_static_call_sites", "__stop_static_call_sites"),
)  # fmt: skip
"""What the analysis of a kernel reads."""
_JUMP_BYTES = 5
_PAUSE, _SECONDS = 0.1, 1800


class Batch(NamedTuple):
    """Which places: ``number`` is that of a batch of so many, of all places of the kernel in an order; -1: any."""

    seed: int
    size: int
    number: int = -1


class Chosen(NamedTuple):
    """Places of the kernel, and which of them are passed equally often, since one always leads to the other."""

    sites: list[KernelSite]
    pairs: list[tuple[int, int]]


class Function(NamedTuple):
    """All instructions of a function, and of each the first one of those around it that are passed equally often."""

    sites: list[KernelSite]
    runs: list[int]


class Planner:
    """The side that asks, in the guest."""

    def __init__(self, folder: Path) -> None:
        """Use a folder at which somebody listens."""
        self._folder = folder

    def begin(self, ahead: "Batch | None" = None) -> None:
        """Tell what kernel it is, once, before anything is changed in it, and what will be asked for."""
        told = self._folder / "told-0"
        if not told.exists():
            _put(told, ())
            _put(self._folder / "asked-0", ("begin", symbols.running().listing, list(_areas()), ahead))

    def spliced(self, batch: Batch, names: KernelNames) -> tuple[splicing.Splices, Chosen]:
        """Splice the places of a batch, as they have been planned beside."""
        self.begin()
        chosen = self.ask("choose", batch)
        whole = _PlannedBeside(names, [(site, None) for site in chosen.sites], None)
        whole.ask = lambda base, pieces: self.ask("plan", batch, whole.processors, base, pieces)
        return _armed(whole), chosen

    def called(self, roots: Sequence[str], most: int) -> list[int]:
        """Return functions by name, those that they call, and what these call, up to so many."""
        self.begin()
        return cast("list[int]", self.ask("called", roots, most))

    def each_alone(self, start: int, names: KernelNames) -> "tuple[EachAlone, Function]":
        """Plan each instruction of a function as if it were the only one that is spliced; none is armed yet."""
        function = cast("Function", self.ask("function", start))
        whole = EachAlone(names, [(site, None) for site in function.sites], None)
        whole.ask = lambda base, pieces: self.ask("plan_alone", start, whole.processors, base, pieces)
        return _armed(whole), function

    def ask(self, what: str, *arguments: object) -> Any:
        """Return the answer of ``_Host`` to something."""
        name = f"{time.monotonic_ns()}"
        _put(self._folder / f"asked-{name}", (what, *arguments))
        answer = self._folder / f"told-{name}"
        end = time.monotonic() + _SECONDS
        while not answer.exists():
            assert time.monotonic() < end, "nobody plans beside"
            time.sleep(_PAUSE)
        is_right, told = _taken(answer)
        assert is_right, told
        return told


S = TypeVar("S", bound="_PlannedBeside")


class _PlannedBeside(splicing.Splices):
    """Splices whose patches have been made elsewhere, for where this client of the driver has its memory."""

    ask: Callable[[int, list[tuple[int, int]]], Any]

    @property
    def processors(self) -> int:
        assert self._driver is not None
        return self._driver.processors

    def prepare(self, name: str, numbers: Iterable[int]) -> "list[joints.Numbered]":
        del name, numbers
        return [each for several in self._planned() for each in several]

    def _planned(self) -> "Sequence[Sequence[joints.Numbered]]":
        assert self._driver is not None
        base = self._reserve(_ROOM * (len(self._sites) + 1))
        code, made, refused = self.ask(base, self._counters.pieces)
        if code:
            self._driver.write_patch(base, code)
        self.refused.update(refused)
        return cast("Sequence[Sequence[joints.Numbered]]", made)


class EachAlone(_PlannedBeside):
    """Splices of which one at a time is armed."""

    def arm(self) -> None:
        """Write the patches alone."""
        self.planned = self._planned()
        """The writes of each site."""

    def arm_one(self, number: int) -> None:
        """Splice one site, or say in ``refused`` why not."""
        refused = self._try([each.change for each in self.planned[number]])
        if refused:
            self.refused[number] = next(iter(refused.values()))
        else:
            self._in_force += self.planned[number]

    def take_out(self, number: int) -> None:
        """Take a site's splices out; it may be armed again."""
        assert not self._try([Change(each.change.write.undone()) for each in self.planned[number]])
        self._in_force = []


_ROOM = 128
"""Bytes of patches for each place."""
_SOMEWHERE, _FAR = 0xFFFF_FFFF_C040_0000, 1 << 40
"""Memory for patches and counters that are not used."""


def _armed(whole: S) -> S:
    """Arm splices and return them; what is open is closed where that fails."""
    try:
        whole.arm()
    except BaseException:
        whole.close()
        raise
    return whole


def _areas() -> Iterator[tuple[int, bytes]]:
    """Yield the parts of the running kernel's memory that are read."""
    table = symbols.running()

    def address(name: str) -> int | None:
        found = table.named(name)
        return found[0].address if found else table.data(name)

    with LiveMemory() as memory:
        for first, last in _AREAS:
            low, high = address(first), address(last)
            if low is not None and high is not None:
                yield low, memory.read(low, high - low)


def _put(path: Path, content: object) -> None:
    """Let a file appear whole."""
    hidden = path.with_name(f".{path.name}")
    hidden.write_bytes(pickle.dumps(content))
    hidden.rename(path)


def _taken(path: Path) -> Any:
    content = pickle.loads(path.read_bytes())  # noqa: S301 - of our own
    path.unlink()
    return content


# -- the side that answers, on the host


class _Told:
    """The memory of a kernel, as far as it has been told."""

    def __init__(self, areas: Sequence[tuple[int, bytes]]) -> None:
        self._areas = areas

    def read(self, address: int, size: int) -> bytes:
        for low, content in self._areas:
            if low <= address and address + size <= low + len(content):
                return content[address - low : address - low + size]
        raise MemoryFault(address, size)


class _ToldCode(RunningCode):
    """The code of a kernel in which nothing is armed."""

    def __init__(self, table: Symbols, memory: Memory) -> None:
        super().__init__(table, memory)
        self._whole = PristineMemory(memory, [])

    def _without_kprobes(self) -> PristineMemory:
        return self._whole


class _Remembered:
    """What the driver of the guest has given, and what is to be written there."""

    def __init__(self, processors: int, base: int, pieces: Sequence[tuple[int, int]]) -> None:
        self.processors, self._base, self._pieces = processors, base, list(pieces)
        self.code = b""

    def per_processor(self, size: int) -> int:
        start, same = self._pieces.pop(0)
        assert same == size
        return start

    def reserve(self, size: int) -> int:
        del size
        return self._base + len(self.code)

    def write_patch(self, address: int, code: bytes) -> None:
        assert address == self._base + len(self.code)
        self.code += code

    def close(self) -> None:
        """Nothing is open."""


class _Host:
    """One kernel, and the answers about it."""

    def __init__(self, listing: bytes, areas: Sequence[tuple[int, bytes]]) -> None:
        self._symbols = Symbols(listing)
        self._code = _ToldCode(self._symbols, _Told(areas))
        self._module: LiveModule = self._code.module(KERNEL)
        self._chosen: dict[Batch, Chosen] = {}

    @cached_property
    def _every(self) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """All instructions of the kernel."""
        self._module.code.survey()
        found = [np.array(each.addresses, np.int64) for each in self._functions(self._starts)]
        return np.concatenate(found)

    @property
    def _starts(self) -> list[int]:
        return cast("list[int]", self._module.image.functions.starts.tolist())

    def _functions(self, starts: Iterable[int]) -> Iterator[FunctionCode]:
        for start in starts:
            found = self._module.code.function_at(start)
            if not isinstance(found, Refusal) and found.addresses:
                yield found

    @cached_property
    def _turning(self) -> frozenset[int]:
        """Where control need not go on to the next instruction, besides branches and calls."""
        image = self._module.image
        places = (image.settled.keys[:, 0], image.settled.calls, image.settled.traced, image.tables.fixups[:, 0])
        return frozenset(at for each in places for at in each.tolist())

    def choose(self, batch: Batch) -> Chosen:
        if batch not in self._chosen:
            self._chosen[batch] = self._choose(batch)
        return self._chosen[batch]

    def _choose(self, batch: Batch) -> Chosen:
        """Half of the places are the batch's own, the others are passed as often as these."""
        chance = random.Random(f"{batch}")
        places: dict[tuple[int, int], int] = {}
        pairs = []
        for function, at in self._own(batch, chance):
            if len(places) >= batch.size:
                break
            first = places.setdefault((function.start, at), len(places))
            others = [each for each in self._equally_often(function, at) if abs(each - at) >= _JUMP_BYTES]
            if others:
                pairs.append((first, places.setdefault((function.start, chance.choice(others)), len(places))))
        return Chosen([self._site(*place) for place in places], pairs)

    def _own(self, batch: Batch, chance: random.Random) -> Iterator[tuple[FunctionCode, int]]:
        code, starts = self._module.code, self._starts
        if batch.number < 0:
            sizes = (self._module.image.functions.ends - self._module.image.functions.starts).tolist()
            while True:
                for function in self._functions(chance.choices(starts, sizes, k=batch.size)):
                    yield function, chance.choice(function.addresses)
        order = np.random.default_rng(batch.seed).permutation(len(self._every))
        half = batch.size // 2
        first = batch.number * half % len(order)
        for at in self._every[np.roll(order, -first)[: batch.size]].tolist():
            found = code.function_at(starts[bisect_right(starts, at) - 1])
            assert isinstance(found, FunctionCode)
            yield found, at

    def _equally_often(self, function: FunctionCode, at: int) -> list[int]:
        """Return the instructions that always lead to one, or to which it always leads."""
        index, starts = function.index_of(at), set(block_starts(self._module.code, function))
        assert index is not None
        addresses = function.addresses
        first = last = index
        while first and addresses[first] not in starts and self._goes_on(function, first - 1):
            first -= 1
        while last + 1 < len(addresses) and addresses[last + 1] not in starts and self._goes_on(function, last):
            last += 1
        return list(addresses[first : last + 1])

    def _goes_on(self, function: FunctionCode, number: int) -> bool:
        insn = function.insn(number)
        return insn.flow is Flow.NEXT and insn.address not in self._turning

    def called(self, roots: Sequence[str], most: int) -> list[int]:
        known = set(self._starts)
        found = {self._symbols.named(name)[0].address - BIAS: True for name in roots if self._symbols.named(name)}
        level = list(found)
        while level and len(found) < most:
            targets = (
                insn.target
                for function in self._functions(level)
                for insn in map(function.insn, range(len(function.addresses)))
                if insn.flow in (Flow.CALL, Flow.JUMP) and insn.target in known
            )
            level = [at for at in dict.fromkeys(targets) if at is not None and at not in found]
            found.update(dict.fromkeys(level, True))
        return list(found)[:most]

    def function(self, start: int) -> Function:
        (found,) = self._functions([start])
        starts, runs = set(block_starts(self._module.code, found)), [0]
        for number in range(1, len(found.addresses)):
            goes_on = found.addresses[number] not in starts and self._goes_on(found, number - 1)
            runs.append(runs[-1] if goes_on else number)
        return Function([self._site(start, at) for at in found.addresses], runs)

    def _site(self, start: int, at: int) -> KernelSite:
        name = self._code.source.names.name_at(start)
        function = KernelFunction(name, KERNEL, start + BIAS)
        return KernelSite(f"kernel:{KERNEL}:{name}:{at - start:#x}", KERNEL, name, "offset", at - start, function)

    def plan_ahead(self, batch: Batch) -> None:
        """Find out what the plan of a batch needs, for memory somewhere."""
        counters = ProcessorCounters(cast("Driver", None), len(self.choose(batch).sites), lambda _: _FAR)
        self.plan(batch, 1, _SOMEWHERE, counters.pieces)

    def plan(self, batch: Batch, processors: int, base: int, pieces: list[tuple[int, int]]) -> "_Plan":
        """Return the patches of a batch, the writes that lead there, and what is refused."""
        chosen = self.choose(batch).sites
        return self._planned(chosen, [range(len(chosen))], _Remembered(processors, base, pieces))

    def plan_alone(self, start: int, processors: int, base: int, pieces: list[tuple[int, int]]) -> "_Plan":
        """Return the same of all instructions of a function, each planned without the others."""
        sites = self.function(start).sites
        return self._planned(sites, [[number] for number in range(len(sites))], _Remembered(processors, base, pieces))

    def _planned(self, sites: Sequence[KernelSite], parts: Sequence[Sequence[int]], driver: _Remembered) -> "_Plan":
        with (
            mock.patch.object(splicing, "opened", return_value=driver),
            mock.patch.object(splicing, "running", return_value=self._code),
        ):
            names = cast("KernelNames", SimpleNamespace(symbols=self._symbols))
            planned = splicing.Splices(names, [(site, None) for site in sites], None)
        made = [planned.prepare(KERNEL, part) for part in parts]
        return driver.code, made, planned.refused


_Plan = tuple[bytes, "Sequence[Sequence[joints.Numbered]]", Mapping[int, Refusal]]
"""Patches, the writes that lead there by what was planned together, and what is refused."""


class _Server:
    """Answers what is asked in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._host: _Host | None = None
        self._failure = ""

    def serve(self, is_wanted: Callable[[], bool]) -> None:
        """Answer while that is wanted."""
        while is_wanted():
            for asked in sorted(self._folder.glob("asked-*")):
                what, *arguments = _taken(asked)
                if what == "begin":
                    self._begin(*arguments)
                else:
                    self._answer(asked.name.removeprefix("asked-"), what, arguments)
            time.sleep(_PAUSE)

    def _begin(self, listing: bytes, areas: Sequence[tuple[int, bytes]], ahead: Batch | None) -> None:
        try:
            self._host = _Host(listing, areas)
            if ahead is not None:  # what is found out is kept, and the patches are made again where they belong
                self._host.plan_ahead(ahead)
        except Exception:
            self._failure = traceback.format_exc()

    def _answer(self, name: str, what: str, arguments: Sequence[Any]) -> None:
        """Answer, in a process that takes the memory of a plan with it; what is chosen is kept."""
        if self._host is None:
            _put(self._folder / f"told-{name}", (False, self._failure))
            return
        if what.startswith("plan") and os.fork():
            os.wait()
            return
        try:
            told = True, getattr(self._host, what)(*arguments)
        except BaseException:  # the test shall tell it
            told = False, traceback.format_exc()
        _put(self._folder / f"told-{name}", told)
        if what.startswith("plan"):
            os._exit(0)


@contextmanager
def asking() -> Iterator[Planner]:
    """Ask who plans beside the guest; where nobody does, plan in the guest itself."""
    if VARIABLE in os.environ:
        yield Planner(Path(os.environ[VARIABLE]))
        return
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, __file__, "cat"]
        server = subprocess.Popen(command, env={**os.environ, VARIABLE: folder}, stdin=subprocess.PIPE)
        try:
            yield Planner(Path(folder))
        finally:
            server.communicate()


def main(command: Sequence[str]) -> int:
    """Run a command, and plan what is asked for meanwhile; return its exit status."""
    with tempfile.TemporaryDirectory(dir="/tmp") as made:
        folder = os.environ.get(VARIABLE, made)
        running = subprocess.Popen(command, env={**os.environ, VARIABLE: folder})
        _Server(Path(folder)).serve(lambda: running.poll() is None)
        return running.returncode


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).parents[1])
    from support import place_planner  # under its name, by which what is passed on is known

    sys.exit(place_planner.main(sys.argv[1:]))
