"""Interfaces of Go are shown by the types of their values, as keys, in records and in maps."""

import re

import pytest

import anyprobe
from anyprobe import Count, HandlerError, Map, cstr, emit, ptr, u64
from live.test_command_line import start
from support.results import counts, records

pytestmark = pytest.mark.live

FAILURES = [
    "nil", "*main.failure", "main.coordinates", "main.code", "main.words", "main.pair[string,int]",
    "*main.pair[int8,[]uint8]", "*errors.errorString", "*fmt.wrapError", "*net.OpError", "syscall.Errno",
    "*fs.PathError",
]  # fmt: skip
VALUES = [
    "nil", "int", "string", "float64", "bool", "[]int", "map[string]*main.failure", "struct { X int }", "chan int",
    "*[3]uint8", "main.code", "func(int) string", "*interface {}", "*error", "main.coordinates",
    "main.pair[bool,func()]", "complex64", "[2]uint16",
]  # fmt: skip


@pytest.fixture(params=[(), ("-gcflags=-N -l",), ("-buildmode=pie",), ("-race",)], ids=" ".join)
def target(request, run_target):
    return run_target("go_interfaces.go", options=request.param)


@pytest.fixture
def plain(run_target):
    return run_target("go_interfaces.go")


def test_errors_by_type(target):
    by_type, failed, last = Count("by_type"), Count("failed"), Map("last")
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:main.Fail")
        def on_fail(err, n):
            by_type[err].add()
            last[n] = err
            if err != 0:
                failed.add()
            emit("fail", err=err, is_nil=err == 0, has_table=err.tab != 0, n=n)

        @session.ret("a.out:main.Fail")
        def on_return(ctx):
            failure = ctx.retval.r1
            emit("failed", err=failure if ctx.retval.r0 > 0 else 0)

        found = records(session, target)
        # the program has ended: names are read from its file
        assert counts(by_type) == {(name,): 1 for name in FAILURES}
        assert last.items() == {(number,): name for number, name in enumerate(FAILURES)}
    assert found["fail"] == [(name, name == "nil", name != "nil", number) for number, name in enumerate(FAILURES)]
    assert [row[0] for row in found["failed"]] == FAILURES
    assert int(failed) == len(FAILURES) - 1


def test_values_of_all_kinds_in_registers_and_in_memory(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:main.Any")
        def on_any(value, h):
            emit("any", n=h.Number, value=value, inner=h.Any, err=h.Err, none=h.In, has=bool(value))

        @session.ret("a.out:main.Any")
        def on_return(ctx):
            emit("returned", value=ctx.retval)

        found = records(session, target)
    *rows, made = found["any"]
    assert rows == [
        (number, name, name, FAILURES[number % len(FAILURES)], "nil", name != "nil")
        for number, name in enumerate(VALUES)
    ]
    # the runtime alone knows the names of types that reflect has made
    assert made[1].startswith("0x")
    assert [row[0] for row in found["returned"]] == [*VALUES, made[1]]


def test_interfaces_with_methods_in_structs_by_value(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:main.Read")
        def on_read(r, h):
            emit("read", r=r, err=h.Err, value=h.Any, inner=h.In)

        @session.ret("a.out:main.Read")
        def on_return(ctx):
            emit("returned", r=ctx.retval)

        found = records(session, target)
    assert found["read"] == [
        ("*strings.Reader", "main.code", "nil", "nil"),
        ("*os.File", "nil", "nil", "*os.File"), ("nil", "nil", "uint8", "nil"),
    ]  # fmt: skip
    assert [row[0] for row in found["returned"]] == ["nil", "*os.File", "nil"]


def test_the_type_of_a_value_is_kept_until_the_return(plain):
    with anyprobe.attach(plain.pid) as session:

        @session.call("a.out:main.Fail")
        def fail(ctx, err):
            ctx.data.err = err

        @fail.ret
        def failed(ctx):
            emit("failed", given=ctx.data.err, returned=ctx.retval.r1)

        assert records(session, plain) == {"failed": [(name, name) for name in FAILURES]}


def test_what_is_in_an_interface_follows_by_a_cast(target):
    with anyprobe.attach(target.pid) as session:
        with_text, of_path = (ptr[session.type(name, "a.out")] for name in ("errors.errorString", "io/fs.PathError"))

        @session.entry("a.out:main.Fail")
        def on_fail(err, n):
            if n == 7:
                emit("text", err=err, text=with_text(err.data).s)
            elif n == 10:
                emit("number", err=err, errno=ptr[u64](err.data)[0])
            elif n == 11:
                emit("path", op=of_path(err.data).Op, path=of_path(err.data).Path, inner=of_path(err.data).Err)

        assert records(session, target) == {
            "text": [("*errors.errorString", b"text")],
            "number": [("syscall.Errno", 2)],
            "path": [(b"open", b"/missing", "syscall.Errno")],
        }


def test_interfaces_are_listed_by_their_names(plain):
    with anyprobe.attach(plain.pid) as session:
        (fail,) = session.list("a.out:main.Fail")
        assert (fail.arguments, fail.result) == ((("err", "error"), ("n", "i64")), "(r0: i64, r1: error)")
        (read,) = session.list("a.out:main.Read")
        assert (read.arguments, read.result) == ((("r", "io.Reader"), ("h", "main.holder")), "io.Reader")
    plain.finish()


def test_what_an_interface_is_not(plain):
    def a_text(err):
        emit("fail", text=cstr(err))

    def missing(err):
        emit("fail", missing=err is None)

    def equal(value, h):
        emit("any", same=value == h.Any)

    def of_equal_types(value, h):
        emit("any", same=u64(value) == u64(h.Any))

    with anyprobe.attach(plain.pid) as session:
        for name, handler, message in (
            ("Fail", a_text, "gotype is no address"),
            ("Fail", missing, "an interface is nil, not missing"),
            ("Any", equal, "what is in interfaces is not compared"),
        ):
            with pytest.raises(HandlerError, match=message):
                session.entry(f"a.out:main.{name}")(handler)
        session.entry("a.out:main.Any")(of_equal_types)
        assert set(records(session, plain)["any"]) == {(True,)}


def lines(target, *options):
    """Return what ``trace`` shows of the next hits, while the target goes round after round."""
    with start("trace", *options, "-p", str(target.pid), "-c", "4", "--quiet") as command:
        while command.poll() is None:
            target.go(1)
        shown, errors = command.communicate()
    assert command.returncode == 0, errors
    return shown


def test_the_command_line_shows_types(plain):
    shown = lines(plain, "a.out:main.Fail", "--print", "retval.r0,retval.r1", "--when", "retval.r1 != 0")
    found = re.findall(r"retval.r0=(\d+)  retval.r1=\"(.+)\"$", shown, re.MULTILINE)
    assert found == [(number, FAILURES[int(number)]) for number, _ in found]
    assert len(found) == 4
    assert "0" not in dict(found)
    shown = lines(plain, "a.out:main.Any", "--print", "value,latency_ns", "--when", "h.Number == 7 or value == 0")
    found = re.findall(r"main.Any = \"(.+)\"  value=\"(.+)\"  latency_ns=\d+$", shown, re.MULTILINE)
    assert sorted(found) == [("nil", "nil")] * 2 + [("struct { X int }", "struct { X int }")] * 2
    plain.finish()
