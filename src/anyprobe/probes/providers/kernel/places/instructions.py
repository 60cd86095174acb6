"""Instructions of functions of the running kernel that a spec means together: all, those where blocks begin, calls."""

from anyprobe.binary.flow.blocks import block_starts, calls_of
from anyprobe.binary.kernel.addresses import BIAS
from anyprobe.core.refusal import Refusal
from anyprobe.probes.providers.kernel.code import running, shown
from anyprobe.probes.providers.kernel.places.specs import KernelSpec
from anyprobe.splice.kernel.places import entry_of
from anyprobe.target.kernel.symbols import KernelFunction, Symbols


def offsets_of(symbols: Symbols, spec: KernelSpec, function: KernelFunction) -> list[int]:
    """Return where in a function the instructions are that a spec means, in ascending order.

    Raises:
        SpecError: the function's code is not known; of a pattern such functions are left out.
    """
    module = running(symbols).module(function.module)
    found = module.code.function_at(function.address - BIAS)
    if isinstance(found, Refusal):
        if spec.is_glob:
            return []
        raise spec.error(spec.function, shown(found).detail)
    match spec.name:
        case "block":
            addresses = block_starts(module.code, found)
            entry = entry_of(module.code, found, module.image.settled)
            if not isinstance(entry, Refusal):  # after what the kernel needs there, in the same block
                addresses = (entry, *(each for each in addresses if each > entry))
        case "call":
            addresses = calls_of(found)
        case _:
            addresses = tuple(found.sites_among(insn.address for insn in found.insns))
    return [address - found.start for address in addresses]
