"""Coverage of the kernel: which functions, and which blocks of them, have run since the probes were placed.

Blocks are counted by splices, which need the driver; without it, functions by what else the kernel has.
"""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cached_property
from typing import TYPE_CHECKING, Final

from anyprobe.core.errors import KernelRefused, UnsupportedTarget
from anyprobe.core.refusal import Refusal
from anyprobe.probes.duties import locked
from anyprobe.probes.providers.kernel.mechanisms import SPLICE
from anyprobe.probes.providers.kernel.places.sites import KernelNames
from anyprobe.probes.providers.kernel.places.specs import KernelSpec, Provider, of_function, parsed
from anyprobe.target.kernel import loaded_modules
from anyprobe.target.kernel.symbols import KERNEL, KernelFunction

if TYPE_CHECKING:
    from anyprobe.data.findings.coverage import Coverage, CoveredModule, Hits
    from anyprobe.probes.providers.kernel.probe import KernelProbe

_LINKED_AT: Final = 0xFFFFFFFF81000000
"""Where ``_text`` is linked: the kernel is moved when it starts, to another place each time."""
_NO_LINES: Final = "lines of the kernel's sources are not told"


class Covering:
    """What a session on the kernel has of coverage."""

    lock: AbstractContextManager[object]
    _names: KernelNames

    @abstractmethod
    def arm(self, specs: Sequence[KernelSpec], mechanism: str | None) -> "list[KernelProbe]":
        """Attach to what some specs mean."""

    @abstractmethod
    def demanded(self, mechanism: str | None) -> str | None:
        """Return the only mechanism to use, where one is demanded for some specs or for all."""

    @abstractmethod
    def warn(self, text: str) -> None:
        """Have the user told of something."""

    @cached_property
    def _covered(self) -> "dict[KernelFunction, dict[int, int]]":
        """The functions that are looked at, each with the sizes of its blocks, by their offsets."""
        return {}

    @cached_property
    def _starts(self) -> dict[str, int]:
        """Where the code of modules begins, in which functions are looked at."""
        return {}

    @cached_property
    def _covering(self) -> "list[KernelProbe]":
        return []

    @locked
    def cover(self, *specs: str | KernelSpec, mechanism: str | None = None) -> "list[KernelProbe]":
        """Note which blocks of some functions run, and how often; ``snapshot().coverage`` has it.

        By splices, where the driver is loaded; else, or by another mechanism that is demanded, which functions are
        entered: their other blocks are not known then.

        Args:
            specs: functions, such as ``kernel::vfs_read`` or ``kernel:ext4:*``.
            mechanism: the only one to use, as for ``count``.

        Returns:
            One probe for each spec; blocks that cannot be probed are in ``refused``, and not known in the results.

        Raises:
            SpecError: a spec means nothing, or no function; then nothing is attached.
        """
        wanted = parsed(specs)
        for each in wanted:
            if each.provider is not Provider.FUNCTION or each.name not in {"entry", "block"} or each.line:
                raise each.error(each.function, "coverage is of functions", ("kernel::vfs_read", "kernel:ext4:*"))
        functions = {
            site.function: site.function
            for each in wanted
            for site in self._names.resolve(each.at("entry"))
            if site.function is not None
        }
        demanded = self.demanded(mechanism) or (None if (why := _without_splices()) else SPLICE.name)
        blocks = {each: self._blocks_of(each) for each in functions}
        if demanded == SPLICE.name:
            found = self.arm([each.at("block") for each in wanted], demanded)
        else:
            found = self.arm([each.at("entry") for each in wanted], demanded)
            reason = why if demanded is None else f"{demanded} counts where functions begin"
            self.warn(f"which functions are entered, not which of their blocks run: {reason}")
        self._covered.update(blocks)
        self._covering.extend(found)
        for name in {each.module for each in functions} - {KERNEL}:
            self._starts[name] = loaded_modules.text_of(name) or 0
        return found

    def _blocks_of(self, function: KernelFunction) -> dict[int, int]:
        """Return the sizes of a function's blocks by their offsets, none where its code is not known."""
        from anyprobe.binary.flow.blocks import run_sizes
        from anyprobe.binary.kernel.addresses import BIAS
        from anyprobe.probes.providers.kernel.code import running
        from anyprobe.probes.providers.kernel.places.instructions import offsets_of

        symbols = self._names.symbols
        try:
            code = running(symbols).module(function.module).code.function_at(function.address - BIAS)
        except UnsupportedTarget:
            return {}
        if isinstance(code, Refusal):
            return {}
        offsets = offsets_of(symbols, of_function(function.module, function.name, "block"), function)
        return dict(zip(offsets, run_sizes(code, [code.start + each for each in offsets]), strict=True))

    def coverage(self) -> "Coverage | None":
        """Return what has run so far, None where that was not asked for."""
        if not self._covering:
            return None
        from anyprobe.data.findings.coverage import Coverage

        hits: dict[tuple[int, int], int] = {}
        for probe in self._covering:
            for site in probe.results():
                key = site.address - site.offset, site.offset
                hits[key] = max(hits.get(key, 0), site.hits + site.nmissed)
        modules: dict[str, list[KernelFunction]] = {}
        for function in self._covered:
            modules.setdefault(function.module, []).append(function)
        return Coverage(tuple(self._module(name, modules[name], hits) for name in sorted(modules)))

    def _module(
        self, name: str, functions: "Iterable[KernelFunction]", hits: "dict[tuple[int, int], int]"
    ) -> "CoveredModule":
        from anyprobe.data.findings.coverage import CoveredFunction, CoveredModule
        from anyprobe.probes.providers.kernel.places.debug_file import build_id

        start = self._start_of(name)
        told = []
        for each in functions:
            sizes = self._covered[each]
            blocks: dict[int, Hits] = {at: hits.get((each.address, at)) for at in sizes or (0,)}
            entry = min(blocks)
            if blocks[entry] is None:  # by the kernel's own mechanisms: before what the block begins with
                blocks[entry] = hits.get((each.address, 0))
            told.append(CoveredFunction(each.name, each.address - start, blocks, sizes=sizes))
        told.sort(key=lambda each: each.start)
        ends = [each.start + at + size for each in told for at, size in each.sizes.items()]
        return CoveredModule(
            name, name, build_id(name), tuple(told), without_lines=_NO_LINES,
            base=_LINKED_AT if name == KERNEL else 0, end=max(ends, default=0),
        )  # fmt: skip

    def _start_of(self, module: str) -> int:
        """Return what to take from an address, so that it is the same whenever this kernel, or module, is loaded."""
        if module != KERNEL:
            return self._starts.get(module, 0)
        texts = self._names.symbols.named("_text")
        return texts[0].address - _LINKED_AT if texts else 0


def _without_splices() -> str:
    """Return why nothing can be spliced, empty where it can."""
    from anyprobe.probes.providers.kernel.splices.splicing import opened

    try:
        opened().close()
    except KernelRefused as refusal:
        return str(refusal)
    return ""
