"""Metrics of Prometheus, read again by its own client: the numbers, their bounds, and that none ever goes back."""

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from anyprobe.exporters.monitoring.prometheus import BOUNDS, Metrics
from support.sample_snapshots import site, snapshot, timing


class Scraped:
    """A collector whose results a test changes."""

    def __init__(self, most=0):
        self.registry, self.found = CollectorRegistry(), snapshot(sites=())
        self.registry.register(Metrics(lambda: self.found, most))

    def __call__(self, **found):
        self.found = replace(self.found, **found)
        text = generate_latest(self.registry).decode()
        samples = [each for family in text_string_to_metric_families(text) for each in family.samples]
        return {(each.name, each.labels.get("function", ""), each.labels.get("le", "")): each.value for each in samples}


def calls(found):
    return {name: value for (metric, name, _), value in found.items() if metric.endswith("seconds_count")}


def function(name, count, buckets=None, **more):
    buckets = ((10.0, 20.0, count),) if buckets is None else buckets
    return timing(name, count=count, tail_exits=0, buckets=buckets, **more)


def test_a_histogram_is_that_of_the_snapshot():
    buckets = (50.0, 52.0, 3), (240.0, 250.0, 4), (6e9, 6.1e9, 2), (3e10, 1e300, 1)
    found = Scraped()(functions=(function("f", 10, buckets, sum_ns=2.5e9, nmissed=7, in_flight=2),))
    le = {le: value for (metric, _, le), value in found.items() if metric == "anyprobe_call_duration_seconds_bucket"}
    assert len(le) == len(BOUNDS) + 1
    assert (le["1e-07"], le["2.5e-07"], le["5.0"], le["10.0"], le["+Inf"]) == (3, 7, 7, 9, 10)
    assert found["anyprobe_call_duration_seconds_sum", "f", ""] == 2.5
    assert found["anyprobe_calls_not_timed_total", "f", ""] == 7
    assert found["anyprobe_calls_running", "f", ""] == 2
    assert found["anyprobe_target_up", "", ""] == 1
    assert found["anyprobe_target_paused_seconds_total", "", ""] > 0


def test_hits_of_one_name_are_one_series_whatever_their_addresses():
    found = Scraped()(sites=(site("a", 5), replace(site("a", 7), address=1), site("never", 0)))
    assert found["anyprobe_hits_total", "a", ""] == 12
    assert ("anyprobe_hits_total", "never", "") not in found


def test_the_number_of_series_is_bounded_and_each_stays_what_it_is():
    scrape = Scraped(most=2)
    assert calls(scrape(functions=(function("a", 1), function("b", 5), function("c", 9)))) == {
        "c": 9,
        "b": 5,
        "other": 1,
    }
    busy = (function("a", 1000), function("b", 5), function("c", 9), function("d", 50))
    assert calls(scrape(functions=busy)) == {"c": 9, "b": 5, "other": 1050}


def test_there_is_room_for_those_that_come_later():
    scrape = Scraped(most=2)
    assert calls(scrape(functions=(function("a", 1), function("b", 0)))) == {"a": 1}
    assert calls(scrape(functions=(function("a", 1), function("b", 2), function("c", 3)))) == {
        "a": 1,
        "c": 3,
        "other": 2,
    }


def test_no_number_goes_back():
    scrape = Scraped()
    first = scrape(functions=(function("f", 2, ((90.0, 99.0, 1), (100.0, 101.0, 1)), sum_ns=199.0),))
    again = scrape(functions=(function("f", 2, ((90.1, 99.1, 1), (100.1, 101.1, 1)), sum_ns=198.9),))
    assert again == first
    # the clock's tick is a little longer now, and a value beyond the bound
    shifted = scrape(functions=(function("f", 2, ((99.9, 101.0, 1), (101.1, 102.1, 1)), sum_ns=201.0),))
    assert all(shifted[key] >= value for key, value in first.items())


@pytest.mark.parametrize("name", ['say "hi"\\', "line\nbreak", "\x1b[31m", "ünï::<code>"])
def test_names_are_escaped(name):
    assert 3 in calls(Scraped()(functions=(function(name, 3),))).values()
