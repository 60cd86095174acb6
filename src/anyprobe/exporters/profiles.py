"""Profiles by samples as trees of calls, as exporters take them."""

from dataclasses import replace

from anyprobe.data.archives.runs import Run
from anyprobe.data.findings.calltree import CallNode
from anyprobe.data.snapshots.profile import Profile
from anyprobe.data.snapshots.snapshot import Snapshot
from anyprobe.exporters.base import Measurement

SAMPLES, NANOSECONDS = "samples", "nanoseconds"
"""What the counts of its trees are of; the latter where they are of the time off processors."""


def measurement_of(profile: Profile, run: Run | None = None) -> Measurement:
    """Return a profile as a measurement; processes or threads that are told apart are the outermost functions.

    Args:
        profile: the samples.
        run: how they were taken, where that is shown or kept.
    """
    tree = profile.tree
    if profile.by is not None:
        each = {key: profile.of(key).tree for key in profile.keys}
        tree = tuple(
            CallNode("", f"{profile.by} {key}", sum_ns=sum(node.sum_ns for node in calls), calls=calls)
            for key, calls in each.items()
        )
    snapshot = Snapshot(profile.targets[0], profile.duration_s, warnings=profile.warnings, tree=tree)
    return Measurement(
        snapshots=[snapshot],
        together=snapshot,
        what=what_of(profile),
        counted=counted_of(profile),
        run=None if run is None else replace(run, profile=profile),
    )


def counted_of(profile: Profile) -> str:
    """Return what the counts of its trees are of."""
    return SAMPLES if profile.waits is None else NANOSECONDS


def what_of(profile: Profile) -> str:
    """Return what the time of its trees is."""
    if profile.waits is not None:
        return f"Time off processors in {profile.waits:,} waits"
    return f"Time on processors by {profile.samples:,} samples of stacks"
