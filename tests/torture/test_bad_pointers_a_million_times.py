"""Handlers that read a million bad pointers, in a program that handles faults of its own."""

from live.test_reading import run


def test_bad_pointers_do_no_harm_a_million_times():
    assert run(20_000, 2) > 1_000_000
