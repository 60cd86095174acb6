"""The programs of BPF in the kernel: which there are, what they are attached to, and who holds them."""

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

from anyprobe.core.errors import KernelRefused, TargetError
from anyprobe.target.kernel import bpf, btf
from anyprobe.target.system import procfs

_NEXT_PROGRAM, _OPEN_PROGRAM, _FD_QUERY, _OPEN_LINK, _NEXT_LINK = 11, 13, 20, 30, 31
_PROGRAM_BYTES, _MISSED_AT, _FUNCTION_AT = 232, 208, 220
_LINK_BYTES, _TEXT_BYTES = 64, 256
_UID_AT, _NAME_AT, _NAME_BYTES = 48, 64, 16
_RAW, _TRACING, _PERF, _MULTI, _UPROBE_MULTI = 1, 2, 7, 8, 12
_UPROBES, _KPROBES, _EVENT_TRACEPOINT = (1, 2), (3, 4), 5
_PROGRAM_TYPES = {
    1: "socket_filter", 2: "kprobe", 3: "sched_cls", 5: "tracepoint", 6: "xdp", 7: "perf_event", 8: "cgroup_skb",
    9: "cgroup_sock", 13: "sock_ops", 15: "cgroup_device", 17: "raw_tracepoint", 18: "cgroup_sock_addr",
    23: "cgroup_sysctl", 25: "cgroup_sockopt", 26: "tracing", 27: "struct_ops", 28: "ext", 29: "lsm", 31: "syscall",
}  # fmt: skip
_LINK_TYPES = {
    3: "cgroup",
    4: "iterator",
    5: "netns",
    6: "xdp",
    9: "struct_ops",
    10: "netfilter",
    11: "tcx",
    13: "netkit",
}
_TRACING_TYPES = {23: "tp_btf", 24: "fentry", 25: "fexit", 26: "fmod_ret", 27: "lsm", 28: "iterator"}
_DESCRIBED = {0: "raw_tp", 1: "tracepoint", 2: "kprobe", 3: "kretprobe", 4: "uprobe", 5: "uretprobe"}
"""What a descriptor of a perf event or raw tracepoint is of (``BPF_FD_TYPE_*``)."""


@dataclass(frozen=True, slots=True)
class Place:
    """One thing that a program is attached to."""

    mechanism: str
    at: str = ""
    """A function, a tracepoint, a path with an offset; empty where the kernel does not tell."""
    address: int = 0
    """Address of a kprobe, 0 where the kernel does not tell."""
    misses: int | None = None


UNTOLD = Place("perf event")
"""What a link to a perf event tells before Linux 6.6: not of which one."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that has a program, a link or an event of it open."""

    pid: int
    name: str


@dataclass(slots=True)
class LoadedProgram:
    """A program of BPF."""

    number: int
    type: str
    name: str
    uid: int
    misses: int | None
    """How often it did not run, since it or another was running; None where the kernel does not tell."""
    function: str = ""
    """The function or tracepoint for which it was loaded."""
    places: list[Place] = field(default_factory=list)
    holders: list[Holder] = field(default_factory=list)
    """Nothing that is known: it is pinned, or what it is attached to keeps it."""


def loaded_programs() -> list[LoadedProgram]:
    """Return all programs, with what they are attached to and who holds them; raise ``TargetError`` if forbidden."""
    found = {each.number: each for each in _programs()}
    links = {}
    for number, program, place in _links(found):
        links[number] = program
        if program in found:
            found[program].places.append(place)
    for holder, program, event in _held(links):
        if program not in found:
            continue
        if holder not in found[program].holders:
            found[program].holders.append(holder)
        if event is not None and not any(_same(event, each) for each in found[program].places):
            found[program].places = [each for each in found[program].places if each != UNTOLD] + [event]
    return list(found.values())


def _same(place: Place, linked: Place) -> bool:
    """Return whether a place of an event's descriptor is one that a link tells too."""
    kind = linked.mechanism == place.mechanism
    return kind and (not linked.at or linked.at == place.at or (linked.address == place.address != 0))


def _numbers(command: int) -> Iterator[int]:
    number = bpf.next_number(command, 0)
    while number is not None:
        yield number
        number = bpf.next_number(command, number)


def _programs() -> Iterator[LoadedProgram]:
    for number in _numbers(_NEXT_PROGRAM):
        try:
            descriptor = bpf.call(_OPEN_PROGRAM, struct.pack("<I", number))
        except KernelRefused:  # it has gone meanwhile
            continue
        try:
            told, known = bpf.information(descriptor, _PROGRAM_BYTES)
        finally:
            os.close(descriptor)
        (kind,) = struct.unpack_from("<I", told)
        (uid,) = struct.unpack_from("<I", told, _UID_AT)
        name = told[_NAME_AT : _NAME_AT + _NAME_BYTES].partition(b"\0")[0].decode(errors="replace")
        misses = struct.unpack_from("<Q", told, _MISSED_AT)[0] if known >= _MISSED_AT + 8 else None
        program = LoadedProgram(number, _PROGRAM_TYPES.get(kind, f"type {kind}"), name, uid, misses)
        if known >= _FUNCTION_AT + 8:
            program.function = _name_in_types(*struct.unpack_from("<II", told, _FUNCTION_AT))
        yield program


def _name_in_types(types: int, number: int) -> str:
    """Return the name of a function or tracepoint by its number in BTF, with the module that has it."""
    if not number:
        return ""
    with suppress(TargetError):
        module = btf.name_by_number(types)
        known = btf.running().module(module) if module else None
        name: str = known.type(number).name if known is not None else ""
        return name.removeprefix("btf_trace_") + (f" [{module}]" if module != "vmlinux" else "")
    return ""


def _links(programs: dict[int, LoadedProgram]) -> Iterator[tuple[int, int, Place]]:
    """Yield the links: number, program, and what the program is attached to by it."""
    for number in _numbers(_NEXT_LINK):
        try:
            descriptor = bpf.call(_OPEN_LINK, struct.pack("<I", number))
        except KernelRefused:  # it has gone meanwhile
            continue
        try:
            told, known = bpf.information(descriptor, _LINK_BYTES)
            kind, _, program = struct.unpack_from("<III", told)
            yield number, program, _place(descriptor, kind, told, known, programs.get(program))
        except KernelRefused:
            continue
        finally:
            os.close(descriptor)


def _place(link: int, kind: int, told: bytes, known: int, program: LoadedProgram | None) -> Place:
    if kind == _RAW:
        return Place("raw_tp", _text(link, 16, 24))
    if kind == _TRACING:
        (attached,) = struct.unpack_from("<I", told, 16)
        return Place(_TRACING_TYPES.get(attached, "tracing"), program.function if program else "")
    if kind == _MULTI:
        (count,) = struct.unpack_from("<I", told, 24)
        returning = struct.unpack_from("<I", told, 28)[0] & 1 if known >= 32 else 0
        misses = struct.unpack_from("<Q", told, 32)[0] if known >= 40 else None
        return Place("kretprobe.multi" if returning else "kprobe.multi", f"{count} functions", misses=misses)
    if kind == _UPROBE_MULTI:
        return Place("uprobe.multi")
    if kind == _PERF:
        return _perf_place(link, told, known, program)
    return Place(_LINK_TYPES.get(kind, f"link of type {kind}"))


def _perf_place(link: int, told: bytes, known: int, program: LoadedProgram | None) -> Place:
    """Return what a link to a perf event is at; before Linux 6.6 the kernel tells that of the event alone."""
    (kind,) = struct.unpack_from("<I", told, 16)
    if kind in _KPROBES:
        offset, address = struct.unpack_from("<IQ", told, 36)
        name = _text(link, 24, 32)
        misses = struct.unpack_from("<Q", told, 48)[0] if known >= 56 else None
        at = f"{name}+{offset:#x}" if offset else name
        return Place("kprobe" if kind == _KPROBES[0] else "kretprobe", at, address, misses)
    if kind in _UPROBES:
        (offset,) = struct.unpack_from("<I", told, 36)
        return Place("uprobe" if kind == _UPROBES[0] else "uretprobe", f"{_text(link, 24, 32)}:{offset:#x}")
    if kind == _EVENT_TRACEPOINT:
        return Place("tracepoint", _text(link, 24, 32))
    return Place(program.type) if kind and program is not None else UNTOLD


def _text(link: int, at: int, length_at: int) -> str:
    """Return a text of a link, for which one has to give the memory."""
    memory = ctypes.create_string_buffer(_TEXT_BYTES)
    given = bytearray(_LINK_BYTES)
    struct.pack_into("<Q", given, at, ctypes.addressof(memory))
    struct.pack_into("<I", given, length_at, _TEXT_BYTES)
    with suppress(KernelRefused):
        bpf.information(link, _LINK_BYTES, bytes(given))
    return memory.value.decode(errors="replace")


def _held(links: dict[int, int]) -> Iterator[tuple[Holder, int, Place | None]]:
    """Yield who has which program open, directly, by a link or by an event, and what an event is at."""
    for pid in procfs.read_processes():
        try:
            descriptors = os.listdir(f"/proc/{pid}/fd")
        except OSError:  # it has ended, or may not be looked at
            continue
        for each in descriptors:
            with suppress(OSError, KernelRefused):
                kind = os.readlink(f"/proc/{pid}/fd/{each}")
                if kind.startswith("anon_inode:[perf_event]"):
                    program, place = _queried(pid, int(each))
                elif kind.startswith("anon_inode:bpf"):
                    program, place = _told(pid, each, links), None
                else:
                    continue
                if program:
                    yield Holder(pid, _name(pid)), program, place


def _name(pid: int) -> str:
    with open(f"/proc/{pid}/comm") as file:
        return file.read().strip()


def _told(pid: int, descriptor: str, links: dict[int, int]) -> int:
    """Return the program of a descriptor of a program or a link, 0 if it is of neither."""
    with open(f"/proc/{pid}/fdinfo/{descriptor}") as file:
        fields = dict(line.split(":", 1) for line in file if ":" in line)
    if "link_id" in fields:
        return links.get(int(fields["link_id"]), 0)
    return int(fields.get("prog_id", 0))


def _queried(pid: int, descriptor: int) -> tuple[int, Place]:
    """Return the program of an event's descriptor, and what the event is at."""
    text = ctypes.create_string_buffer(_TEXT_BYTES)
    attribute = struct.pack("<IIIIQ", pid, descriptor, 0, _TEXT_BYTES, ctypes.addressof(text))
    buffer = ctypes.create_string_buffer(attribute.ljust(bpf.ATTRIBUTE_BYTES, b"\0"), bpf.ATTRIBUTE_BYTES)
    bpf.call(_FD_QUERY, buffer)
    program, kind, offset, address = struct.unpack_from("<IIQQ", buffer, 24)
    name = text.value.decode(errors="replace")
    mechanism = _DESCRIBED.get(kind, "perf event")
    if mechanism.startswith("u"):
        return program, Place(mechanism, f"{name}:{offset:#x}")
    at = f"{name}+{offset:#x}" if offset and name else name
    return program, Place(mechanism, at, address if not name else 0)
