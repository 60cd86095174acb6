"""Handlers made of expressions, in the kernel: where they run, and what they are passed."""

import io
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest

from anyprobe.cli import main
from anyprobe.cli.handlers import records
from anyprobe.cli.handlers.expressions import parse_all
from anyprobe.cli.handlers.handlerplaces import Ends, one_by_one, place_in
from anyprobe.cli.handlers.handlertext import HandlerText
from anyprobe.cli.handlers.knownfunctions import FUNCTIONS_LIMIT, knowledge_of, received
from anyprobe.core.errors import HandlerError, UnsupportedTarget
from anyprobe.data.aggregates.records import Field, RecordType
from anyprobe.handlers.frontend.operators import arithmetic
from anyprobe.handlers.frontend.parameters import parameters_of
from anyprobe.handlers.frontend.source import source_of
from anyprobe.handlers.frontend.values import Literal, Scalar
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.annotations import PointerType, boolean, i8, i32, i64, ptr, u64
from anyprobe.handlers.types.calling_convention import Prototype
from anyprobe.handlers.types.layouts import ArrayType
from anyprobe.probes.providers.kernel import session as kernel_session
from anyprobe.probes.providers.kernel.places.sites import KernelSite
from anyprobe.probes.providers.kernel.places.specs import parse as parse_spec
from anyprobe.probes.providers.kernel.places.specs import parsed
from anyprobe.probes.scripts.hooks import Scripted
from anyprobe.probes.specs.spec import parse as parse_of_program
from support.sample_snapshots import snapshot

READ = Prototype("vfs_read", (("file", ptr), ("count", u64)), i64)
SWITCH = Prototype(
    "sched_switch", (("prev_comm", ArrayType(i8, 16)), ("next_pid", i32), ("args", ArrayType(u64, 6))), None
)
PASSED = Prototype("sched_switch", (("preempt", boolean), ("prev", ptr)), None)
CALL = Prototype("write", (("fd", i32), ("buf", ptr), ("count", u64)), i64)


class Kernel:
    """Sites and types, as a test says."""

    pid = 0

    def __init__(self, *names, prototype=READ):
        self.names, self.types, self.number_passed = names or ("vfs_read",), prototype, None
        self.record, self.raw = None, None

    def resolve(self, spec):
        shown = [spec.canonical("sched", name) for name in self.names]
        return [
            KernelSite(
                each,
                "sched",
                name,
                spec.name,
                spec.offset,
                SimpleNamespace(address=4096 * number),
                tracepoint=("sched", name) if spec.provider == "tracepoint" else None,
                raw=name if spec.provider in {"tracepoint", "rawtracepoint"} else None,
            )
            for number, (each, name) in enumerate(zip(shown, self.names, strict=True), 1)
        ]

    def prototype(self, site):
        if self.types is None:
            raise UnsupportedTarget(f"BTF has no type of {site.name} alone")
        return self.types[site.name] if isinstance(self.types, dict) else self.types

    system_call = prototype

    def passed_by(self, site):
        return self.number_passed

    def recorded(self, site):
        return self.given(self.record, "no record can be read")

    def passed(self, site):
        return self.given(self.raw, "BTF has no type of it")

    @staticmethod
    def given(found, otherwise):
        if found is None:
            raise UnsupportedTarget(otherwise)
        return found


@pytest.mark.parametrize(
    ("spec", "expressions", "ends", "placed", "address"),
    [
        ("kernel::vfs_read", "count", Ends.ENTRY, "kernel::vfs_read", "ctx.ip"),
        ("kernel::vfs_read", "retval", Ends.RETURN, "kernel::vfs_read:return", "ctx.func"),
        ("kernel::vfs_read:return", "pid", Ends.RETURN, "kernel::vfs_read:return", "ctx.func"),
        ("kernel::vfs_read:return", "count", Ends.CALL, "kernel::vfs_read:entry", "ctx.func"),
        ("kernel:nfs:nfs_*", "latency_ns", Ends.CALL, "kernel:nfs:nfs_*:entry", "ctx.func"),
        ("kprobe:vfs_read", "count, retval", Ends.CALL, "kprobe:vfs_read", "ctx.func"),
        ("fentry:vfs_read", "retval", Ends.RETURN, "fexit:vfs_read", "ctx.func"),
        ("kretprobe:vfs_read", "retval, arg0", Ends.CALL, "kprobe:vfs_read", "ctx.func"),
        ("syscall::write", "retval", Ends.RETURN, "syscall::write:return", "0"),
        ("kernel::vfs_read+0x1c", "ctx.regs.rax", Ends.INSIDE, "kernel::vfs_read+0x1c", "ctx.ip"),
        ("uretprobe:/bin/bash:readline", "retval", Ends.RETURN, "uretprobe:/bin/bash:readline", "0"),
        ("interval:s:1", "comm", Ends.ENTRY, "interval:s:1", "0"),
        ("tracepoint:sched:sched_switch", "arg1", Ends.ENTRY, "tracepoint:sched:sched_switch", "0"),
    ],
)
def test_handler_runs_where_its_values_are_known(spec, expressions, ends, placed, address):
    place = place_in(Kernel(), parse_spec(spec), parse_all("--of", expressions), ("file", "count"))
    assert (place.ends, place.spec, place.address, place.in_kernel) == (ends, placed, address, True)
    assert parse_spec(place.spec).function.text == parse_spec(spec).function.text


@pytest.mark.parametrize(
    ("spec", "expression", "message"),
    [
        ("tracepoint:sched:sched_switch", "retval", "there is no return"),
        ("rawtracepoint:sched_switch", "latency_ns", "there is no return"),
        ("kernel::vfs_read+4", "count", "count is not known at an instruction"),
        ("kernel::vfs_read+4", "retval", "retval is not known at an instruction"),
    ],
)
def test_what_is_nowhere_known_has_a_caret(spec, expression, message):
    with pytest.raises(HandlerError, match=message) as caught:
        place_in(Kernel(), parse_spec(spec), parse_all("--of", f"pid + {expression}"), ("file", "count"))
    assert caught.value.column == 7


def test_tracepoints_are_placed_one_by_one():
    kernel = Kernel("sched_switch", "sched_wakeup")
    specs = ["kernel::vfs_*", "tracepoint:sched:sched_*", "tracepoint:sched:sched_switch"]
    expected = ["kernel::vfs_*", "tracepoint:sched:sched_switch", "tracepoint:sched:sched_wakeup"]
    assert [each.text for each in one_by_one(kernel, parsed(specs))] == expected
    of_program = [parse_of_program("libc:read")]
    assert one_by_one(SimpleNamespace(pid=42), of_program) == of_program


def test_parameters_are_known_by_the_kernels_types():
    known = knowledge_of(Kernel(), parse_spec("kernel::vfs_read"))
    assert known.names == ("file", "count")
    assert known.has_result
    assert received(known, parse_all("--of", "count"), 0).declared == ("count",)


def test_functions_of_several_types_are_known_by_position():
    kernel = Kernel("a", "b", prototype={"a": READ, "b": Prototype("b", (("x", i32),), None)})
    known = knowledge_of(kernel, parse_spec("kernel::*"))
    assert known.names == ()
    assert "several types" in known.reason
    assert received(known, parse_all("--of", "arg1"), 0).declared == ("arg0: u64", "arg1: u64")
    assert "no type of" in knowledge_of(Kernel(prototype=None), parse_spec("kernel::vfs_read")).reason
    many = [f"f{number}" for number in range(FUNCTIONS_LIMIT + 1)]
    assert "many functions" in knowledge_of(Kernel(*many), parse_spec("kernel::f*")).reason


def test_parameters_of_a_system_call_are_known_by_name():
    known = knowledge_of(Kernel("write", prototype=CALL), parse_spec("syscall::write"))
    found = received(known, parse_all("--of", "count + arg0"), 0)
    assert found.declared == ("fd", "count")
    assert found.lines == ("    arg0 = u64(fd)",)


def test_without_the_names_of_a_system_calls_parameters_no_position_is_guessed():
    known = knowledge_of(Kernel("write", prototype=None), parse_spec("syscall::write"))
    with pytest.raises(HandlerError, match="BTF has no type"):
        received(known, parse_all("--of", "arg2"), 0)


def test_a_tracepoint_passes_so_many():
    kernel = Kernel("sched_switch")
    kernel.number_passed = 4
    known = knowledge_of(kernel, parse_spec("rawtracepoint:sched_switch"))
    assert received(known, (), None).shown == ("arg0", "arg1", "arg2", "arg3")
    with pytest.raises(HandlerError, match="4 parameters are passed"):
        received(known, parse_all("--of", "arg4"), 0)


def test_fields_of_a_tracepoint_are_known_by_name():
    kernel = Kernel("sched_switch")
    kernel.number_passed, kernel.record, kernel.raw = 4, SWITCH, PASSED
    known = knowledge_of(kernel, parse_spec("tracepoint:sched:sched_switch"))
    assert received(known, (), None).labels == ("prev_comm", "next_pid", "args")
    assert received(known, (), None).fields == (0, 1, None)  # a text and a number, and what has no one value
    by_name = parse_all("--of", "next_pid")
    assert received(
        knowledge_of(kernel, parse_spec("tracepoint:sched:sched_switch"), by_name), by_name, 0
    ).declared == ("next_pid",)
    passed = parse_all("--of", "prev")
    assert knowledge_of(kernel, parse_spec("tracepoint:sched:sched_switch"), passed).names == ("preempt", "prev")
    assert knowledge_of(kernel, parse_spec("rawtracepoint:sched_switch"), passed).names == ("preempt", "prev")
    position = parse_all("--of", "arg1")
    known = knowledge_of(kernel, parse_spec("tracepoint:sched:sched_switch"), position)
    assert received(known, position, 0).declared == ("arg0: u64", "arg1: u64")


def test_without_types_a_tracepoint_is_known_by_position():
    kernel = Kernel("sched_switch")
    kernel.number_passed = 4
    known = knowledge_of(kernel, parse_spec("tracepoint:sched:sched_switch"))
    assert received(known, (), None).shown == ("arg0", "arg1", "arg2", "arg3")
    assert known.reason == "no record can be read; BTF has no type of it"
    many = Kernel(*(f"t{number}" for number in range(FUNCTIONS_LIMIT + 1)))
    assert "means many tracepoints" in knowledge_of(many, parse_spec("tracepoint:sched:*")).reason


def test_no_call_leaves_by_a_jump():
    text = HandlerText(in_kernel=True)
    text.add_condition_of_calls(None, "tails.add()")
    assert text.lines == []


def test_records_of_the_kernel_are_in_order_with_those_of_programs(monkeypatch):
    monkeypatch.setattr(records, "own_time", lambda: (0, 1000))
    records._readings.cache_clear()

    def batch(name, *times):
        made = np.zeros(len(times), RecordType(name, (Field("n"),)).dtype)
        made["ts"] = times
        return name, f"{name} {{ts}}", made

    handling = SimpleNamespace(records=lambda **_: [batch("program", 10, 30)])
    process = SimpleNamespace(pid=42, handling=handling, has_listeners=False)
    kernel = SimpleNamespace(pid=0, emitted=lambda **_: [batch("kernel", 1020, 1040)], has_listeners=False)
    stream = io.StringIO()
    assert records.TextRecords().look([process, kernel], stream) == 4
    assert stream.getvalue() == "program 10\nkernel 20\nprogram 30\nkernel 40\n"
    assert records.MonotonicTime().of(20) == 1020
    records._readings.cache_clear()


def test_times_of_records_follow_the_monotonic_clock_whose_rate_is_another(monkeypatch):
    """Of a clock that loses 250 ns in a millisecond, as one does whose ticks were measured on a busy machine."""
    moment = 0
    monkeypatch.setattr(records, "own_time", lambda: (moment * 3_999 // 4_000, 7_000_000 + moment))
    records._readings.cache_clear()
    times = records.MonotonicTime()
    found = []
    for moment in range(1_000_000, 60_000_000_000, 99_000_000):
        own = np.arange(moment - 900_000, moment, 10_000, dtype=np.int64) * 3_999 // 4_000
        truth = 7_000_000 + own * 4_000 / 3_999
        seen = times.of_all(own)
        assert np.abs(seen - truth).max() < 300  # the first reading has nothing to be compared with
        assert [times.of(int(each)) for each in own] == seen.tolist()
        assert all(abs(times.of(times.own(int(each))) - each) <= 1 for each in seen)
        found += seen.tolist()
    assert found == sorted(found)
    records._readings.cache_clear()


@pytest.mark.parametrize("disturbed", [0, 700])
def test_records_that_were_too_young_for_a_look_come_after_those_of_it(monkeypatch, disturbed):
    """Also where the clocks were not read just together at every second look."""
    moment = looks = 0
    monkeypatch.setattr(
        records, "own_time", lambda: (moment, 7_000_000 + moment * 3_999 // 4_000 + looks % 2 * disturbed)
    )
    records._readings.cache_clear()
    times, found, shown = records.MonotonicTime(), [], 0
    for looks in range(1, 100):  # noqa: B007 - the clock asks for it
        moment += 5_000_000
        until = moment - records.MARGIN_NS
        own = np.array([*range(shown, shown + 50), *range(until - 50, until)], np.int64)
        seen, shown = times.of_all(own), until
        assert np.abs(seen - 7_000_000 - own * 3_999 / 4_000).max() < 1_300 + disturbed
        assert [times.of(int(each)) for each in own] == seen.tolist()
        found += seen.tolist()
    assert found == sorted(found)
    records._readings.cache_clear()


class Scriptable(Scripted):
    pid, probes, warnings, has_listeners = 0, (), (), False

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.over = True

    def count(self, *specs):
        self.counted = specs

    def emitted(self, *, until=None):
        return []

    def snapshot(self):
        return snapshot(refused=())

    def detach(self):
        self.hooks.end()


SCRIPT = """
from anyprobe import session

session.count("kernel::vfs_read")


@session.begin
def begun():
    print("begun")


@session.end
def ended():
    print("ended")
"""


def test_a_script_has_the_session_on_the_kernel(monkeypatch, tmp_path, capsys):
    session = Scriptable()
    monkeypatch.setattr(kernel_session, "kernel", lambda mechanism, pids, include_self: session)
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    assert main(["script", str(file), "--kernel", "--for", "0", "--json"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("begun\nended\n{")
    assert json.loads(shown.removeprefix("begun\nended\n"))["aggregations"] == {}
    assert session.counted == ("kernel::vfs_read",)
    assert session.over


def test_a_script_on_the_kernel_may_be_about_some_processes(monkeypatch, tmp_path, capsys):
    asked = []
    monkeypatch.setattr(
        kernel_session, "kernel", lambda mechanism, pids, include_self: asked.append(pids) or Scriptable()
    )
    (tmp_path / "script.py").write_text("")
    script = ["script", str(tmp_path / "script.py"), "--kernel", "-p", str(os.getpid())]
    assert main([*script, "--for", "0"]) == 0
    assert asked == [[os.getpid()]]
    assert main([*script, "--", "true"]) == 2
    assert "either running processes (-p, -n) or a command" in capsys.readouterr().err


def test_positions_of_what_a_program_gives_stay_its_addresses():
    """As ``arg1`` is a number, too: nothing is read of the kernel for it, and it can be computed with."""
    given = PointerType(i8, user=True)
    kernel = Kernel(prototype=Prototype("openat", (("dfd", i32), ("filename", given)), i64))
    wanted = parse_all("--print", "cstr(arg1, 16), arg0, arg1 % 8")
    found = received(knowledge_of(kernel, parse_spec("syscall::openat"), wanted), wanted, 0)
    assert found.lines == ("    arg0 = u64(dfd)", "    arg1 = ptr(filename)")

    def handler(ctx, dfd: u64, filename: u64):
        return filename % 8

    source = source_of(handler)
    known = parameters_of(source, source.tree.args.args[1:], lambda: kernel.types)
    assert [each.kind for each in known] == [u64, PointerType(user=True)]
    number = Scalar(ir.Local("filename", PointerType(user=True)))
    assert arithmetic(None, "&", number, Literal(7), None).type == u64
    assert arithmetic(None, "+", number, Literal(8), None).type == PointerType(user=True)
