"""The code of the running kernel and its modules: images and maps of code, made when they are first asked about."""

from contextlib import suppress
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.kernel.addresses import BIAS, upper_text
from anyprobe.binary.kernel.image import KernelImage
from anyprobe.binary.kernel.optimizing import Optimizer, Rules
from anyprobe.binary.kernel.source import KernelSource
from anyprobe.binary.kernel.tables import Areas
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.core.memory import Memory, MemoryFault
from anyprobe.core.refusal import Refusal
from anyprobe.target.kernel import btf, release
from anyprobe.target.kernel.armed import Covered, PristineMemory, covered
from anyprobe.target.kernel.driver.covering import UnsplicedMemory
from anyprobe.target.kernel.kcore import LiveMemory
from anyprobe.target.kernel.modules import areas_of
from anyprobe.target.kernel.symbols import KERNEL, Symbols

if TYPE_CHECKING:
    from collections.abc import Sequence

_NEW = (6, 9)


class LiveModule:
    """The kernel or a module of it: its image, and its code as the analysis sees it."""

    def __init__(self, image: KernelImage, source: KernelSource) -> None:
        """Analyse nothing yet."""
        self.image, self._source = image, source

    @cached_property
    def code(self) -> CodeMap:
        """The control flow."""
        return CodeMap(self.image.text(), self.image.cold_parts)

    def live(self, low: int, high: int) -> bytes:
        """Return the bytes as they are at the moment, kprobes and splices aside, at addresses of the analysis."""
        return self._source.memory.read(low, high - low)


class RunningCode:
    """All code of the running kernel; needs root, and no lockdown."""

    def __init__(self, symbols: Symbols, memory: Memory | None = None) -> None:
        """Open the kernel's memory; nothing is read yet."""
        self._symbols = symbols
        self._memory = memory or UnsplicedMemory(LiveMemory())
        self._modules: dict[str, LiveModule] = {}
        self._optimizers: dict[str, Optimizer] = {}

    @cached_property
    def pristine(self) -> PristineMemory:
        """The kernel's memory without splices, and without the kprobes that were set when it was first asked for."""
        return self._without_kprobes()

    def _without_kprobes(self) -> PristineMemory:
        table = self._symbols.data("kprobe_table")
        covers: list[Covered] = []
        if table is not None:
            with suppress(btf.TypesUnavailable, MemoryFault):
                covers = covered(btf.running().kernel, self._memory, table)
        return PristineMemory(self._memory, covers)

    def text_now(self, low: int, high: int) -> bytes:
        """Return text without splices and without the kprobes that are set now, at addresses of the analysis."""
        return self._without_kprobes().read(upper(low), high - low)

    @cached_property
    def source(self) -> KernelSource:
        """The kernel's symbols and its memory."""
        return KernelSource.live(self._symbols.listing, self.pristine)

    def module(self, name: str) -> LiveModule:
        """Return the kernel (``vmlinux``) or one of its modules; raise ``UnsupportedTarget`` with the reason."""
        if name not in self._modules:
            image = self.source.kernel if name == KERNEL else self._image(name)
            self._modules[name] = LiveModule(image, self.source)
        return self._modules[name]

    def _image(self, name: str) -> KernelImage:
        place = self._symbols.module_structure(name)
        if place is None:
            raise UnsupportedTarget(f"{name}: the kernel's symbols do not tell where its code is")
        try:
            areas = areas_of(btf.running().kernel, self._memory, place)
        except MemoryFault as fault:
            raise UnsupportedTarget(f"{name}: {fault}") from None
        return self.source.module(name, areas.text, Areas(**areas.tables))

    def optimizer(self, module: LiveModule) -> Optimizer:
        """Return what says what the kernel's optimiser of kprobes will do in a module."""
        name = module.image.name
        if name not in self._optimizers:
            self._optimizers[name] = self._optimizer(module)
        return self._optimizers[name]

    def _optimizer(self, module: LiveModule) -> Optimizer:
        rules = Rules(is_new=release.running() >= _NEW)
        images = {each.name: each for each in (self.module(KERNEL).image, module.image)}
        return Optimizer(self.source, list(images.values()), rules)

    def survey(self, names: "Sequence[str]") -> None:
        """Find out everything about some modules together."""
        for name in names:
            self.module(name).code.survey()


@lru_cache(maxsize=1)
def running(symbols: Symbols) -> RunningCode:
    """Return the code of the running kernel; it is read again when modules have come or gone."""
    return RunningCode(symbols)


def upper(address: int) -> int:
    """Return the kernel's own address of one of the analysis."""
    return address + BIAS


def lower(address: int) -> int:
    """Return the analysis's address of one of the kernel."""
    return address - BIAS


def shown(refusal: Refusal) -> Refusal:
    """Return a refusal with the kernel's own addresses."""
    return Refusal(refusal.reason, refusal.address + BIAS, upper_text(refusal.detail))
