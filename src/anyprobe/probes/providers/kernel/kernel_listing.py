"""What probes there are in the running kernel, and whose: its kprobes, programs of BPF, and events of tracefs."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from anyprobe.core.errors import TargetError
from anyprobe.data.findings.leftover import kernels_line
from anyprobe.target.kernel import attached, kprobelist, switches
from anyprobe.target.kernel.attached import LoadedProgram, Place
from anyprobe.target.kernel.kprobelist import DynamicEvent, ListedKprobe

_ENDBR_BYTES = 4
_LETTERS = {"kprobe": "k", "kretprobe": "r"}


@dataclass(frozen=True, slots=True)
class Owner:
    """Who has set a kprobe: a program of BPF and the processes that hold it, or an event of tracefs."""

    name: str
    misses: int | None = None
    pids: tuple[int, ...] = ()

    def __str__(self) -> str:
        """Return it with what it has missed, where that is known."""
        if self.misses is None:
            return f"{self.name}, misses not told"
        return self.name + (f", {self.misses:,} missed" if self.misses else "")


@dataclass(frozen=True, slots=True)
class OwnedKprobe:
    """A kprobe of the kernel's list."""

    listed: ListedKprobe
    owners: tuple[Owner, ...]
    """No owner that is known: a module, the kernel itself, or a perf event without a program."""

    def __str__(self) -> str:
        """Return the kernel's line, and then whose it is."""
        each = self.listed
        line = kernels_line(each.address, each.type, f"{each.symbol}+{each.offset:#x}", each.module, each.flags)
        return "  ".join([line, *(str(owner) for owner in self.owners)])


@dataclass(frozen=True, slots=True)
class KernelProbes:
    """Everything that probes the kernel now; what cannot be read is missing, and ``problems`` says so."""

    kprobes: Sequence[OwnedKprobe]
    programs: Sequence[LoadedProgram]
    events: Sequence[DynamicEvent]
    armed: bool | None
    optimization: bool | None
    problems: tuple[str, ...] = ()
    listed: bool = True
    """Whether the kernel's list of kprobes could be read."""


def inspect() -> KernelProbes:
    """Look; nothing is changed."""
    problems, programs, listed, readable = [], [], [], True
    try:
        programs = attached.loaded_programs()
    except TargetError as failure:
        problems.append(str(failure))
    try:
        listed = kprobelist.kprobes()
    except TargetError as failure:
        readable = False
        problems.append(str(failure))
    events = kprobelist.events()
    for program in programs:
        program.places = [_with_name(place, listed) for place in program.places]
    owned = [OwnedKprobe(each, tuple(owners(each, programs, events))) for each in listed]
    armed, optimization = switches.ARMED.read(), switches.OPTIMIZATION.read()
    return KernelProbes(owned, programs, events, armed, optimization, tuple(problems), readable)


def _with_name(place: Place, listed: Iterable[ListedKprobe]) -> Place:
    """Return a place with the name that the kernel's list has for its address, where it has none itself."""
    near = [each for each in listed if each.type == _LETTERS.get(place.mechanism)] if not place.at else []
    named = next((each for each in near if each.address in {place.address, place.address + _ENDBR_BYTES}), None)
    return place if named is None else replace(place, at=f"{named.symbol}+{named.offset:#x}")


def owners(listed: ListedKprobe, programs: Iterable[LoadedProgram], events: Iterable[DynamicEvent]) -> Iterator[Owner]:
    """Yield who has set a kprobe; several may have set one each at one place, which has a line for each then."""
    for program in programs:
        for place in program.places:
            if _is_at(place, listed):
                yield Owner(described(program), place.misses, tuple(holder.pid for holder in program.holders))
    for event in events:
        if event.type == ("r" if listed.type == "r" else "p") and event.place in _names(listed):
            yield Owner(f"event {event.name}", event.misses)


def described(program: LoadedProgram) -> str:
    """Return a program's number and name, and by whom it is held."""
    holders = ", ".join(f"{each.name} {each.pid}" for each in program.holders) or "pinned"
    return f"program {program.number} {program.name} ({holders})".replace("  ", " ")


def _is_at(place: Place, listed: ListedKprobe) -> bool:
    if _LETTERS.get(place.mechanism) != listed.type:
        return False
    return listed.address in {place.address, place.address + _ENDBR_BYTES} or place.at in _names(listed)


def _names(listed: ListedKprobe) -> set[str]:
    """Return the forms in which a place may have been given; an ``endbr64`` at the entry is passed over."""
    found = {f"{listed.symbol}+{listed.offset:#x}", f"{listed.symbol}+{listed.offset}"}
    if listed.offset in {0, _ENDBR_BYTES}:
        found |= {listed.symbol, f"{listed.symbol}+0"}
    return found | {f"{listed.module}:{name}" for name in found}
