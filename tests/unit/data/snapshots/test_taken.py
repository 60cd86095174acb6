"""What probes have taken, and what is left of times that are hardly longer."""

from anyprobe.data.snapshots.taken import Taken, settled


def test_no_more_is_taken_than_was_measured():
    """Costs are known within their error only: of calls that take next to nothing it would be more."""
    taken = Taken(100.0, 12.0, 90.0, 11.0, 80.0, 10.0)
    assert settled(5.0, taken) == (5.0, taken)
    left, found = settled(-20.0, taken)
    assert (left, found.sum_ns) == (0.0, 80.0)
    assert (found.error_ns, found.self_ns) == (12.0, 90.0)
    assert settled(-1.0, None) == (0.0, None)
