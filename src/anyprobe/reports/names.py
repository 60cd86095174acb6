"""Long names of functions, of C++ and Rust above all, as tables show them: parameters and types as an ellipsis."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, TypeVar

from anyprobe.data.snapshots.snapshot import FunctionTiming, SiteResult, Snapshot

if TYPE_CHECKING:
    from anyprobe.data.findings.calltree import CallNode
    from anyprobe.data.snapshots.profile import Profile

LONGEST = 60
"""Characters of a name that is shown as it is."""
_OPERATOR = re.compile(r"operator\s*(?:->\*?|<=>|<<=?|>>=?|[<>]=?|\(\))")
_OPENING, _CLOSING = "([{<", ")]}>"
_CUT = "…"
Result = TypeVar("Result", SiteResult, FunctionTiming)


def with_short_names(snapshot: Snapshot) -> Snapshot:
    """Return results whose tables have short names, as long as it takes to tell functions of a module apart."""
    short = _shortener(_names(snapshot))
    return replace(
        snapshot,
        sites=tuple(_named(site, short) for site in snapshot.sites),
        functions=tuple(_named(timing, short) for timing in snapshot.functions),
        processes=tuple(
            replace(each, functions=tuple(_named(timing, short) for timing in each.functions))
            for each in snapshot.processes
        ),
        threads=tuple(
            replace(each, functions=tuple(_named(timing, short) for timing in each.functions))
            for each in snapshot.threads
        ),
        tree=tuple(_node(node, short) for node in snapshot.tree),
    )


def with_short_frames(profile: "Profile") -> "Profile":
    """Return a profile whose tables have short names, as ``with_short_names``."""
    frames = {frame for stack in profile.stacks for frame in stack.frames}
    short = _shortener((frame.module, frame.function) for frame in frames)
    shown = {frame: frame._replace(function=short(frame.module, frame.function)) for frame in frames}
    stacks = (replace(each, frames=tuple(shown[frame] for frame in each.frames)) for each in profile.stacks)
    return replace(profile, stacks=tuple(stacks))


def _named(result: Result, short: Callable[[str, str], str]) -> Result:
    shown = result.label or short(result.module, result.function)
    return result if shown in (result.label, result.function) else replace(result, label=shown)


def _node(node: "CallNode", short: Callable[[str, str], str]) -> "CallNode":
    calls = tuple(_node(each, short) for each in node.calls)
    return replace(node, function=short(node.module, node.function), calls=calls)


def _shortener(all_names: Iterable[tuple[str, str]]) -> Callable[[str, str], str]:
    """Return what gives a function's short name, by its module and name: longer where another is alike."""
    alike: dict[tuple[str, str], set[str]] = defaultdict(set)
    for module, name in all_names:
        if len(name) > LONGEST:
            alike[module, short_name(name)].add(name)
    shown = {
        (module, name): short
        for (module, _), names in alike.items()
        for name, short in zip(names, _told_apart(list(names)), strict=True)
    }
    return lambda module, name: shown.get((module, name), name)


def _told_apart(names: Sequence[str]) -> list[str]:
    """Return short names of functions whose shortest ones are the same."""
    if len(names) == 1:
        return [short_name(names[0])]
    forms = [short_forms(name) for name in names]
    for level in range(max(map(len, forms))):
        shown = [each[min(level, len(each) - 1)] for each in forms]
        if len(set(shown)) == len(names):
            return shown
    return list(names)


def _names(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    parts = [snapshot.functions, *(each.functions for each in snapshot.processes)]
    parts += [each.functions for each in snapshot.threads]
    yield from ((each.module, each.function) for each in snapshot.sites)
    yield from ((each.module, each.function) for functions in parts for each in functions)
    yield from _names_in(snapshot.tree)


def _names_in(nodes: "Iterable[CallNode]") -> Iterator[tuple[str, str]]:
    for node in nodes:
        yield node.module, node.function
        yield from _names_in(node.calls)


def short_name(name: str) -> str:
    """Return a name with as few of its parameters and types left out as make it short enough, or with all left out."""
    forms = short_forms(name)
    return next((form for form in reversed(forms) if len(form) <= LONGEST), forms[0])


@lru_cache(1 << 14)
def short_forms(name: str) -> tuple[str, ...]:
    """Return forms of a name, the shortest first: with all left out that is in brackets, with less of it, and whole.

    What is in the innermost brackets goes first. A bracket at the very beginning stays: ``<T as Trait>::method``.
    """
    groups = [(depth, start, end) for depth, start, end in _groups(name) if start > 1 and end - start > len(_CUT)]
    depths = sorted({depth for depth, _, _ in groups})
    return (*(_without(name, [(start, end) for at, start, end in groups if at >= depth]) for depth in depths), name)


def _groups(name: str) -> list[tuple[int, int, int]]:
    """Return what brackets enclose in a name: how deep that is, where it begins and where it ends."""
    plain = _OPERATOR.sub(lambda found: "x" * len(found[0]), name).replace("->", "xx")
    plain = plain.replace("(anonymous namespace)", "x" * len("(anonymous namespace)"))
    found: list[tuple[int, int, int]] = []
    opened: list[int] = []
    for at, character in enumerate(plain):
        if character in _OPENING:
            opened.append(at + 1)
        elif character in _CLOSING and opened:
            start = opened.pop()
            found.append((len(opened), start, at))
    return found


def _without(name: str, groups: Iterable[tuple[int, int]]) -> str:
    """Return a name with an ellipsis in the place of each group, those within others with these."""
    parts: list[str] = []
    last = 0
    for start, end in sorted(groups):
        if start >= last:
            parts += [name[last:start], _CUT]
            last = end
    return "".join((*parts, name[last:]))
