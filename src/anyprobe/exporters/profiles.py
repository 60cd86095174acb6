"""Profiles by samples as trees of calls, as exporters take them."""

from anyprobe.data.calltree import CallNode
from anyprobe.data.profile import Profile
from anyprobe.data.snapshot import Snapshot
from anyprobe.exporters.base import Measurement


def measurement_of(profile: Profile) -> Measurement:
    """Return a profile as a measurement; processes or threads that are told apart are the outermost functions."""
    tree = profile.tree
    if profile.by is not None:
        each = {key: profile.of(key).tree for key in profile.keys}
        tree = tuple(
            CallNode("", f"{profile.by} {key}", sum_ns=sum(node.sum_ns for node in calls), calls=calls)
            for key, calls in each.items()
        )
    snapshot = Snapshot(profile.targets[0], profile.duration_s, tree=tree)
    return Measurement(
        snapshots=[snapshot],
        together=snapshot,
        what=f"Time on processors by {profile.samples:,} samples of stacks",
        counted="samples",
    )
