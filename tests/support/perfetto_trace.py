"""A decoder of Perfetto's traces by Google's own library: messages described here by the numbers of their fields.

The numbers are those of https://perfetto.dev/docs/reference/trace-packet-proto.
"""

from operator import itemgetter
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_KIND = descriptor_pb2.FieldDescriptorProto
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "Trace": {"packet": (1, "*TracePacket")},
    "TracePacket": {
        "timestamp": (8, "uint64"), "trusted_packet_sequence_id": (10, "uint32"), "track_event": (11, "TrackEvent"),
        "interned_data": (12, "InternedData"), "sequence_flags": (13, "uint32"),
        "trace_packet_defaults": (59, "TracePacketDefaults"), "track_descriptor": (60, "TrackDescriptor"),
    },
    "TracePacketDefaults": {"track_event_defaults": (11, "TrackEventDefaults")},
    "TrackEventDefaults": {"track_uuid": (11, "uint64")},
    "InternedData": {"event_names": (2, "*EventName")},
    "EventName": {"iid": (1, "uint64"), "name": (2, "string")},
    "TrackDescriptor": {
        "uuid": (1, "uint64"), "name": (2, "string"), "process": (3, "ProcessDescriptor"),
        "thread": (4, "ThreadDescriptor"), "parent_uuid": (5, "uint64"), "counter": (8, "CounterDescriptor"),
    },
    "CounterDescriptor": {"unit_name": (6, "string")},
    "ProcessDescriptor": {"pid": (1, "int32"), "process_name": (6, "string")},
    "ThreadDescriptor": {"pid": (1, "int32"), "tid": (2, "int32"), "thread_name": (5, "string")},
    "TrackEvent": {
        "debug_annotations": (4, "*DebugAnnotation"), "type": (9, "int32"), "name_iid": (10, "uint64"),
        "track_uuid": (11, "uint64"), "name": (23, "string"), "counter_value": (30, "int64"),
    },
    "DebugAnnotation": {
        "name": (10, "string"), "bool_value": (2, "bool"), "uint_value": (3, "uint64"), "int_value": (4, "int64"),
        "double_value": (5, "double"), "string_value": (6, "string"),
    },
}  # fmt: skip


def _trace_class() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="trace.proto", package="perfetto", syntax="proto2")
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            label = _KIND.LABEL_REPEATED if kind.startswith("*") else _KIND.LABEL_OPTIONAL
            plain = kind.removeprefix("*")
            if plain in _MESSAGES:
                message.field.add(
                    name=field, number=number, label=label, type=_KIND.TYPE_MESSAGE, type_name=f".perfetto.{plain}"
                )
            else:
                message.field.add(name=field, number=number, label=label, type=getattr(_KIND, f"TYPE_{plain.upper()}"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("perfetto.Trace"))


BEGIN, END, INSTANT, COUNTER = 1, 2, 3, 4


def slices(content: bytes) -> tuple[dict[int, Any], list[dict[str, Any]]]:
    """Return the tracks of a trace, and its slices and instants as a viewer makes them of events in order of time."""
    trace = _trace_class()()
    trace.ParseFromString(content)
    tracks: dict[int, Any] = {}
    names: dict[int, dict[int, str]] = {}
    default: dict[int, int] = {}
    events = []
    for packet in trace.packet:
        sequence = packet.trusted_packet_sequence_id
        if packet.track_event.type == COUNTER or packet.track_descriptor.HasField("counter"):
            continue
        if packet.HasField("track_descriptor"):
            tracks[packet.track_descriptor.uuid] = packet.track_descriptor
        if packet.sequence_flags & 1:
            names[sequence] = {}
        for each in packet.interned_data.event_names:
            names[sequence][each.iid] = each.name
        if packet.HasField("trace_packet_defaults"):
            default[sequence] = packet.trace_packet_defaults.track_event_defaults.track_uuid
        if packet.HasField("track_event"):
            assert packet.sequence_flags & 2
            event = packet.track_event
            name = event.name if event.HasField("name") else names[sequence].get(event.name_iid, "")
            said = " ".join(each.string_value for each in event.debug_annotations)
            values = {
                each.name: getattr(each, field.name)
                for each in event.debug_annotations
                for field, _ in each.ListFields()
                if field.name != "name"
            }
            events.append((packet.timestamp, default[sequence], event.type, name, (said, values)))
    found: list[dict[str, Any]] = []
    stacks: dict[int, list[dict[str, Any]]] = {}
    for time, track, kind, name, (said, values) in sorted(events, key=itemgetter(0)):  # stable, as viewers sort
        stack = stacks.setdefault(track, [])
        if kind == END:
            ended = stack.pop()
            ended.update(end=time, said=said)
            ended["values"] |= values
            assert not name or name == ended["name"]
            continue
        about = {"track": track, "name": name, "begin": time, "end": None, "depth": len(stack)}
        found.append(about | {"said": said, "values": values})
        if kind == BEGIN:
            stack.append(found[-1])
        else:
            found[-1]["end"] = time
    return tracks, found


def counters(content: bytes) -> dict[tuple[int, str, str], list[tuple[int, int]]]:
    """Return the counters of a trace by process, name and unit, as times and values."""
    trace = _trace_class()()
    trace.ParseFromString(content)
    described = [packet.track_descriptor for packet in trace.packet if packet.HasField("track_descriptor")]
    processes = {each.uuid: each.process.pid for each in described if each.HasField("process")}
    found = {}
    for each in described:
        if each.HasField("counter"):
            values = [
                (packet.timestamp, packet.track_event.counter_value)
                for packet in trace.packet
                if packet.track_event.type == COUNTER and packet.track_event.track_uuid == each.uuid
            ]
            found[processes[each.parent_uuid], each.name, each.counter.unit_name] = values
    return found
