# mypy: disable-error-code="valid-type"
"""Specialisation: functions that are mostly called with one value of a parameter run as that value decides.

Counted is which values the parameters have that are in registers; what these decide is worked out on the machine code
(``splice.codegen.moved.specialised``). Other calls go on in the original.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from anyprobe.binary.flow.blocks import block_at
from anyprobe.binary.flow.function import FunctionCode
from anyprobe.data.aggregates.aggregations import Count
from anyprobe.data.findings.optimisation import Specialised
from anyprobe.handlers.types.annotations import ptr, u64
from anyprobe.isa.registers import GPRS
from anyprobe.probes.providers.function.optimising.optimiser import Optimiser, entry_of
from anyprobe.probes.providers.function.optimising.relayout import Moved, Relayout
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.edits import Module
from anyprobe.splice.plan.splices import Want, WantKind
from anyprobe.splice.regions.banks import Hook

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.probe import Place, Probe

_MOST_FUNCTIONS = 64
"""Functions whose parameters are looked at: those that are called most."""
_CAPACITY = 1 << 16
"""Values of all their parameters."""
_MOSTLY = 0.8
"""The share of a function's calls with one value from which on it is worth a comparison in all."""
_CALLS = 17
"""Stands in the place of a register's number where calls are counted."""
_HALF = 1 << 31
Hit = Any
"""What a handler is called with is typed by their compiler."""


class Specialiser(Optimiser):
    """One optimisation of one process, by values of parameters."""

    def __init__(
        self, host: "ProbeHost", probes: "Sequence[Probe]", measured: "Probe | None", remove: Any,  # noqa: ANN401
        at_entries: "Callable[[Hit, list[str]], list[Probe]]", **settings: Any,  # noqa: ANN401
    ) -> None:  # fmt: skip
        """Take what an optimiser takes, and what has a handler run where functions are entered."""
        super().__init__(host, probes, measured, remove, **settings)
        self._at_entries = at_entries
        self._special: dict[Moved, Specialised] = {}
        """What the functions are made for that are to run elsewhere; some may have to stay."""

    def _steps(self) -> Iterator[float]:
        yield self._watch
        measured, hot = self._called()
        asked = None if self._measure is None else measured
        others = [each for each in hot if asked is None or each.address != asked.address]
        if hot and not others:
            return self._end("what is measured stays as it is, and no other of these functions was called")
        hot = others[:_MOST_FUNCTIONS]
        if not hot:
            return self._end(f"of these functions, none was called in {self._watch:g} s")
        values = self._watched(hot)
        yield self._watch
        shares = self._shares(values)
        for module in {place.module for place in hot}:
            module.code.survey()
        for place in hot:
            self._special |= _specialised(place, shares.get(place.address, {}))
        special = list(self._special)
        if not special:
            return self._end("none of these functions is mostly called with a value that decides something in it")
        for each in special:
            each.find_calls()
        layout = self._layout = Relayout(self._host, special)
        if asked is not None:
            name, places = asked.site.canonical, [entry_of(asked)]
        else:
            name, places = self._calls_of(special)
            if not places:
                return self._end("what calls these functions cannot be counted: name another function by --measure")
        yield from self._compared(layout, name, places)

    def _known(self, layout: Relayout) -> dict[str, object]:
        return super()._known(layout) | {"specialised": tuple(self._special[each] for each in layout.moved)}

    def _watched(self, hot: "Sequence[Place]") -> Count:
        """Begin to count the values of parameters that can be compared with in one instruction."""
        values: Any = Count("values of parameters", by=("place", "register", "value"), capacity=_CAPACITY)

        def seen(ctx: Hit) -> None:
            note(ctx.ip, _CALLS, 0)  # and the registers that parameters are in, by their numbers
            note(ctx.ip, 7, ctx.regs.rdi)
            note(ctx.ip, 6, ctx.regs.rsi)
            note(ctx.ip, 2, ctx.regs.rdx)
            note(ctx.ip, 1, ctx.regs.rcx)
            note(ctx.ip, 8, ctx.regs.r8)
            note(ctx.ip, 9, ctx.regs.r9)

        def note(place: ptr, register: u64, value: u64) -> None:
            if value + _HALF < 2 * _HALF:  # it fits 32 bits, with a sign
                values[place, register, value].add()

        self._watching = self._at_entries(seen, [place.site.canonical for place in hot])
        made: Count = values
        return made

    def _shares(self, values: Count) -> dict[int, dict[int, tuple[int, float]]]:
        """Return by function and register the most frequent value and its share of the calls; count no more."""
        self._remove(*self._watching)
        counts: dict[int, dict[int, dict[int, int]]] = defaultdict(lambda: defaultdict(dict))
        for (place, register, value), cell in values.result().entries.items():
            counts[int(place)][int(register)][int(value)] = cell.count
        found: dict[int, dict[int, tuple[int, float]]] = {}
        for place, registers in counts.items():
            calls = sum(registers.pop(_CALLS, {}).values())
            for register, seen in registers.items():
                value = max(seen, key=seen.__getitem__)
                found.setdefault(place, {})[register] = value, min(seen[value] / max(calls, 1), 1.0)
        return found

    def _calls_of(self, special: Sequence[Moved]) -> tuple[str, list[tuple[Module, FunctionCode, Want]]]:
        """Return what counts the direct calls of one of some functions, without a probe in any of these."""
        moved = {each.code for each in special}
        for each in special:
            blocks = {
                (caller, block_at(caller.blocks, want.address)) for caller, want in each.calls if caller not in moved
            }
            if blocks:
                name = self._host.symbols.name(each.code.start + each.module.bias)
                return name, [
                    (each.module, caller, Want(at, WantKind.OFFSET, tag=Hook(ActionKind.COUNT)))
                    for caller, at in sorted(blocks, key=lambda block: block[1])
                ]
        return "", []


def _specialised(place: "Place", shares: Mapping[int, tuple[int, float]]) -> dict[Moved, Specialised]:
    """Return a function as it is for its most frequent values, and for which; nothing if these decide nothing."""
    code = place.module.code.containing(place.want.address)
    values = {at: value for at, (value, share) in shares.items() if share >= _MOSTLY}
    if code is None:
        return {}
    decided = _decided(place.module, code, values)
    for at in sorted(values, key=lambda at: shares[at][1]):  # what decides nothing is not compared with
        rest = {register: value for register, value in values.items() if register != at}
        if _decided(place.module, code, rest) == decided:
            values = rest
    if not values:
        return {}
    names = {GPRS[at].name: value for at, value in values.items()}
    share = together(shares[at][1] for at in values)
    return {Moved(place.module, code, values=values): Specialised(place.site.canonical, names, share, *decided)}


def together(shares: Iterable[float]) -> float:
    """Return which part of the calls has all of some values at least, by the part that has each of them."""
    return max(0.0, 1.0 - sum(1.0 - each for each in shares))


def _decided(module: Module, code: FunctionCode, values: Mapping[int, int]) -> tuple[int, int, int]:
    """Return how many jumps some values decide, how many results they fix, and how many blocks never run then.

    Less what is so whatever the values are: functions have constants of their own.
    """
    blocks = Moved(module, code).body.blocks(code.entry)
    facts, anyway = (Moved(module, code, values=each).body.facts(blocks) for each in (values, {}))
    return (
        len(facts.taken.keys() - anyway.taken.keys()),
        len(facts.fixed.keys() - anyway.fixed.keys()),
        len(anyway.reached - facts.reached),
    )
