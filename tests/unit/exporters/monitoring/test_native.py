"""Native and exponential histograms: each call is in the bucket of its duration, and no bucket ever shrinks."""

import math
import random
from dataclasses import replace

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from anyprobe.exporters.monitoring.metricproto import exposed, is_wanted
from anyprobe.exporters.monitoring.native import Exponential, number_of
from anyprobe.exporters.monitoring.otlp import request_of
from anyprobe.exporters.monitoring.prometheus import Metrics
from support.client_model import families, native_buckets
from support.sample_snapshots import site, snapshot, timing

BUCKETS = (50.0, 52.0, 3), (240.0, 250.0, 4), (6e9, 6.1e9, 2), (0.0, 0.0, 5)


def metrics():
    function = timing("f", count=14, tail_exits=0, buckets=BUCKETS, sum_ns=2.5e9, nmissed=7, in_flight=2)
    return Metrics(lambda: snapshot(functions=(function,), sites=(site(hits=4),)), 0)


def expected():
    """Return how many calls each bucket has, found by its bounds."""
    found = {}
    for middle, count in ((51e-9, 3), (245e-9, 4), (6.05, 2)):
        (number,) = [n for n in range(-400, 100) if 2 ** ((n - 1) / 8) < middle <= 2 ** (n / 8)]
        found[number] = count
    return found


def test_the_binary_format_has_what_the_text_has_and_native_histograms():
    found = families(exposed(metrics().collect()))
    text = generate_latest(metrics()).decode()
    for family in text_string_to_metric_families(text):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        own = found[name]
        if family.type == "histogram":
            (metric,) = own.metric
            assert {each.name: each.value for each in metric.label} == {"function": "f", "module": "libc.so.6"}
            classic = [each.value for each in family.samples if each.name.endswith("_bucket")]
            assert [each.cumulative_count for each in metric.histogram.bucket] == classic[:-1]
            assert (metric.histogram.sample_count, metric.histogram.sample_sum) == (14, 2.5)
            continue
        values = [(each.counter if family.type == "counter" else each.gauge).value for each in own.metric]
        assert values == [each.value for each in family.samples]
    (metric,) = found["anyprobe_call_duration_seconds"].metric
    assert (metric.histogram.schema, metric.histogram.zero_count) == (3, 5)
    assert native_buckets(metric.histogram) == expected()


def test_exponential_histograms_of_opentelemetry_have_the_same_buckets():
    request = request_of(metrics().collect(), {}, "1", 7, 9, exponential=True)
    (resource,) = ExportMetricsServiceRequest.FromString(request).resource_metrics
    found = {each.name: each for each in resource.scope_metrics[0].metrics}
    (point,) = found["anyprobe_call_duration_seconds"].exponential_histogram.data_points
    assert {each.key: each.value.string_value for each in point.attributes} == {"function": "f", "module": "libc.so.6"}
    assert (point.scale, point.count, point.sum, point.zero_count) == (3, 14, 2.5, 5)
    # the one of number i is above base ** i
    buckets = {point.positive.offset + at + 1: count for at, count in enumerate(point.positive.bucket_counts) if count}
    assert buckets == expected()


def test_no_bucket_shrinks_while_the_tick_is_measured_anew():
    numbers = random.Random(3)
    values = [numbers.lognormvariate(7, 2) for _ in range(400)]
    found, before = Exponential(), {}
    for count in range(20, 401, 20):
        tick = 1 + numbers.uniform(-1e-3, 1e-3)
        found.take([(value * tick, value * tick, 1) for value in values[:count]])
        assert found.count == count
        assert all(found.counts[number] >= was for number, was in before.items())
        before = dict(found.counts)
    true = Exponential()
    true.take([(value, value, 1) for value in values])
    assert sum(abs(found.counts[n] - true.counts[n]) for n in {*found.counts, *true.counts}) <= 2 * 400 * 0.02
    found.take([(value, value, 1) for value in values[:50]])  # an older look, by another thread
    assert dict(found.counts) == before


def test_a_bucket_has_its_upper_bound_and_not_its_lower_one():
    assert [number_of(2.0**n) for n in (-20, -1, 0, 3)] == [-160, -8, 0, 24]
    assert number_of(math.nextafter(1.0, 2)) == 1


def test_the_binary_format_is_for_those_that_ask_for_it():
    assert is_wanted(
        "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,text/plain;q=0.5"
    )
    assert not is_wanted("text/plain;version=0.0.4,*/*;q=0.1")
    assert not is_wanted("")


def test_names_of_programs_are_text_in_the_binary_format():
    function = timing('say "hi"\n\x1b', count=1, tail_exits=0, buckets=((5.0, 6.0, 1),))
    made = Metrics(lambda: replace(snapshot(sites=()), functions=(function,)), 0)
    (metric,) = families(exposed(made.collect()))["anyprobe_call_duration_seconds"].metric
    assert "\x1b" not in metric.label[0].value
