"""Requests of OTLP, decoded by OpenTelemetry's own descriptions: the numbers are the snapshot's."""

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from anyprobe.exporters.monitoring.otlp import CUMULATIVE, request_of
from anyprobe.exporters.monitoring.prometheus import BOUNDS, Cost, Metrics
from support.sample_snapshots import site, snapshot, timing

BUCKETS = (50.0, 52.0, 3), (240.0, 250.0, 4), (6e9, 6.1e9, 2), (3e10, 1e300, 1)


def decoded(**found):
    metrics = Metrics(lambda: snapshot(**found), 0, lambda: Cost(2.5, 5.0))
    request = ExportMetricsServiceRequest.FromString(request_of(metrics.collect(), {"a": "b"}, "1.2", 7, 9))
    (resource,) = request.resource_metrics
    assert [(each.key, each.value.string_value) for each in resource.resource.attributes] == [("a", "b")]
    (scope,) = resource.scope_metrics
    assert (scope.scope.name, scope.scope.version) == ("anyprobe", "1.2")
    return {each.name: each for each in scope.metrics}


def attributes(point):
    return {each.key: each.value.string_value for each in point.attributes}


def test_a_histogram_has_the_calls_of_each_bucket():
    function = timing("f", count=10, tail_exits=0, buckets=BUCKETS, sum_ns=2.5e9, nmissed=7, in_flight=2)
    found = decoded(functions=(function,), sites=())
    metric = found["anyprobe_call_duration_seconds"]
    assert metric.unit == "s"
    assert metric.histogram.aggregation_temporality == CUMULATIVE
    (point,) = metric.histogram.data_points
    assert attributes(point) == {"function": "f", "module": "libc.so.6"}
    assert (point.count, point.sum, point.start_time_unix_nano, point.time_unix_nano) == (10, 2.5, 7, 9)
    assert list(point.explicit_bounds) == [bound / 1e9 for bound in BOUNDS]
    expected = [0] * (len(BOUNDS) + 1)
    for middle, count in ((51, 3), (245, 4), (6.05e9, 2), (1e300, 1)):
        expected[sum(middle > bound for bound in BOUNDS)] += count
    assert list(point.bucket_counts) == expected
    (missed,) = found["anyprobe_calls_not_timed"].sum.data_points
    assert missed.as_double == 7
    assert found["anyprobe_calls_not_timed"].sum.is_monotonic
    assert [each.as_double for each in found["anyprobe_calls_running"].gauge.data_points] == [2]


def test_hits_and_what_probes_cost_are_there():
    found = decoded(sites=(site(hits=4, nmissed=1),))
    assert [each.as_double for each in found["anyprobe_hits"].sum.data_points] == [4]
    assert [each.as_double for each in found["anyprobe_overhead_ratio"].gauge.data_points] == [0.025]
    assert [each.as_double for each in found["anyprobe_overhead_limit_ratio"].gauge.data_points] == [0.05]
    assert "anyprobe_call_duration_seconds" not in found
