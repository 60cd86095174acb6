"""Timers and events as places: what ``interval:s:1``, ``profile:hz:99`` and ``software:page-faults:100`` mean."""

from typing import Final, NamedTuple

from anyprobe.probes.providers.kernel.places.specs import KernelSpec, Provider
from anyprobe.probes.specs.nearest import nearest_names
from anyprobe.target.kernel import perf

_SECOND: Final = 1_000_000_000
_UNITS = {"s": _SECOND, "ms": 1_000_000, "us": 1_000}
_HERTZ = "hz"
_SHORTEST_NS: Final = 10_000
"""Below this the kernel's own timer for such events does not go."""
_ALIASES = {
    "cpu": "cpu-clock", "faults": "page-faults", "cs": "context-switches", "cycles": "cpu-cycles",
    "branches": "branch-instructions",
}  # fmt: skip
_OFTEN = {
    "cpu-clock": 1_000_000, "task-clock": 1_000_000, "page-faults": 100, "context-switches": 1000, "minor-faults": 100,
    "cpu-cycles": 1_000_000, "instructions": 1_000_000, "cache-references": 1_000_000, "cache-misses": 1_000_000,
    "branch-instructions": 100_000, "branch-misses": 100_000, "bus-cycles": 100_000,
    "frontend-stalls": 1_000_000, "backend-stalls": 1_000_000, "ref-cycles": 1_000_000,
}  # fmt: skip
"""How many events make a hit where nothing is said, as in bpftrace; of others each one does."""


class Event(NamedTuple):
    """What makes hits: a timer, or every so many events of a kind."""

    provider: Provider
    name: str
    """The kernel's name; empty for timers."""
    every: int
    """Nanoseconds, or events."""

    @property
    def is_timer(self) -> bool:
        """Whether time makes the hits."""
        return not self.name

    @property
    def everywhere(self) -> bool:
        """Whether every processor makes hits; else one does for all."""
        return self.provider is not Provider.INTERVAL


def event_of(spec: KernelSpec) -> Event:
    """Return what a spec of a timer or an event means; raise ``SpecError`` with a caret."""
    return _timer(spec) if spec.provider in {Provider.INTERVAL, Provider.PROFILE} else _counted(spec)


def _timer(spec: KernelSpec) -> Event:
    unit, number = spec.module.text, spec.function.text
    units = (_HERTZ, *_UNITS)
    if unit not in units:
        nearest = tuple(f"{spec.provider.value}:{each}:{number or 1}" for each in units)
        raise spec.error(spec.module, f"no unit {unit!r} of time", nearest)
    if not number.isdecimal() or not int(number):
        example = f"{spec.provider.value}:{unit}:{99 if unit == _HERTZ else 1}"
        raise spec.error(spec.function, f"how often is a number above 0, as in {example}", (example,))
    every = _SECOND // int(number) if unit == _HERTZ else int(number) * _UNITS[unit]
    if every < _SHORTEST_NS:
        raise spec.error(spec.function, "the kernel's timers go every 10 us at most")
    return Event(spec.provider, "", every)


def _counted(spec: KernelSpec) -> Event:
    known = perf.SOFTWARE if spec.provider is Provider.SOFTWARE else perf.HARDWARE
    name = _ALIASES.get(spec.module.text, spec.module.text)
    if name not in known:
        nearest = nearest_names(spec.module.text, [*known, *(alias for alias, of in _ALIASES.items() if of in known)])
        raise spec.error(spec.module, f"no {spec.provider.value} event has this name", nearest)
    number = spec.function.text
    if number and (not number.isdecimal() or not int(number)):
        message = "how many events make a hit is a number above 0, or left empty"
        raise spec.error(spec.function, message, (f"{spec.provider.value}:{name}:1",))
    return Event(spec.provider, name, int(number) if number else _OFTEN.get(name, 1))
