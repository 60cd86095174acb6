"""Specs of timers and events: what makes hits, and how often."""

import pytest

from anyprobe.core.errors import SpecError
from anyprobe.probes.providers.kernel.places.events import Event, event_of
from anyprobe.probes.providers.kernel.places.specs import Provider, is_kernel, parse

INTERVAL, PROFILE, SOFTWARE, HARDWARE = (
    Provider.INTERVAL, Provider.PROFILE, Provider.SOFTWARE, Provider.HARDWARE
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "event", "canonical"),
    [
        ("interval:s:1", Event(INTERVAL, "", 1_000_000_000), "interval:s:1"),
        ("i:ms:20", Event(INTERVAL, "", 20_000_000), "interval:ms:20"),
        ("interval:us:50", Event(INTERVAL, "", 50_000), "interval:us:50"),
        ("profile:hz:99", Event(PROFILE, "", 10_101_010), "profile:hz:99"),
        ("p:s:2", Event(PROFILE, "", 2_000_000_000), "profile:s:2"),
        ("software:page-faults:1", Event(SOFTWARE, "page-faults", 1), "software:page-faults:1"),
        ("software:faults:", Event(SOFTWARE, "page-faults", 100), "software:faults:"),
        ("s:cs:10", Event(SOFTWARE, "context-switches", 10), "software:cs:10"),
        ("software:cpu-migrations", Event(SOFTWARE, "cpu-migrations", 1), "software:cpu-migrations:"),
        ("hardware:cache-misses:1000", Event(HARDWARE, "cache-misses", 1000), "hardware:cache-misses:1000"),
        ("h:cycles:", Event(HARDWARE, "cpu-cycles", 1_000_000), "hardware:cycles:"),
    ],
)
def test_what_makes_hits(text, event, canonical):
    spec = parse(text)
    assert is_kernel(text)
    assert event_of(spec) == event
    assert spec.canonical(spec.module.text, spec.function.text) == canonical
    assert event_of(parse(canonical)) == event


@pytest.mark.parametrize(
    ("text", "under", "message"),
    [
        ("interval:min:1", 9, "no unit 'min' of time"),
        ("interval::1", 0, "a name is missing"),
        ("interval:s", 9, "how often"),
        ("profile:hz:0", 11, "above 0"),
        ("profile:hz:-3", 11, "above 0"),
        ("interval:us:1", 12, "every 10 us"),
        ("profile:hz:200000", 11, "every 10 us"),
        ("software:page-fault:1", 9, "no software event"),
        ("software:cycles:1", 9, "no software event"),
        ("hardware:faults:1", 9, "no hardware event"),
        ("software:faults:x", 16, "how many events"),
        ("interval:s:1:2", 13, "more parts"),
    ],
)
def test_errors_point_at_the_part(text, under, message):
    with pytest.raises(SpecError, match=message) as caught:
        event_of(parse(text))
    if under:
        assert caught.value.position == under


def test_the_nearest_event_is_told():
    with pytest.raises(SpecError) as caught:
        event_of(parse("software:page-fault:1"))
    assert "page-faults" in str(caught.value)
