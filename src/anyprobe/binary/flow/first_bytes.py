"""What the first bytes of what is called say: a linkage stub, or what takes its return address from the stack."""

from collections.abc import Callable

from anyprobe.binary.analysis.views import ModuleView
from anyprobe.binary.decoding.code_scan import CodeBytes
from anyprobe.binary.decoding.prologues import is_stub_at, takes_return_at


class FirstBytes:
    """The answers for one module; each address is looked at once."""

    def __init__(self, module: ModuleView) -> None:
        """Look at nothing before it is asked for."""
        self._module = module
        self._stubs: dict[int, bool] = {}
        self._takers: dict[int, bool] = {}

    def is_stub(self, address: int) -> bool:
        """Return whether a linkage stub (``jmp [rip+x]``, after ``endbr64`` or not) lies at an address."""
        known = self._stubs.get(address)
        return self._look_at(address, is_stub_at, self._stubs) if known is None else known

    def taking_return(self, targets: set[int]) -> set[int]:
        """Return at which of some addresses what is called takes its return address from the stack at once."""
        for target in targets.difference(self._takers):
            self._look_at(target, takes_return_at, self._takers)
        return {target for target in targets if self._takers[target]}

    def _look_at(self, address: int, says: Callable[[CodeBytes, int], bool], known: dict[int, bool]) -> bool:
        """Return what some bytes say, and take note of it."""
        area = self._module.layout.area_of(address)
        known[address] = area is not None and says(area, address)
        return known[address]
