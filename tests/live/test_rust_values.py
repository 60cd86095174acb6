"""Parameters and results of Rust functions by their names and types, compared with what the program passes."""

import pytest

import anyprobe
from anyprobe import Count, HandlerError, buf, emit, ptr
from anyprobe.cli import main
from anyprobe.probes.inlined_sites import listed
from anyprobe.probes.specs.spec import parsed
from support.results import records

pytestmark = pytest.mark.live

OPTIMISED, PLAIN = ("--edition=2021",), ("--edition=2021", "-Copt-level=0")


@pytest.fixture(params=[OPTIMISED, PLAIN], ids=["optimised", "plain"])
def target(request, run_target):
    return run_target("rust_values.rs", options=request.param)


@pytest.fixture
def plain(run_target):
    return run_target("rust_values.rs", options=PLAIN)


def test_numbers(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:rust_values::numbers")
        def numbers(a, b_, c, d, e, f, g):
            emit("numbers", a=a, b=b_, c=c, d=d, e=e, f=f, g=g)

        assert records(session, target) == {"numbers": [(-1, 2.5, 300, 0.25, True, -5_000_000_000, ord("x"))]}


def test_texts_and_slices(target):
    lengths = Count("lengths")
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:rust_values::text")
        def text(path, n):
            lengths[path].add()
            emit("text", path=path, n=n, length=len(path), equal=path == "/index.html")

        @session.entry("a.out:rust_values::owned")
        def owned(path, n):
            emit("owned", path=path, n=n, start=buf(path, 8))

        @session.entry("a.out:rust_values::borrowed")
        def borrowed(path, numbers):
            beyond = numbers[3]
            emit("borrowed", path=path, n=len(numbers), last=numbers[2], beyond=beyond is None)

        @session.entry("a.out:rust_values::slice")
        def of_slices(numbers, content):
            emit("slice", n=len(numbers), second=numbers[1], content=content)

        assert records(session, target) == {
            "text": [
                (b"/index.html", 42, 11, True), (b"", 0, 0, False), ("Grüße\0end".encode(), 1, 11, False),
            ],
            "owned": [(b"an owned string", 3, b"an owned")],
            "borrowed": [(b"a borrowed string", 3, 9, True)],
            "slice": [(2, 8, b"content")],
        }  # fmt: skip


def test_structs_and_options_by_value(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:rust_values::by_value")
        def by_value(point, size):
            some = size.Some
            emit("point", x=point.x, y=point.y, some=size.is_Some, size=0 if some is None else some)

        assert records(session, target) == {"point": [(-3, 4.5, True, 5), (3, -4.5, False, 0)]}


def test_results_that_are_texts(target):
    with anyprobe.attach(target.pid) as session:

        @session.ret("a.out:rust_values::trimmed")
        def trimmed(ctx):
            emit("trimmed", text=ctx.retval)

        assert records(session, target) == {"trimmed": [(b"padded",)]}


def test_results_in_the_callers_memory_are_where_the_entry_was_told(target):
    with anyprobe.attach(target.pid) as session:
        string = ptr[session.type("alloc::string::String", "a.out")]

        @session.call("a.out:rust_values::made")
        def made(ctx, path):
            ctx.data.place = ctx.regs.rdi
            ctx.data.path = path

        @made.ret
        def returned(ctx):
            emit("made", text=ctx.retval, same=string(ctx.data.place), given=ctx.data.path)

        @session.call("a.out:rust_values::read")
        def read():
            pass

        @read.ret
        def was_read(ctx):
            if ctx.retval.is_Ok:
                emit("read", text=ctx.retval.Ok)
            else:
                emit("failed", code=ctx.retval.Err.Code)

        assert records(session, target) == {
            "made": [(b"MADE", b"MADE", b"made")], "read": [(b"read",)], "failed": [(7,)],
        }  # fmt: skip


def test_results_in_the_callers_memory_on_the_command_line(target, capfd):
    for expressions, expected in (("retval", ""), ("path, latency_ns > 0", 'path="made"')):
        arguments = ["--print", expressions, "-c", "3", "-p", str(target.pid)]
        with target.going_on():
            assert main(["trace", "a.out:rust_values::made", *arguments]) == 0
        lines = capfd.readouterr().out.splitlines()
        assert len([line for line in lines if ' = "MADE"' in line and expected in line]) == 3, lines
    target.finish()


def test_what_is_larger_than_a_register_and_no_two_numbers_is_in_memory(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:rust_values::boxed")
        def boxed(n):
            emit("boxed", n=n)

        @session.entry("a.out:rust_values::mixed")
        def mixed(given, n):
            good, bad = given.Ok, given.Err
            emit("mixed", good=0 if good is None else good, bad=0 if bad is None else bad, n=n)

        def result(ctx):
            emit("result", good=ctx.retval.is_Ok)

        with pytest.raises(HandlerError, match=r"in its caller's memory, and only its entry|way of LLVM's own"):
            session.ret("a.out:rust_values::boxed")(result)
        assert records(session, target) == {"boxed": [(3,), (-3,)], "mixed": [(5, 0, 6), (0, 7, 8)]}


def test_results_and_options(target):
    with anyprobe.attach(target.pid) as session:

        @session.ret("a.out:rust_values::halves")
        def halves(ctx):
            half = ctx.retval.Some
            emit("halves", none=ctx.retval.is_None, half=0 if half is None else half)

        @session.ret("a.out:rust_values::parsed")
        def parsed(ctx):
            value, code = ctx.retval.Ok, 0
            if ctx.retval.is_Err:
                found = ctx.retval.Err.Code
                code = 0 if found is None else found
            emit("parsed", ok=ctx.retval.is_Ok, value=0 if value is None else value, code=code)

        @session.ret("a.out:rust_values::found")
        def of_found(ctx):
            address = ctx.retval.Some
            emit("found", value=0 if address is None else address[0])

        assert records(session, target) == {
            "halves": [(False, 42), (True, 0)],
            "parsed": [(True, 4, 0), (False, 0, 0), (False, 0, -22)],
            "found": [(8,), (0,)],
        }


def test_enums_and_members_behind_pointers(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:rust_values::area")
        def area(shape):
            side, radius = shape.Square, shape.Circle.radius
            emit("area", side=0 if side is None else side, radius=0.0 if radius is None else radius,
                 nothing=shape.is_Nothing)  # fmt: skip

        @session.entry("a.out:rust_values::Server::handle")
        def handle(self, request):
            far, size = request.far.Some.port, request.size.Some
            emit(
                "handle", name=buf(self.name, 16), method=buf(request.method, 8), path=buf(request.path, 16),
                tag=request.tags[1], host=buf(request.near.host, 8), port=request.near.port,
                far=0 if far is None else far, size=0 if size is None else size,
            )  # fmt: skip

        same = (b"main server", b"GET", b"/path", 8, b"near", 80)
        assert records(session, target) == {
            "area": [(0, 2.0, False), (3, 0.0, False), (0, 0.0, True)],
            "handle": [(*same, 443, 1234), (*same, 0, 0)],
        }


def test_polls_of_futures_return_whether_they_are_done(target):
    with anyprobe.attach(target.pid) as session:

        @session.ret("a.out:rust_values::serve::{{closure}}")
        def polled(ctx):
            value = ctx.retval.Ready
            emit("polled", pending=ctx.retval.is_Pending, value=0 if value is None else value)

        assert records(session, target) == {"polled": [(True, 0), (True, 0), (True, 0), (False, 6)]}


def test_polls_are_counted_by_future(plain):
    polls = Count("polls")
    with anyprobe.attach(plain.pid) as session:

        @session.entry("a.out:rust_values::serve::{{closure}}")
        def poll(parameter0):
            future = parameter0.pointer
            polls[future].add()
            emit("poll", begins=future.is_Unresumed, waits=future.is_Suspend0)

        plain.go(2)
        (found,) = session.snapshot().aggregations
        assert sum(each.count for _, each in found.ordered()) == 2 * 4
        assert records(session, plain)["poll"] == 3 * [(True, False), (False, True), (False, True), (False, True)]


def test_inlined_instances_are_those_that_were_linked(run_target):
    target = run_target("rust_values.rs", options=OPTIMISED)
    with anyprobe.attach(target.pid) as session:
        found = listed(session, parsed(["a.out:is_empty"]))
        assert found
        assert all(each.address for each in found)
    target.finish()


def test_mistakes_in_rust(target):
    with anyprobe.attach(target.pid) as session:

        def unknown(size):
            emit("x", size=size.Sme)

        def of_enum(size):
            emit("x", size=size)

        for handler, message in ((unknown, "has no Sme"), (of_enum, "cannot be a field of a record")):
            with pytest.raises(HandlerError, match=message):
                session.entry("a.out:rust_values::by_value")(handler)

        def in_memory(ctx):
            emit("x", text=ctx.retval)

        def unknown_result(ctx):
            emit("x", done=ctx.retval.is_Ready)

        def unknown_length(ctx):
            emit("x", n=len(ctx.retval))

        def wide(ctx):
            emit("x", n=ctx.retval)

        for name, handler, message in (
            ("made", in_memory, "returns a String in its caller's memory, and only its entry says where"),
            ("no_such", unknown_result, "result is not known: .* no function 'rust_values::no_such'"),
            ("no_such", unknown_length, "result is not known: .* no function 'rust_values::no_such'"),
            ("wide", wide, "returns a u128.*, which handlers cannot compute with"),
        ):
            with pytest.raises(HandlerError, match=message):
                session.ret(f"a.out:rust_values::{name}")(handler)
    target.finish()


def test_messages_have_the_names_of_the_source(plain):
    def wrong(pth):
        emit("x", n=len(pth))

    with anyprobe.attach(plain.pid) as session:
        with pytest.raises(HandlerError, match=r"^(?:.*\n)*.*rust_values::text has no parameter pth"):
            session.entry("a.out:rust_values::text")(wrong)
        plain.finish()
