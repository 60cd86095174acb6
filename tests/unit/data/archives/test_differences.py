"""Documents of differences between runs."""

from anyprobe.data.archives.differences import Change


def test_small_numbers_are_not_rounded_to_others():
    """Seconds of a metric are small, and so are shares of samples."""
    found = Change("f", "a.out", {"value": 0.001499, "share": 4e-4}, {"value": 0.0, "share": None}).as_json()
    assert found["before"] == {"value": 0.001499, "share": 0.0004}
    assert found["after"] == {"value": 0.0, "share": None}
