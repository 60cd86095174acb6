"""Metrics as Prometheus scrapes them in its binary format, which has native histograms beside those with bounds.

The messages are those of io/prometheus/client/metrics.proto in https://github.com/prometheus/client_model, each after
its length. A server that asks for them says so in ``Accept``; others get the text.
"""

from collections.abc import Iterable, Mapping

from prometheus_client.core import Metric

from anyprobe.exporters.monitoring.native import SCHEMA, Exponential, Histograms
from anyprobe.exporters.pprof import double, number, part, varint

CONTENT_TYPE = "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
_COUNTER, _GAUGE, _HISTOGRAM = 0, 1, 4
_ZERO = 2.0**-128
"""What is not above is 0, as Prometheus' own clients have it."""


def is_wanted(accept: str) -> bool:
    """Return whether a scrape asks for this format, by its header ``Accept``."""
    return any(
        "application/vnd.google.protobuf" in each
        and "io.prometheus.client.MetricFamily" in each
        and "delimited" in each
        for each in accept.split(",")
    )


def exposed(families: Iterable[Metric]) -> bytes:
    """Return all metrics; those that have ``exponential`` have native histograms, too."""
    found = []
    for family in families:
        message = _family(family)
        found.append(varint(len(message)) + message)
    return b"".join(found)


def _family(family: Metric) -> bytes:
    match family.type:
        case "histogram":
            kind, metrics = _HISTOGRAM, _histograms(family, getattr(family, "exponential", {}))
            name = family.name
        case "counter":
            kind, name = _COUNTER, f"{family.name}_total"
            metrics = [_labels(each.labels) + part(3, double(1, each.value)) for each in family.samples]
        case _:
            kind, name = _GAUGE, family.name
            metrics = [_labels(each.labels) + part(2, double(1, each.value)) for each in family.samples]
    head = part(1, name.encode()) + part(2, family.documentation.encode()) + number(3, kind)
    return head + b"".join(part(4, each) for each in metrics)


def _labels(labels: Mapping[str, str]) -> bytes:
    return b"".join(
        part(1, part(1, name.encode()) + part(2, value.encode())) for name, value in labels.items() if name != "le"
    )


def _histograms(family: Metric, exponential: Histograms) -> list[bytes]:
    """Return the message of each function."""
    sums: dict[tuple[str, str], bytes] = {}
    counts: dict[tuple[str, str], int] = {}
    bounds: dict[tuple[str, str], bytes] = {}
    labels: dict[tuple[str, str], bytes] = {}
    for each in family.samples:
        name = each.labels["function"], each.labels["module"]
        labels[name] = _labels(each.labels)
        if each.name.endswith("_sum"):
            sums[name] = double(2, each.value)
        elif each.name.endswith("_count"):
            counts[name] = int(each.value)
        elif each.labels["le"] != "+Inf":
            bound = number(1, int(each.value)) + double(2, float(each.labels["le"]))
            bounds[name] = bounds.get(name, b"") + part(3, bound)
    found = []
    for name, about in labels.items():
        native = exponential.get(name)
        # buckets of a native histogram have to add up to its number
        whole = number(1, counts[name] if native is None else native.count) + sums[name] + bounds.get(name, b"")
        found.append(about + part(7, whole + (b"" if native is None else _native(native))))
    return found


def _native(found: Exponential) -> bytes:
    spans, deltas = b"", b""
    end, before = 0, 0
    for first, counts in found.runs():
        spans += part(12, number(1, _zigzag(first - end)) + number(2, len(counts)))
        end = first + len(counts)
        for each in counts:
            deltas += number(13, _zigzag(each - before))
            before = each
    if not spans:
        spans = part(12, number(1, 0) + number(2, 0))  # by which it is told to be a native one
    return number(5, _zigzag(SCHEMA)) + double(6, _ZERO) + number(7, found.zero) + spans + deltas


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1
