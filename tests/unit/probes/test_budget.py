"""When probes that cost too much are tried again."""

from anyprobe.probes.budget import FIRST, LONGEST, Budget


class Probe:
    """Something that is in or out."""


def test_a_probe_waits_twice_as_long_each_time_that_it_has_to_go_again_soon():
    found, probe, now, waits = Budget(), Probe(), 0.0, []
    for _ in range(9):
        found.note_removed([probe], now)
        since = now
        while found.due(0.0, 5.0, now) is None:
            now += 1
        waits.append(now - since)
        found.note_back(probe, now)
        now += 0.5
    assert waits == [min(FIRST * 2**n, LONGEST) for n in range(9)]
    assert found.seconds(now) == sum(waits)
    assert found.removals == 9


def test_a_probe_that_was_in_for_long_begins_anew():
    found, probe = Budget(), Probe()
    found.note_removed([probe], 0)
    found.note_back(probe, 10)
    found.note_removed([probe], 1000)
    assert found.due(0.0, 5.0, 1000 + FIRST) is probe
    assert found.due(0.0, 5.0, 1000 + FIRST - 1) is None


def test_there_has_to_be_room_and_one_comes_at_a_time():
    found, first, second = Budget(), Probe(), Probe()
    found.note_removed([first], 0)
    found.note_removed([second], 1)
    assert found.due(3.0, 5.0, 100) is None
    assert found.due(2.5, 5.0, 100) is first
    found.note_back(first, 100)
    assert found.due(2.5, 5.0, 100) is second
    assert found.seconds(100) == 100 + 99


def test_a_probe_that_loses_its_places_one_after_the_other_waits_no_longer():
    found, probe = Budget(), Probe()
    for now in range(5):
        found.note_removed([probe], now)
    assert found.removals == 5
    assert found.due(0.0, 5.0, FIRST - 1) is None
    assert found.due(0.0, 5.0, FIRST) is probe


def test_what_the_user_removes_or_puts_back_is_not_tried_again():
    found, probe = Budget(), Probe()
    found.note_removed([probe], 0)
    found.forget([probe, Probe()], 4)
    assert found.due(0.0, 5.0, 1000) is None
    assert found.seconds(1000) == 4
