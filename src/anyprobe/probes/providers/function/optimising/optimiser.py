"""The course of an optimisation: count, choose, have functions run elsewhere, compare by turns, keep or put back."""

import time
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from anyprobe.binary.flow.function import FunctionCode
from anyprobe.core.errors import TargetExited, UsageError
from anyprobe.data.findings.optimisation import Optimisation, interval_of
from anyprobe.data.findings.refused import RefusedSite
from anyprobe.probes.providers.function.optimising.ordering import in_order
from anyprobe.probes.providers.function.optimising.relayout import Moved, Relayout, change
from anyprobe.probes.providers.function.reading import BankValues
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.edits import Module
from anyprobe.splice.plan.splices import Want, WantKind
from anyprobe.splice.regions.banks import Hook

if TYPE_CHECKING:
    from anyprobe.probes.providers.function.host import ProbeHost
    from anyprobe.probes.providers.function.probe import Place, Probe

_LINE = 64
_MOST_FUNCTIONS = 5000
"""Functions that are moved at most: those that are called most."""
_FEW = 10
"""Calls of the measured function in one turn, at least: of fewer, one more or less is a part too large."""
_OFTEN = 100
"""Calls in one turn of a function that is chosen to be measured."""
_ALIKE = 1.01
"""How many times faster it has to be: less is not worth that the code is elsewhere."""
_COLD = -1


class Optimiser:
    """One optimisation of one process."""

    def __init__(
        self, host: "ProbeHost", probes: "Sequence[Probe]", measured: "Probe | None", remove: "Callable[..., None]", *,
        watch: float, turns: int, turn: float,
    ) -> None:  # fmt: skip
        """Take probes that count the entries of the functions in question, and of the one that is to be measured.

        Args:
            host: The session.
            probes: The functions.
            measured: The one whose calls are timed; None: one of these is chosen.
            remove: Takes probes out.
            watch: Seconds for which is counted what runs, functions first and then blocks.
            turns: How often both ways are compared.
            turn: Seconds of each turn.

        """
        self._host, self._probes, self._measure = host, probes, measured
        self._remove = remove
        self._watch, self._turns, self._turn = watch, turns, turn
        self._layout: Relayout | None = None
        self.found = Optimisation(reason="it was ended before both ways were compared")
        """What came of it."""
        self._counted: list[tuple[Module, FunctionCode, Want]] = []
        """Where counters of its own are."""

    def steps(self) -> Iterator[float]:
        """Do one step after another; each time yield for how many seconds the program is to run."""
        try:
            yield from self._steps()
        except TargetExited:
            self._end("the program has ended meanwhile")
        finally:
            self._uncount()
            if not self.found.kept:
                self.revert()

    def revert(self) -> None:
        """Have everything run where it was."""
        if self._layout is not None and self._is_there:
            with suppress(TargetExited):
                self._layout.revert()

    @property
    def _is_there(self) -> bool:
        return self._host.ended is None and not self._host.process.exited()

    def _count(self, places: list[tuple[Module, FunctionCode, Want]]) -> None:
        self._counted = places
        change(self._host, places)

    def _uncount(self) -> None:
        """Take the counters out again."""
        placed = [each for each in self._counted if isinstance(each[2].tag, Hook) and each[2].tag.armed]
        self._counted = []
        if placed and self._is_there:
            with suppress(TargetExited):
                change(self._host, placed, remove=True)

    def _end(self, reason: str, **known: object) -> None:
        self.found = Optimisation(reason=reason, **known)  # type: ignore[arg-type] # as the fields are

    def _steps(self) -> Iterator[float]:
        yield self._watch
        measured, hot = self._called()
        if measured is None or not hot:
            return self._end(f"of these functions, none was called in {self._watch:g} s")
        blocks, wants = {}, []
        for module in {place.module for place in hot}:
            module.code.survey()
        for place in hot:
            code = place.module.code.containing(place.want.address)
            if code is not None:
                blocks[code] = {at: Hook(ActionKind.COUNT) for at in code.blocks}
                wants += [
                    (place.module, code, Want(at, WantKind.OFFSET, tag=each)) for at, each in blocks[code].items()
                ]
        self._count(wants)
        yield self._watch
        values = BankValues()
        counts = {
            code: {at: values.hits(hook) if hook.armed else _COLD for at, hook in hooks.items()}
            for code, hooks in blocks.items()
        }
        self._uncount()
        size, cache = _hot_bytes(counts), _instruction_cache()
        if size <= cache:
            text = (
                f"its hot code, {_kib(size)} in {len(counts):,} functions, fits the instruction cache ({_kib(cache)})"
            )
            return self._end(f"nothing is to be gained: {text}", hot_bytes=size)
        layout = self._layout = Relayout(self._host, self._ordered(hot, measured, counts))
        yield from self._compared(layout, measured.site.canonical, [entry_of(measured)], hot_bytes=size)

    def _called(self) -> "tuple[Place | None, list[Place]]":
        """Return the place that is measured and those of the functions that were called most; count no more."""
        values = BankValues()
        probes = [*self._probes, *([self._measure] if self._measure is not None else [])]
        hits = {place: values.hits(place.hook) for probe in probes for place in probe.places if place.armed}
        if self._measure is None:
            least = _OFTEN * self._watch / self._turn
            known = sorted((each for each in hits if hits[each]), key=hits.__getitem__)
            often = [each for each in known if hits[each] >= least] or known[-1:]
            # its neighbours may have to stay, too: a large one has few
            measured = min(often, key=lambda each: (hits[each], -each.site.function.size), default=None)
        else:
            measured = next((each for each in self._measure.places if each.armed), None)
            if measured is None:
                raise UsageError("the function that is to be measured cannot be counted")
        self._hits = hits
        self._remove(*probes)
        own = {id(probe) for probe in self._probes}
        hot = [place for probe in probes if id(probe) in own for place in probe.places if hits.get(place)]
        unique = {(id(place.module), place.want.address): place for place in hot}
        return measured, sorted(unique.values(), key=lambda place: -hits[place])[:_MOST_FUNCTIONS]

    def _ordered(
        self, hot: "Sequence[Place]", measured: "Place", counts: Mapping[FunctionCode, Mapping[int, int]]
    ) -> list[Moved]:
        moved, calls = [], {}
        for place in hot:
            code = place.module.code.containing(place.want.address)
            if code is None or place.address == measured.address:
                continue
            each = Moved(place.module, code, frozenset(at for at, number in counts[code].items() if number == 0))
            each.find_calls()
            moved.append(each)
            calls[each] = self._hits[place]
        return in_order(moved, calls, counts)

    def _compared(
        self, layout: Relayout, name: str, places: Sequence[tuple[Module, FunctionCode, Want]], **known: object
    ) -> Iterator[float]:
        """Measure by turns, and end with the one that is better.

        Args:
            layout: What is compared with how it was.
            name: The function whose calls are timed.
            places: Where these are counted.
            known: What is known of the optimisation so far.

        """
        self._count(list(places))
        hooks = [want.tag for _, _, want in places if isinstance(want.tag, Hook)]
        if refused := next((hook.refusal for hook in hooks if not hook.armed), None):
            raise UsageError(f"{name} cannot be counted: {refused}")
        known["measured"] = name
        times: dict[bool, list[float]] = {False: [], True: []}
        for number in range(self._turns):
            for anew in (False, True) if number % 2 == 0 else (True, False):
                if anew and not layout.moved:
                    layout.apply()
                    known |= self._known(layout)
                    if not layout.moved:
                        return self._end("no function could be moved", **known)
                elif not anew and layout.moved:
                    layout.revert()
                calls, cpu = _hits(hooks), _cpu_time(self._host.pid)
                yield self._turn
                calls, cpu = _hits(hooks) - calls, _cpu_time(self._host.pid) - cpu
                if calls < _FEW:
                    text = f"{name} was called {calls} times in {self._turn:g} s"
                    return self._end(f"{text}, too seldom to compare: name another function by --measure", **known)
                times[anew].append(cpu / calls)
        low, high = interval_of(times[False], times[True])
        known |= {
            "before_ns": _mean(times[False]), "after_ns": _mean(times[True]), "interval": (low, high),
            "kept": low > _ALIKE,
        }  # fmt: skip
        self._uncount()
        if known["kept"] and not layout.moved:
            layout.apply()
        elif not known["kept"]:
            layout.revert()
        self._end("it is faster" if known["kept"] else "it is not faster, as far as can be told", **known)

    def _known(self, layout: Relayout) -> dict[str, object]:
        stayed = [
            RefusedSite(_name(self._host, each), why.address + each.module.bias, why.reason.value, why.detail)
            for each, why in layout.refused.items()
        ]
        return {
            "functions": len(layout.moved), "calls": layout.rebound(), "code_bytes": layout.bytes,
            "stayed": tuple(stayed),
        }  # fmt: skip


def entry_of(place: "Place") -> tuple[Module, FunctionCode, Want]:
    """Return what counts the calls of a function, beside functions that run elsewhere."""
    code = place.module.code.containing(place.want.address)
    assert code is not None
    return place.module, code, Want(place.want.address, WantKind.ENTRY, tag=Hook(ActionKind.COUNT))


def _hits(hooks: "Sequence[Hook]") -> int:
    values = BankValues()
    return sum(map(values.hits, hooks))


def _name(host: "ProbeHost", moved: Moved) -> str:
    return host.symbols.name(moved.code.start + moved.module.bias)


def _mean(times: Sequence[float]) -> float:
    return sum(times) / len(times)


def _hot_bytes(counts: Mapping[FunctionCode, Mapping[int, int]]) -> int:
    """Return the bytes of the cache lines in which blocks lie that have run."""
    lines: set[int] = set()
    for code, blocks in counts.items():
        starts = code.blocks
        for at, number in blocks.items():
            if number != 0:
                place = bisect_left(starts, at) + 1
                end = starts[place] if place < len(starts) else code.end
                lines.update(range(at // _LINE, (end - 1) // _LINE + 1))
    return _LINE * len(lines)


def _instruction_cache() -> int:
    """Return the size of a processor's first cache for instructions, as the kernel tells it; 32 KiB if it does not."""
    with suppress(OSError, ValueError):
        for each in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*"):
            if (each / "type").read_text().strip() == "Instruction":
                return int((each / "size").read_text().strip().removesuffix("K")) << 10
    return 32 << 10


def _kib(size: int) -> str:
    return f"{size / 1024:,.0f} KiB"


def _cpu_time(pid: int) -> int:
    """Return how many nanoseconds of processor time the threads of a process have used, by the kernel's own clock."""
    try:
        return time.clock_gettime_ns(~pid << 3 | 2)
    except OSError as error:
        raise TargetExited(pid) from error
