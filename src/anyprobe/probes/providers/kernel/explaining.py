"""``explain`` for the kernel: the code around a place, what its optimiser would do there, and what can reach it.

Nothing is attached: what the kernel would say is worked out from its own rules.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.binary.kernel.addresses import BIAS, upper_text
from anyprobe.binary.kernel.optimizing import JUMP_BYTES, Optimized
from anyprobe.binary.liveness.site import SiteLiveness
from anyprobe.core.errors import SiteRefused, UsageError
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.data.findings.explanation import Explanation, Line
from anyprobe.isa import disassemble
from anyprobe.isa.decode import Insn, decode_one
from anyprobe.probes.providers.kernel import mechanisms
from anyprobe.probes.providers.kernel.code import LiveModule, RunningCode, running, shown
from anyprobe.probes.providers.kernel.places.sites import KernelNames, KernelSite
from anyprobe.probes.providers.kernel.places.specs import KernelSpec
from anyprobe.target.kernel import tracefs

_BEFORE, _BEHIND = 4, 8
_REGISTERS = ("rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r10", "r11")
_ENDS_ONLY = "not used: it sees entries and returns of functions"
_NOT_TRACED = "not used: the kernel's tracer cannot follow this function"


def explain(spec: KernelSpec, names: KernelNames | None = None, code: RunningCode | None = None) -> Explanation:
    """Return what is known of the first place that a spec means; raise ``SiteRefused`` where there is no code."""
    names = names or KernelNames()
    sites = names.resolve(spec)
    site = sites[0]
    if site.function is None:
        raise UsageError(f"{spec.text}: a tracepoint has no place in the code; explain a function of the kernel")
    code = code or running(names.symbols)
    module = code.module(site.function.module)
    function = module.code.function_at(site.function.address - BIAS)
    if isinstance(function, Refusal):
        raise SiteRefused(shown(function))
    return _Place(names, code, module, site, function).explanation()


@dataclass(frozen=True, slots=True)
class _Place:
    names: KernelNames
    code: RunningCode
    module: LiveModule
    site: KernelSite
    function: FunctionCode

    def explanation(self) -> Explanation:
        start, address = self.function.start, self._address()
        insn = self.function.insn_at(address)
        if insn is None:
            raise SiteRefused(shown(self._no_boundary(address)))
        optimized = self.code.optimizer(self.module).look_at(address)
        displaced = optimized.insns if isinstance(optimized, Optimized) else self._would_be_displaced(address)
        free = SiteLiveness(self.module.code, self.function).scratch(address)
        verdicts = tuple(self._verdicts(address))
        refused = None
        if not any(verdict == "chosen" for _, verdict in verdicts):
            refused = next(verdict for name, verdict in verdicts if name.startswith("k") and "multi" not in name)
        function = self.site.function
        assert function is not None
        return Explanation(
            spec=self.site.spec,
            module=self.site.module,
            function=function.name,
            address=address + BIAS,
            function_start=start + BIAS,
            disassembly=tuple(self._lines(address, displaced)),
            live_registers=tuple(name for name in _REGISTERS if name not in free.dead),
            dead_registers=tuple(name for name in _REGISTERS if name in free.dead),
            dead_vectors=(),
            flags_live=not free.flags_dead,
            verdicts=verdicts,
            notes=tuple(self._notes(address, optimized)),
            refused=refused,
        )

    def _address(self) -> int:
        """Return where the place is: of a return, the first instruction at which the function ends."""
        assert self.site.function is not None
        exits = self.function.exits.found if self.site.kind == "return" else ()
        return exits[0].address if exits else self.site.function.address - BIAS + self.site.offset

    def _no_boundary(self, address: int) -> Refusal:
        near = ", ".join(f"{at - self.function.start:#x}" for at in self.function.boundaries_near(address))
        detail = f"no instruction of the function starts here; the nearest ones: {near}"
        return Refusal(Reason.NOT_A_BOUNDARY, address, detail)

    # -- the kernel's optimiser

    def _traced(self) -> list[int]:
        settled = self.module.image.settled
        return [at for at in settled.traced.tolist() if self.function.start <= at < self.function.end]

    def _would_be_displaced(self, address: int) -> tuple[Insn, ...]:
        """Return the instructions that a jump would displace if it were put here."""
        found: list[Insn] = []
        number = self.function.index_of(address)
        while number is not None and number < len(self.function.addresses):
            found.append(self.function.insn(number))
            if found[-1].end - address >= JUMP_BYTES:
                break
            number += 1
        return tuple(found)

    # -- what is shown

    def _lines(self, address: int, displaced: tuple[Insn, ...]) -> Iterator[Line]:
        function = self.function
        index = function.index_of(address) or 0
        moved = {insn.address for insn in displaced}
        written = range(address + 1, address + JUMP_BYTES)
        for number in range(max(index - _BEFORE, 0), min(index + _BEHIND, len(function.addresses))):
            at = function.addresses[number]
            content = self.module.live(at, function.end_of(number))
            insn = decode_one(content, at + BIAS)
            text = disassemble.with_name(insn.text, self._name) if isinstance(insn, Insn) else "?"
            marks = (("IA", at == address), ("DCR", at in moved), ("JTPR", at in written))
            yield Line(at + BIAS, content, text, tuple(name for name, holds in marks if holds))

    def _name(self, address: int) -> str:
        found = self.code.source.kernel.functions.containing(address - BIAS)
        if found is None:
            found = self.module.image.functions.containing(address - BIAS)
        if found is None:
            return f"{address:#x}"
        distance = address - BIAS - found.start
        return found.names[0] + (f"+{distance:#x}" if distance else "")

    def _verdicts(self, address: int) -> Iterator[tuple[str, str]]:
        """Yield each mechanism that there is for functions, and whether it reaches the place."""
        chosen = False
        for way in mechanisms.in_order(1):
            if way.name not in mechanisms.AT_FUNCTIONS:
                continue
            verdict = self._verdict(way, address)
            if verdict == "possible" and not chosen:
                verdict, chosen = "chosen", True
            yield way.called(self.site), verdict

    def _verdict(self, way: mechanisms.Mechanism, address: int) -> str:
        if not way.is_possible(self.site):
            return _ENDS_ONLY
        if way.name == mechanisms.KPROBE.name:
            refusal = self._no_kprobe(self._kprobe_address(address))
            return "possible" if refusal is None else f"{refusal.reason.value}: {refusal.detail}"
        if not self._traced():
            return _NOT_TRACED
        if way.name == mechanisms.FENTRY.name and self.names.type_of(self.site) is None:
            return "not used: BTF has no type of this function alone"
        return "possible"

    def _kprobe_address(self, address: int) -> int:
        """Return where the kernel would set a kprobe; a kretprobe's is at the entry."""
        return self.function.start if self.site.kind == "return" else address

    def _no_kprobe(self, address: int) -> Refusal | None:
        """Return why the kernel refuses a kprobe at an address."""
        name = tracefs.Restrictions().blacklisted(address + BIAS, self.site.names)
        if name:
            return Refusal(Reason.KPROBE_BLACKLIST, address, mechanisms.on_their_way(name))
        return self.code.optimizer(self.module).forbids(address)

    def _notes(self, address: int, optimized: Optimized | Refusal) -> Iterator[str]:
        if self.site.kind == "return":
            yield "the first of the places where the function ends is shown; returns are seen at all of them"
        elif isinstance(optimized, Optimized):
            count = len(optimized.insns)
            size = optimized.insns[-1].end - address
            what = "1 instruction" if count == 1 else f"{count} instructions"
            yield f"the kernel's optimiser puts a jump in the place of a kprobe's trap: {what} of {size} bytes move"
        else:
            why = shown(optimized)
            where = "" if optimized.address == address else f" at {self._name(why.address)}"
            yield f"the kernel's optimiser leaves a kprobe as it is: {why.detail}{where} ({why.reason.value})"
        if self.site.kind != "return":
            yield self._own_verdict(address)
        low, high = self.function.start + BIAS, self.function.end + BIAS
        set_here = [self._name(each.address) for each in self.code.pristine.covers if low <= each.address < high]
        if set_here:
            yield f"kprobes are set in this function, and shown without: {', '.join(set_here)}"
        if self.function.complete is not None:
            yield f"not all of the function's control flow is known: {shown(self.function.complete).detail}"

    def _own_verdict(self, address: int) -> str:
        """Return what the control flow says of a jump of five bytes at the place."""
        entered = sorted(self.module.code.entries.enterable(address + 1, address + JUMP_BYTES))
        if not entered:
            return "by the control flow, nothing enters the bytes of a jump at this place"
        where, why = entered[0]
        return f"by the control flow, {self._name(where + BIAS)} may be entered: {upper_text(why)}"
