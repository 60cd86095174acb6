"""``probes --kernel``: what probes the kernel, as lines or as a document."""

import dataclasses
import sys
from collections.abc import Iterator
from typing import Any

from anyprobe.cli.terminal import output
from anyprobe.probes.providers.kernel import kernel_listing
from anyprobe.probes.providers.kernel.kernel_listing import KernelProbes
from anyprobe.target.kernel.attached import LoadedProgram
from anyprobe.target.kernel.kprobelist import DynamicEvent

_STATES = {True: "on", False: "off", None: "unknown"}


def show(*, as_json: bool) -> int:
    """Look, and print what was found; return the exit status, 1 where nothing could be read."""
    with output.progress("looking", quiet=False):
        found = kernel_listing.inspect()
    if as_json:
        output.write_json(as_document(found), sys.stdout)
    else:
        for line in lines(found):
            output.say(line)
        for problem in found.problems:
            output.say(f"anyprobe: {problem}", error=True)
    return int(bool(found.problems) and not (found.kprobes or found.programs or found.events))


def as_document(found: KernelProbes) -> dict[str, Any]:
    """Return the JSON document."""
    kprobes = [
        dataclasses.asdict(each.listed) | {"owners": [dataclasses.asdict(owner) for owner in each.owners]}
        for each in found.kprobes
    ]
    return {
        "kprobes": kprobes,
        "programs": [dataclasses.asdict(each) for each in found.programs],
        "events": [dataclasses.asdict(each) for each in found.events],
        "armed": found.armed,
        "optimization": found.optimization,
        "problems": list(found.problems),
    }


def lines(found: KernelProbes) -> Iterator[str]:
    """Yield the lines: the kernel's list, programs, events, each under a heading where there is any."""
    states = f"armed: {_STATES[found.armed]}, optimization: {_STATES[found.optimization]}"
    listed = "kprobes" if found.kprobes else "no kprobes" if found.listed else "kprobes not readable"
    yield f"{listed} ({states})"
    yield from map(str, found.kprobes)
    if found.programs:
        yield "programs of BPF"
        yield from map(_program, found.programs)
    if found.events:
        yield "events of tracefs"
        yield from map(_event, found.events)


def _program(program: LoadedProgram) -> str:
    places = [
        f"{each.mechanism}:{each.at or (f'{each.address:#x}' if each.address else '')}" for each in program.places
    ]
    attached = ", ".join(place.rstrip(":") for place in places) or "not attached"
    missed = (program.misses or 0) + sum(each.misses or 0 for each in program.places)
    return f"{program.number:>6}  {program.type}  {_named(program)}  {attached}" + (
        f"  {missed:,} missed" * bool(missed)
    )


def _named(program: LoadedProgram) -> str:
    holders = ", ".join(f"{each.name} {each.pid}" for each in program.holders) or "pinned"
    return f"{program.name or '-'} ({holders})"


def _event(event: DynamicEvent) -> str:
    state = "enabled" if event.enabled else "disabled"
    counted = [] if event.hits is None else [f"{event.hits:,} hits"]
    counted += [f"{event.misses:,} missed"] if event.misses else []
    return f"{event.definition}  [{state}]  {', '.join(counted)}".rstrip()
