"""Metrics of Prometheus as a request of OTLP, the protocol of OpenTelemetry: the same names, numbers and bounds."""

from collections.abc import Iterable, Mapping

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1 import metrics_pb2
from prometheus_client.core import Metric

from anyprobe.exporters.monitoring.attributes import attributes
from anyprobe.exporters.monitoring.native import SCHEMA
from anyprobe.exporters.monitoring.prometheus import LABELS, Durations

CUMULATIVE = metrics_pb2.AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
Labels = tuple[tuple[str, str], ...]


def request_of(
    families: Iterable[Metric], resource: Mapping[str, str], version: str, started_ns: int, now_ns: int, *,
    exponential: bool = False,
) -> bytes:  # fmt: skip
    """Return the bytes of a request with all metrics.

    Args:
        families: the metrics.
        resource: the attributes of what they are of.
        version: of anyprobe.
        started_ns: when counters were 0, as Unix time.
        now_ns: the time of the numbers.
        exponential: whether histograms are exponential ones, where there are such.
    """
    request = ExportMetricsServiceRequest()
    whole = request.resource_metrics.add()
    whole.resource.attributes.extend(attributes(resource.items()))
    scope = whole.scope_metrics.add()
    scope.scope.name, scope.scope.version = "anyprobe", version
    for family in families:
        if not family.samples:
            continue
        unit = "s" if family.name.endswith("_seconds") else "1"
        metric = scope.metrics.add(name=family.name, description=family.documentation, unit=unit)
        times = {"start_time_unix_nano": started_ns, "time_unix_nano": now_ns}
        if exponential and isinstance(family, Durations):
            metric.exponential_histogram.aggregation_temporality = CUMULATIVE
            _add_exponentials(metric.exponential_histogram, family, times)
        elif family.type == "histogram":
            metric.histogram.aggregation_temporality = CUMULATIVE
            _add_histograms(metric.histogram, family, times)
        elif family.type == "counter":
            metric.sum.aggregation_temporality, metric.sum.is_monotonic = CUMULATIVE, True
            for each in family.samples:
                labels = attributes(each.labels.items())
                metric.sum.data_points.add(attributes=labels, as_double=each.value, **times)
        else:
            for each in family.samples:
                labels = attributes(each.labels.items())
                metric.gauge.data_points.add(attributes=labels, as_double=each.value, time_unix_nano=now_ns)
    return bytes(request.SerializeToString())


def _add_histograms(into: metrics_pb2.Histogram, family: Metric, times: Mapping[str, int]) -> None:
    """Add a point for each function; its buckets are numbers by themselves, while Prometheus has them added up."""
    points: dict[Labels, metrics_pb2.HistogramDataPoint] = {}
    before: dict[Labels, int] = {}
    for sample in family.samples:
        key = tuple((name, value) for name, value in sample.labels.items() if name != "le")
        if key not in points:
            points[key] = into.data_points.add(attributes=attributes(key), **times)
        point = points[key]
        if sample.name.endswith("_sum"):
            point.sum = sample.value
        elif sample.name.endswith("_count"):
            point.count = int(sample.value)
        elif sample.name.endswith("_bucket"):
            if sample.labels["le"] != "+Inf":
                point.explicit_bounds.append(float(sample.labels["le"]))
            point.bucket_counts.append(int(sample.value) - before.get(key, 0))
            before[key] = int(sample.value)


def _add_exponentials(into: metrics_pb2.ExponentialHistogram, family: Durations, times: Mapping[str, int]) -> None:
    """Add a point for each function; between its first and its last bucket all are written."""
    sums = {tuple(each.labels.values()): each.value for each in family.samples if each.name.endswith("_sum")}
    for name, found in family.exponential.items():
        point = into.data_points.add(attributes=attributes(zip(LABELS, name, strict=True)), **times)
        point.scale, point.count, point.zero_count, point.sum = SCHEMA, found.count, found.zero, sums[name]
        if found.counts:
            first, last = min(found.counts), max(found.counts)
            point.positive.offset = first - 1  # here a bucket has the number of its lower bound
            point.positive.bucket_counts.extend(found.counts[each] for each in range(first, last + 1))
