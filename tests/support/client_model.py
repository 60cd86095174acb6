"""A decoder of Prometheus' binary format by Google's own library: messages described by the numbers of their fields.

The numbers are those of io/prometheus/client/metrics.proto in https://github.com/prometheus/client_model.
"""

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, unknown_fields
from google.protobuf.internal.decoder import _DecodeVarint32  # type: ignore[attr-defined]

_KIND = descriptor_pb2.FieldDescriptorProto
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "MetricFamily": {"name": (1, "string"), "help": (2, "string"), "type": (3, "int32"), "metric": (4, "*Metric")},
    "Metric": {
        "label": (1, "*LabelPair"), "gauge": (2, "Number"), "counter": (3, "Number"), "histogram": (7, "Histogram"),
    },
    "LabelPair": {"name": (1, "string"), "value": (2, "string")},
    "Number": {"value": (1, "double")},
    "Histogram": {
        "sample_count": (1, "uint64"), "sample_sum": (2, "double"), "bucket": (3, "*Bucket"), "schema": (5, "sint32"),
        "zero_threshold": (6, "double"), "zero_count": (7, "uint64"), "positive_span": (12, "*BucketSpan"),
        "positive_delta": (13, "*sint64"),
    },
    "Bucket": {"cumulative_count": (1, "uint64"), "upper_bound": (2, "double")},
    "BucketSpan": {"offset": (1, "sint32"), "length": (2, "uint32")},
}  # fmt: skip


def _family_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="metrics.proto", package="io.prometheus.client", syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            label = _KIND.LABEL_REPEATED if kind.startswith("*") else _KIND.LABEL_OPTIONAL
            plain = kind.removeprefix("*")
            about = {"type": _KIND.TYPE_MESSAGE, "type_name": f".{file.package}.{plain}"}
            about = about if plain in _MESSAGES else {"type": getattr(_KIND, f"TYPE_{plain.upper()}")}
            message.field.add(name=field, number=number, label=label, **about)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{file.package}.MetricFamily"))


def families(data: bytes) -> dict[str, Any]:
    """Return the families of an answer by their names."""
    made, at, found = _family_class(), 0, {}
    while at < len(data):
        size, at = _DecodeVarint32(data, at)
        family = made.FromString(data[at : at + size])
        assert not unknown_fields.UnknownFieldSet(family)
        found[family.name], at = family, at + size
    return found


def native_buckets(histogram: Any) -> dict[int, int]:
    """Return the buckets of a native histogram by their numbers: the one ``n`` ends at ``2 ** (n / 2 ** schema)``."""
    deltas = iter(histogram.positive_delta)
    found, at, count = {}, 0, 0
    for span in histogram.positive_span:
        at += span.offset
        for _ in range(span.length):
            count += next(deltas)
            found[at] = count
            at += 1
    assert not list(deltas)
    return found
