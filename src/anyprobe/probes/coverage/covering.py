"""Coverage: which blocks of functions have run, and which source lines these are."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from anyprobe.core.errors import UnsupportedTarget
from anyprobe.core.refusal import Reason
from anyprobe.data.findings.coverage import Branch, Coverage, CoveredFunction, CoveredModule, Edge, Hits, most

if TYPE_CHECKING:
    from anyprobe.binary.flow.cfg import CodeMap
    from anyprobe.binary.flow.function import FunctionCode
    from anyprobe.binary.images.modules import LoadedObject
    from anyprobe.data.snapshots.snapshot import SiteResult
    from anyprobe.probes.providers.function.probe import Place, Probe
    from anyprobe.probes.providers.function.wanted.entering import Entrances

RUNS, UNDECIDED = "%run", "%undecided"
"""Calls end a run of instructions: they may throw, jump away or end the program. Jumps of which runs do not tell."""


def read_coverage(
    probes: "Sequence[Probe]", counted: "Iterable[tuple[SiteResult, Place]]", *, since: str,
    gate: "Entrances | None" = None,
) -> Coverage:  # fmt: skip
    """Return what has run of functions at whose blocks there are probes, of what was counted at places.

    ``gate``: where threads wait that enter functions for the first time, if any do.
    """
    never: Hits = 0 if gate is None or gate.is_whole() else None
    hits_of = {id(place): _known(site.hits + site.nmissed, place, never) for site, place in counted}
    flagged = [probe for probe in probes if probe.sets_flags]
    flags = {place.site.object for probe in flagged for place in probe.places}
    flags |= {each.site.object for probe in flagged for each in probe.unentered}
    modules: dict[LoadedObject, CodeMap] = {}
    functions: dict[LoadedObject, dict[int, tuple[str, dict[int, Hits]]]] = {}
    sizes: dict[LoadedObject, dict[int, int]] = {}
    taken: dict[LoadedObject, dict[int, Hits]] = {}
    for place in (place for probe in probes for place in probe.places):
        if place.site.kind == UNDECIDED[1:]:
            taken.setdefault(place.site.object, {})[place.want.address] = hits_of.get(id(place))
            continue
        loaded, start = place.site.object, place.site.function.start
        modules[loaded] = place.module.code
        sizes.setdefault(loaded, {})[place.want.address] = place.size
        _, blocks = functions.setdefault(loaded, {}).setdefault(start, (place.site.name, {}))
        # not known of what never counted; specs that overlap count the same
        known = [each for each in (hits_of.get(id(place)), blocks.get(place.offset)) if each is not None]
        blocks[place.offset] = max(known, default=None)
    for each in (each for probe in probes for each in probe.unentered):
        loaded, start = each.site.object, each.site.function.start
        modules[loaded] = each.module.code
        offsets, own = blocks_in(each.code)
        sizes.setdefault(loaded, {}).update(own)
        functions.setdefault(loaded, {}).setdefault(start, (each.site.name, dict.fromkeys(offsets, never)))
    follows = any(probe.wanted.text.endswith(UNDECIDED) for probe in probes)
    refused = [refusal.address for probe in probes for _, refusal in probe.refused]
    found = (
        _covered(each, modules[each], functions[each], refused, sizes[each], taken.get(each, {}), follows=follows)
        for each in modules
    )
    told = (replace(one, counted=each not in flags) for each, one in zip(modules, found, strict=True))
    return Coverage(tuple(told), since, lazy=gate is not None and gate.is_used)


def blocks_in(code: "FunctionCode") -> tuple[list[int], dict[int, int]]:
    """Return the offsets of a function's blocks from its start, and the sizes by the addresses of the blocks."""
    from anyprobe.binary.flow.blocks import run_sizes
    from anyprobe.probes.providers.function.probe import instructions_of

    found = list(instructions_of(code, RUNS[1:]))
    return [at - code.start for at in found], dict(zip(found, run_sizes(code, found), strict=True))


def _known(hits: int, place: "Place", never: Hits) -> Hits:
    """Return the hits of a place; None where there were none before something else took the probe out.

    ``never``: what having none means.
    """
    refusal = place.refusal
    return (hits or never) if hits or refusal is None or refusal.reason is Reason.GONE else None


def blocks_of(spec: str, what: str = RUNS) -> str:
    """Return the spec of the blocks, or the jumps, of functions or of all that a module has."""
    return (spec if ":" in spec else f"{spec}:*") + what


def _covered(
    loaded: "LoadedObject",
    code: "CodeMap",
    functions: dict[int, tuple[str, dict[int, Hits]]],
    refused: Sequence[int],
    sizes: dict[int, int],
    taken: dict[int, Hits],
    *,
    follows: bool,
) -> CoveredModule:
    """Return the coverage of one module; ``refused``: run-time addresses in functions of which nothing is known.

    ``sizes`` are those of blocks, by their link-time addresses, ``taken`` how often conditional jumps were taken;
    ``follows``: whether edges are wanted.
    """
    layout = code.layout
    for address in refused:
        start = layout.start_of(loaded.link_time(address)) if address in loaded else None
        if start is not None:
            functions.setdefault(start, (f"{start:#x}", {0: None}))
    starts = {start: sorted(blocks) for start, (_, blocks) in functions.items()}
    places: dict[tuple[int, int], tuple[str, int]] = {}
    files: dict[str, dict[int, list[Hits]]] = {}
    rows: dict[int, list[tuple[int, str, int]]] = {}
    image, why = loaded.image, ""
    try:
        for address, path, line in image.debug_info.statements():
            start = layout.start_of(address)
            if start is None or start not in functions or not line:
                continue
            places.setdefault((start, address - start), (path, line))
            if follows:
                rows.setdefault(start, []).append((address, path, line))
            # what is before the first block is endbr64, which runs with it
            block = starts[start][max(bisect_right(starts[start], address - start) - 1, 0)]
            files.setdefault(path, {}).setdefault(line, []).append(functions[start][1][block])
    except UnsupportedTarget as refusal:
        why = str(refusal)
    branches: dict[int, dict[int, Branch]] = {}
    edges: dict[int, list[Edge]] = {}
    names: dict[int, str] = {}
    if follows:
        from anyprobe.binary.objects.symbols import static_symbols
        from anyprobe.binary.objects.unique_names import unique_names
        from anyprobe.probes.coverage.covered_edges import covered_edges

        edges, ways = covered_edges(code, {start: blocks for start, (_, blocks) in functions.items()}, taken)
        for each in rows.values():
            each.sort()
        for address, (jumps, goes_on) in sorted(ways.items()):
            start = layout.start_of(address)
            own = rows.get(start, []) if start is not None else []
            _, path, line = own[bisect_right(own, (address, "\U0010ffff", 0)) - 1] if own else (0, "", 0)
            if start is not None:
                branches.setdefault(start, {})[address - start] = Branch(jumps, goes_on, path, line)
        table = static_symbols(image.elf)
        names = {} if table is None else unique_names(table)
    return CoveredModule(
        loaded.name,
        loaded.path,
        image.build_id,
        tuple(
            CoveredFunction(
                name,
                start,
                dict(sorted(blocks.items())),
                *places.get((start, 0), ("", 0)),
                {at: sizes[start + at] for at in starts[start] if sizes.get(start + at)},
                branches.get(start, {}),
                tuple(edges.get(start, ())),
                names.get(start, ""),
            )
            for start, (name, blocks) in sorted(functions.items())
        ),
        {path: {line: most(hits) for line, hits in sorted(lines.items())} for path, lines in sorted(files.items())},
        why,
        base=image.lowest_address,
        end=max((each.vaddr + each.memsz for each in image.elf.loads), default=0),
    )
