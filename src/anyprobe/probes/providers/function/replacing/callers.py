"""Callers that rely on what a function leaves alone: another function in its place would break them.

GCC knows of a function in the same file which registers it changes, and may have a caller keep values in others which
calls usually destroy (``-fipa-ra``, on at ``-O2``). Such a caller reads one of them after the call before anything is
written to it. That is looked for from each direct call on, as far as the next call, on all ways, even on those that are
never taken.
"""

from typing import TYPE_CHECKING

from iced_x86 import InstructionInfoFactory, Mnemonic, Register, RegisterExt

from anyprobe.core.errors import UnsupportedTarget
from anyprobe.core.refusal import Refusal
from anyprobe.isa.decode import Flow
from anyprobe.isa.effects import READS, WRITES, effects

if TYPE_CHECKING:
    from anyprobe.binary.flow.function import FunctionCode
    from anyprobe.isa.decode import Insn
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.resolve import ResolvedSite

_MOST = 400
"""Instructions that are looked at after a call."""
_GENERAL = (Register.RCX, Register.RSI, Register.RDI, Register.R8, Register.R9, Register.R10, Register.R11)
_VECTORS = tuple(Register.ZMM0 + number for number in range(2, 16))
_DESTROYED = frozenset[int]((*_GENERAL, *_VECTORS))
"""What a call leaves undefined, without what may hold its result."""
_NAMES = dict(zip(_GENERAL, ["rcx", "rsi", "rdi", "r8", "r9", "r10", "r11"], strict=True))


def refuse_reliant(host: "ProbeHost", site: "ResolvedSite") -> None:
    """Raise if a direct caller of a function keeps something in a register that the function just happens to leave."""
    module = host.module(site.object)
    code = module.code.function_at(site.function.start)
    if isinstance(code, Refusal) or (code.exits.complete is None and not code.exits.found):  # what follows is no return
        return
    entry = site.address - site.object.bias
    for target in {entry, site.function.start}:
        for source in module.code.entries.sources_of(target):
            caller = module.code.containing(source)
            insn = None if caller is None else caller.covering(source)
            if caller is None or insn is None or insn.flow is not Flow.CALL or insn.target != target:
                continue
            kept = _kept_after(caller, insn.end)
            if kept is not None:
                name = host.symbols.name(insn.address + site.object.bias)
                text = f"{name} may still need {kept} after its call of {site.canonical}"
                raise UnsupportedTarget(f"{text}, and another function may change that (gcc -fipa-ra)")


def _kept_after(caller: "FunctionCode", start: int) -> str | None:
    """Return a register that is read from an address on before it is written, of those that calls destroy."""
    infos = InstructionInfoFactory()
    seen: dict[int, frozenset[int]] = {}
    todo = [(start, _DESTROYED)]
    for _ in range(_MOST):
        if not todo:
            break
        at, undefined = todo.pop()
        undefined -= seen.get(at, frozenset())
        insn = caller.insn_at(at) if undefined else None
        if insn is None:
            continue
        seen[at] = seen.get(at, frozenset()) | undefined
        used = infos.info(insn.iced).used_registers()
        read = {RegisterExt.full_register(each.register) for each in used if each.access in READS}
        iced = insn.iced
        same = iced.mnemonic == Mnemonic.SBB and iced.op0_register == iced.op1_register
        whole = 0 if same else effects(insn).reads  # without idioms of which the result is the same whatever was there
        for register in sorted(read & undefined):
            if register in _VECTORS or whole >> RegisterExt.number(register) & 1:
                return _NAMES.get(register) or f"xmm{RegisterExt.number(register)}"
        written = {RegisterExt.full_register(each.register) for each in used if each.access in WRITES}
        todo += [(each, undefined - written) for each in _next(caller, insn)]
    return None


def _next(caller: "FunctionCode", insn: "Insn") -> list[int]:
    """Return where a function goes on after an instruction, as far as it is known what is done until then."""
    if insn.flow is Flow.NEXT:
        return [insn.end]
    if insn.flow in (Flow.JCC, Flow.JUMP) and insn.target is not None:
        inside = [insn.target] if caller.start <= insn.target < caller.end else []
        return [*inside, insn.end] if insn.flow is Flow.JCC else inside
    return []
