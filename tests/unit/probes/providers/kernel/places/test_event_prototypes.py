"""Parameters of system calls and tracepoints by name, of types that the kernel tells."""

from types import SimpleNamespace

import pytest

from anyprobe.core.errors import TargetError, UnsupportedTarget
from anyprobe.handlers.bpf.layouts import RecordPlace, argument_of
from anyprobe.handlers.types.annotations import PointerType, i8, i32, u16, u64
from anyprobe.handlers.types.layouts import ArrayType, StructType
from anyprobe.probes.providers.kernel.places.event_prototypes import EventPrototypes
from anyprobe.probes.providers.kernel.places.sites import KernelSite
from anyprobe.target.kernel import tracefs
from anyprobe.target.kernel.btf import Btf
from anyprobe.target.kernel.tracefs import Field
from anyprobe.target.kernel.types import Tag
from support.btf_blobs import Blob

CALL = KernelSite("syscall::openat:entry", "syscall", "openat", "entry", tracepoint=("syscalls", "sys_enter_openat"))
EVENT = KernelSite("tracepoint:sched:x", "sched", "x", "entry", tracepoint=("sched", "x"), raw="x")


@pytest.fixture
def prototypes(monkeypatch):
    def known(fields):
        def told(category, name):
            if fields is None:
                raise TargetError(f"nothing of {category}:{name}")
            return fields

        monkeypatch.setattr(tracefs, "fields", told)
        blob = Blob()
        blob.add(Tag.TYPEDEF, "umode_t", blob.integer("unsigned short", 2, 0))
        task = blob.add(Tag.PTR, "", blob.structure("task_struct", 8, []))
        blob.function("__traceiter_x", 0, ("__data", blob.add(Tag.PTR, "", 0)), ("prev", task))
        return EventPrototypes(SimpleNamespace(types=SimpleNamespace(kernel=Btf(blob.content()))))

    return known


def test_parameters_of_a_system_call(prototypes):
    fields = [
        Field("dfd", "int", 16, 8, is_signed=False),
        Field("filename", "const char *", 24, 8, is_signed=False), Field("mode", "umode_t", 32, 8, is_signed=False),
        Field("buffer", "void *", 40, 8, is_signed=False),
    ]  # fmt: skip
    found = prototypes(fields).of_call(CALL)
    text, pointer = PointerType(i8, user=True), PointerType(user=True)
    assert found.parameters == (("dfd", i32), ("filename", text), ("mode", u16), ("buffer", pointer))
    assert [argument_of(place) for (place,) in found.places] == [0, 1, 2, 3]


def test_fields_of_a_record(prototypes):
    fields = [
        Field("filename", "__data_loc char[]", 8, 4, is_signed=False),
        Field("pid", "pid_t", 12, 4, is_signed=True), Field("comm", "char[16]", 16, 16, is_signed=False),
        Field("when", "unknown_t", 32, 8, is_signed=False),
    ]  # fmt: skip
    found = prototypes(fields).of_record(EVENT)
    kinds = dict(found.parameters)
    assert isinstance(kinds["filename"], ArrayType)
    assert (kinds["filename"].element, kinds["comm"].element, kinds["comm"].count) == (i8, i8, 16)
    assert (kinds["pid"], kinds["when"]) == (i32, u64)
    assert [RecordPlace.of(place) for (place,) in found.places] == [
        RecordPlace(8, dynamic=True), RecordPlace(12, 4, signed=True), RecordPlace(16), RecordPlace(32, 8),
    ]  # fmt: skip


def test_what_a_tracepoint_passes(prototypes):
    ((name, kind),) = prototypes([]).of_raw(EVENT).parameters
    assert name == "prev"
    assert isinstance(kind.element, StructType)
    with pytest.raises(UnsupportedTarget, match="no type of the tracepoint y"):
        prototypes([]).of_raw(KernelSite("", "", "y", "entry", raw="y"))


def test_an_event_that_tracefs_does_not_know(prototypes):
    with pytest.raises(UnsupportedTarget, match="nothing of sched:x"):
        prototypes(None).of_record(EVENT)
