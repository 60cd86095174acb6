"""More than ten thousand instructions of an interpreter and its libraries, each alone in its function."""

from live.test_sampled_instructions import armed_and_run


def test_ten_thousand_instructions():
    """All but one in a thousand can be armed; the interpreter's results never change."""
    share, hit, refused = armed_and_run(10_500, 400)
    assert share >= 0.999, refused
    assert hit > 1000
