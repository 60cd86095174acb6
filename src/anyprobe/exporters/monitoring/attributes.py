"""Attributes of OpenTelemetry: what metrics and spans are about, by name."""

from collections.abc import Iterable
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from anyprobe.core.printable import printable

_HIGHEST = (1 << 63) - 1


def attributes(pairs: Iterable[tuple[str, Any]]) -> list[KeyValue]:
    """Return names with their values; a value that is missing has none."""
    return [KeyValue(key=name, value=_value(each)) for name, each in pairs if each is not None]


def _value(value: Any) -> AnyValue:  # noqa: ANN401 - a number or a text
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int() if -_HIGHEST - 1 <= value <= _HIGHEST:
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case _:
            return AnyValue(string_value=printable(str(value)))
