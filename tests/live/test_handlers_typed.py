"""Parameters and results of every kind in a running program, with types from annotations and from debug information."""

import subprocess

import pytest

import anyprobe
from anyprobe import Array, HandlerError, Struct, cstr, emit, f32, f64, i8, i16, i32, i64, ptr, u8, u32, u64
from support.driver import build, started

pytestmark = pytest.mark.live

point = Struct("point", x=i32, y=f64)
colour = Struct("colour", r=f32, g=f32, b=f32)
pair = Struct("pair", re=f64, im=f64)
header = Struct("header", tag=i8, width=i16, bits=u32, total=i64)
large = Struct("large", a=Array(i64, 5), name=Array(u8, 8))

TEN = (-1, 2.5, -300, 0.25, 200, -5_000_000_000, True, -7, 4_000_000_000, -9)
TWELVE = (1, 2, 3, 4, 5, 6, 7, 8, 9.5, 10.25, -11, -12)


@pytest.fixture
def described():
    with started(build("typed.c")) as running:
        yield running


@pytest.fixture
def bare(tmp_path):
    """The same program without debug information."""
    stripped = tmp_path / "typed"
    subprocess.run(["objcopy", "--strip-debug", str(build("typed.c")), str(stripped)], check=True)
    with started(stripped) as running:
        yield running


def values(session, name, target):
    """Return the fields of the one record that was emitted, without its time."""
    target.go(1)
    target.finish()
    found = session.records(final=True)[name]
    (row,) = found.tolist()
    return tuple(value for field, value in zip(found.dtype.names, row, strict=True) if field != "ts")


def test_ten_parameters_by_annotation(bare):
    with anyprobe.attach(bare.pid) as session:

        @session.entry("a.out:ten")
        def on_ten(a: i8, b: f64, c: i16, d: f32, e: u8, f: i64, g: bool, h: i32, i: u32, j: i64):
            emit("ten", a=a, b=b, c=c, d=d, e=e, f=f, g=g, h=h, i=i, j=j)

        assert values(session, "ten", bare) == TEN


def test_ten_parameters_by_name(described):
    with anyprobe.attach(described.pid) as session:

        @session.entry("a.out:ten")
        def on_ten(j, a, b, c, d, e, f, g, h, i):
            emit("ten", a=a, b=b, c=c, d=d, e=e, f=f, g=g, h=h, i=i, j=j)

        assert values(session, "ten", described) == TEN


def test_floats_on_the_stack(described):
    with anyprobe.attach(described.pid) as session:

        @session.entry("a.out:twelve")
        def on_twelve(a, b, c, d, e, f, g, h, i, j, k, l):
            emit("twelve", a=a, b=b, c=c, d=d, e=e, f=f, g=g, h=h, i=i, j=j, k=k, l=l)

        assert values(session, "twelve", described) == TWELVE


STRUCTS = (-3, 4.5, 0.5, 1.5, 2.5, ord("h"), -300, 1 << 40, 1, -5, ord("l"), 6.5, -7.5, -8)


def test_structs_by_value_by_annotation(bare):
    with anyprobe.attach(bare.pid) as session:

        @session.entry("a.out:structs")
        def on_structs(p: point, c: colour, h: header, l: large, z: pair, last: i8):
            emit(
                "structs", x=p.x, y=p.y, r=c.r, g=c.g, b=c.b, tag=h.tag, width=h.width, total=h.total, first=l.a[0],
                fifth=l.a[4], letter=l.name[0], re=z.re, im=z.im, last=last,
            )  # fmt: skip

        assert values(session, "structs", bare) == STRUCTS


def test_structs_by_value_by_name(described):
    with anyprobe.attach(described.pid) as session:

        @session.entry("a.out:structs", when=lambda z, last: z.re > 6 and last < 0)
        def on_structs(z, last, p, c, h, l):
            emit(
                "structs", x=p.x, y=p.y, r=c.r, g=c.g, b=c.b, tag=h.tag, width=h.width, total=h.total, first=l.a[0],
                fifth=l.a[4], letter=l.name[0], re=z.re, im=z.im, last=last, length=h.length, delta=h.delta, on=h.on,
            )  # fmt: skip

        assert values(session, "structs", described) == (*STRUCTS, 4000, -11, True)


def test_a_struct_goes_to_the_stack_as_a_whole(described):
    with anyprobe.attach(described.pid) as session:

        @session.entry("a.out:many")
        def on_many(a, b, c, d, e, f, g, h):
            emit("many", a=a.x, b=b.y, c=c.x, d=d, e=e, f=f.total, g=g, h=h.x, y=h.y)

        assert values(session, "many", described) == (1, 2.5, 3, 4, 5, 1 << 40, 7, 8, 8.5)


def test_members_are_followed(described):
    with anyprobe.attach(described.pid) as session:

        @session.entry("a.out:serve", when=lambda n: n == 4)
        def on_serve(n, request, name):
            client = request.client
            emit(
                "serve", n=n, name=cstr(name, 16), fd=client.fd, near=client.peer.port,
                here=request.client.address.port, next=request.client.next.address.port,
                host=cstr(client.next.peer.host, 16), label=cstr(client.label, 12),
                method=request.method, kind=request.kind, flags=request.flags,
                delta=request.delta, urgent=request.urgent, value=request.value.fraction, byte=request.value.bytes[7],
                anonymous=request.anonymous, inner=request.inner, deep=request.deep[1], other=request.clients[1].fd,
                embedded=request.embedded[1].fd, ratio=request.ratio,
            )  # fmt: skip

        assert values(session, "serve", described) == (
            4, b"hello", -4, 80, 443, 8080, b"far away", b"one", 7, 5, 300, -17, True, 2.5, 0x40, -6, 9, -2, -4, -4,
            0.75,
        )  # fmt: skip
        assert session.handling.misses() == {"fault": 0, "abandoned": 0, "division": 0}


def test_what_hangs_on_a_bad_pointer_is_missing(described):
    with anyprobe.attach(described.pid) as session:

        @session.entry("a.out:serve")
        def on_serve(request, n):
            port = request.client.next.address.port
            emit("serve", n=n, port=0 if port is None else port)

        described.go(1)
        described.finish()
        found = session.records(final=True)["serve"]
        assert [(int(row["n"]), int(row["port"])) for row in found] == [(4, 8080), (2, 0), (5, 0)]
        assert session.handling.misses() == {"fault": 2, "abandoned": 0, "division": 0}


def test_results_by_debug_information(described):
    with anyprobe.attach(described.pid) as session:

        @session.ret("a.out:half")
        def half(ctx):
            emit("half", value=ctx.retval)

        @session.ret("a.out:single")
        def single(ctx):
            emit("single", value=ctx.retval)

        @session.ret("a.out:negative")
        def negative(ctx):
            emit("negative", value=ctx.retval)

        @session.ret("a.out:truth")
        def truth(ctx):
            emit("truth", value=ctx.retval)

        @session.ret("a.out:find")
        def find(ctx):
            emit("find", value=ctx.retval.fd)

        @session.ret("a.out:make_point")
        def make_point(ctx):
            emit("make_point", x=ctx.retval.x, y=ctx.retval.y)

        @session.ret("a.out:make_pair")
        def make_pair(ctx):
            emit("make_pair", re=ctx.retval.re, im=ctx.retval.im)

        @session.ret("a.out:make_large")
        def make_large(ctx):
            emit("make_large", first=ctx.retval.a[0], last=ctx.retval.a[4])

        described.go(1)
        described.finish()
        found = {name: [tuple(row)[1:] for row in each.tolist()] for name, each in session.records(final=True).items()}
    assert found == {
        "half": [(2.5,)], "single": [(2.5,)], "negative": [(-7,)], "truth": [(True,), (False,)], "find": [(-4,)],
        "make_point": [(10, 2.5)], "make_pair": [(1.5, -1.5)], "make_large": [(3, -3)],
    }  # fmt: skip


def test_results_by_demand(bare):
    with anyprobe.attach(bare.pid) as session:

        @session.ret("a.out:half", retval=f64)
        def half(ctx):
            emit("half", value=ctx.retval)

        @session.ret("a.out:make_point", retval=point)
        def make_point(ctx):
            emit("make_point", x=ctx.retval.x, y=ctx.retval.y)

        @session.call("a.out:make_large", retval=large)
        def make_large(ctx, result: ptr, x: i64):
            ctx.data.x = x

        @make_large.ret
        def made_large(ctx):
            emit("make_large", x=i64(ctx.data.x), last=ctx.retval.a[4])

        @session.ret("a.out:negative")
        def negative(ctx):
            emit("negative", value=ctx.retval)

        bare.go(1)
        bare.finish()
        found = {name: [tuple(row)[1:] for row in each.tolist()] for name, each in session.records(final=True).items()}
    assert found == {
        "half": [(2.5,)], "make_point": [(10, 2.5)], "make_large": [(3, -3)], "negative": [((1 << 32) - 7,)],
    }  # fmt: skip


def test_members_are_changed_in_unsafe_sessions(described):
    with anyprobe.attach(described.pid, unsafe=True) as session:

        @session.entry("a.out:find")
        def on_find(request):
            request.ratio = 1.25
            request.client.address.port += 7
            request.urgent = request.kind == 0
            request.value.whole = -3

        @session.ret("a.out:find")
        def on_found(ctx):
            emit("found", port=ctx.retval.address.port)

        @session.entry("a.out:find")
        def see(request):
            emit("see", ratio=request.ratio, urgent=request.urgent, value=request.value.whole, flags=request.flags)

        described.go(1)
        described.finish()
        found = {name: [tuple(row)[1:] for row in each.tolist()] for name, each in session.records(final=True).items()}
    assert found == {"found": [(450,)], "see": [(1.25, False, -3, 300)]}


# Each handler has one mistake; the comment at its end is: the spec | the marked text | message | instead
def unknown_member(request):
    emit("x", value=request.client.prot)  # serve | request.client.prot | has no prot | port or


def unknown_parameter(reqest):  # serve | reqest | serve has no parameter reqest | request
    emit("x", value=reqest.method)


def extended_parameter(exact):  # serve | exact | long double, which handlers cannot compute with |
    emit("x", value=exact)


def extended_result(ctx):
    emit("x", value=ctx.retval)  # extended | ctx.retval | returns a long double | ctx.regs


def incomplete(request):
    emit("x", value=request.hidden.x)  # serve | request.hidden.x | nothing is known of what is in struct hidden | ptr


def too_far(l):
    emit("x", value=l.a[5])  # structs | l.a[5] | has items 0 to 4 |


def writing(request):
    request.ratio = 2.0  # serve | request.ratio | changes what the program computes | unsafe=True


MISTAKES = [writing, unknown_member, unknown_parameter, extended_parameter, extended_result, incomplete, too_far]


def test_mistakes_are_shown_where_they_are(described):
    import inspect

    with anyprobe.attach(described.pid) as session:
        for handler in MISTAKES:
            (line,) = (each for each in inspect.getsource(handler).splitlines() if "  # " in each)
            spec, marked, message, instead = (each.strip() for each in line.split("  # ")[1].split("|", 3))
            place = session.ret if handler is extended_result else session.entry
            with pytest.raises(HandlerError) as caught:
                place(f"a.out:{spec}")(handler)
            error = caught.value
            assert message in str(error), error
            assert instead.rstrip("| ") in str(error), error
            assert error.source[error.column - 1 :].startswith(marked.split(".")[0])
        assert not session.probes
    described.go(1)
    described.finish()


def test_without_debug_information_the_message_says_so(bare):
    with anyprobe.attach(bare.pid) as session:

        def on_serve(request):
            emit("x", value=u64(request))

        with pytest.raises(HandlerError, match=r"type of request is not known: .* has no debug information"):
            session.entry("a.out:serve")(on_serve)
    bare.finish()


def test_what_is_listed_has_types(described, bare):
    with anyprobe.attach(described.pid) as session:
        (ten,) = session.list("a.out:ten")
        assert ten.arguments == (
            ("a", "i8"), ("b", "f64"), ("c", "i16"), ("d", "f32"), ("e", "u8"), ("f", "i64"), ("g", "bool"),
            ("h", "i32"), ("i", "u32"), ("j", "i64"),
        )  # fmt: skip
        assert ten.result == "f64"
        (serve,) = session.list("a.out:serve")
        assert serve.arguments[:3] == (
            ("request", "ptr[struct request]"),
            ("name", "ptr[i8]"),
            ("exact", "long double"),
        )
    with anyprobe.attach(bare.pid) as session:
        (ten,) = session.list("a.out:ten")
        assert (ten.arguments, ten.result) == (None, None)
    for target in (described, bare):
        target.finish()


def test_functions_that_share_a_handler_have_to_be_alike(described):
    with anyprobe.attach(described.pid) as session:

        @session.entry("a.out:negative", "a.out:truth")
        def of_both(ctx):
            emit("any", caller=ctx.caller != 0)

        def by_name(x):
            emit("x", x=x)

        for specs in (("a.out:negative", "a.out:truth"), ("a.out:negative", "a.out:half")):
            with pytest.raises(HandlerError, match="have different parameters or results"):
                session.entry(*specs)(by_name)
        session.entry("a.out:negative", "a.out:negative:entry")(by_name)

        @session.ret("a.out:negative", "a.out:half")
        def raw(ctx):
            emit("raw", value=ctx.retval)

        described.go(1)
        described.finish()
        found = session.records(final=True)
        assert found["raw"].dtype["value"] == "int64"
        assert found["x"]["x"].tolist() == [7, 7]
