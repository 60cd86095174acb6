"""The command that probes what a profile has shown to be hot."""

import shlex
from collections import Counter
from collections.abc import Iterable, Sequence

from anyprobe.data.snapshots.profile import ProfiledStack, ProfileFrame
from anyprobe.probes.specs.naming import as_spec

_MOST = 8
_ENOUGH = 0.8
"""Functions are named up to this share of the samples that any of them has."""


def hot_specs(stacks: Iterable[ProfiledStack], most: int = _MOST, enough: float = _ENOUGH) -> list[str]:
    """Return specs of the functions in which a program was most often, the hottest first; not of the kernel's.

    Args:
        stacks: what was sampled.
        most: how many at most.
        enough: up to which share of the samples that any of them has.
    """
    counts: Counter[ProfileFrame] = Counter()
    for stack in stacks:
        frame = next((each for each in stack.frames if not each.kernel and not each.inlined), None)
        if frame is not None and frame.probed:
            counts[frame._replace(line="")] += stack.count
    specs, named = [], 0
    for frame, count in counts.most_common(most):
        if named >= enough * counts.total():
            break
        specs.append(spec_of(frame))
        named += count
    return specs


def spec_of(frame: ProfileFrame) -> str:
    """Return a spec that means a function."""
    return f"{frame.shown_module}:{as_spec(frame.function)}"


def next_command(stacks: Iterable[ProfiledStack], target: Sequence[str]) -> str:
    """Return the command for a shell, empty if nothing that can be probed was hot; ``target`` chooses the process."""
    specs = hot_specs(stacks)
    return shlex.join(["anyprobe", "time", "--self", *specs, *target]) if specs else ""
