"""Parameters and results of Go functions by their names and types, compared with what the program passes."""

import pytest

import anyprobe
from anyprobe import Count, HandlerError, SpecError, buf, emit, f64, i64, ptr, u64
from support.results import records

pytestmark = pytest.mark.live


@pytest.fixture(params=[(), ("-gcflags=-N -l",), ("-buildmode=pie",), ("-race",)], ids=" ".join)
def target(request, run_target):
    return run_target("go_values.go", options=request.param)


@pytest.fixture
def plain(run_target):
    return run_target("go_values.go")


def rows(session, name, target):
    """Return the fields of the records of one name."""
    return records(session, target)[name]


def test_numbers_go_to_registers_and_to_the_stack(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:main.Numbers")
        def on_numbers(a, b, c, d, e, f, g, h, i, j, k):
            emit("numbers", a=a, b=b, c=c, d=d, e=e, f=f, g=g, h=h, i=i, j=j, k=k)

        assert rows(session, "numbers", target) == [
            (-1, 2.5, 300, 0.25, 200, -5_000_000_000, True, -7, 4_000_000_000, -9, ord("x"))
        ]


TEXTS = [b"/index.html", b"", b"long " * 12 + b"long", "Grüße\0end".encode()]


def test_strings_are_as_long_as_they_say(target):
    lengths, equal = Count("lengths"), Count("equal")
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:main.Text")
        def on_text(path, n):
            emit("text", path=path, n=n, length=len(path), first=buf(path, 4))
            lengths[path].add()
            if path == "/index.html":
                equal.add()

        found = rows(session, "text", target)
        assert [row[0] for row in found] == TEXTS
        assert [row[1:] for row in found] == [
            (42, 11, b"/ind"), (0, 0, b""), (1, 200, b"long"), (-1, 13 - 2, "Grü".encode()),
        ]  # fmt: skip
        assert int(equal) == 1
        by_text, _ = session.snapshot().aggregations
        assert len(by_text.entries) == len(TEXTS)


def test_a_string_is_equal_to_a_constant_only_if_it_is_no_longer(plain):
    equal = Count("equal")
    start = "long " * 12 + "long"
    with anyprobe.attach(plain.pid) as session:

        @session.entry("a.out:main.Text")
        def on_text(path):
            if path == start:
                equal.add()
            emit("text", n=len(path))

        assert len(rows(session, "text", plain)) == 4
        assert int(equal) == 0


def test_more_strings_than_registers(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:main.Many")
        def on_many(a, d, e, i, j, last):
            emit("many", a=buf(a, 8), d=buf(d, 8), e=buf(e, 8), i=buf(i, 8), j=buf(j, 8), last=last)

        @session.ret("a.out:main.Many")
        def on_return(ctx):
            emit("returned", text=ctx.retval.r0, n=ctx.retval.r1)

        assert records(session, target) == {
            "many": [(b"a", b"dddd", b"e", b"iiii", b"jjjjj", -12)], "returned": [(b"jjjjja", -12 + 18)],
        }  # fmt: skip


def test_slices(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:main.Bytes")
        def on_bytes(content, numbers, names):
            beyond = numbers[2]
            emit(
                "bytes", content=content, n=len(numbers), room=numbers.cap, number=numbers[1], third=names[2],
                names=len(names), beyond=beyond is None, byte=content[1],
            )  # fmt: skip

        assert rows(session, "bytes", target) == [(b"content", 2, 8, 0, b"three", 3, True, ord("o"))]


def test_structs_and_arrays_by_value(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:main.ByValue")
        def on_value(s, pair, one, after):
            emit("value", a=s.A, b=s.B, c=s.C, d=s.D, first=pair[0], second=pair[1], one=one[0], after=after)

        @session.ret("a.out:main.ByValue")
        def on_return(ctx):
            emit("returned", a=ctx.retval.A, b=ctx.retval.B, c=ctx.retval.C, d=ctx.retval.D)

        assert records(session, target) == {
            "value": [(-3, 500, 1.5, b"small", 7, 8, 9, 10)], "returned": [(24, 500, 1.5, b"small!")],
        }  # fmt: skip


def test_methods_and_members_behind_pointers(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:main.(*Server).Handle")
        def on_request(s, ctx_, r):
            where = r.Where.Host.len
            emit(
                "request", name=buf(s.name, 16), method=buf(r.Method, 8), id=r.ID, base=buf(r.Base.Name, 8),
                port=r.Near.Port, far=where is None, tag=buf(r.Tags[1], 8), tags=len(r.Tags), seen=len(r.Seen),
                small=r.Small[1], ratio=r.Ratio, on=r.On, context=ctx_.data != 0,
            )  # fmt: skip

        first, second = rows(session, "request", target)
        assert first == (b"main server", b"GET", 77, b"base", 80, False, b"yy", 2, 3, -2, 0.75, False, True)
        assert second == (*first[:5], True, *first[6:-2], True, True)


def test_results_have_their_names(target):
    with anyprobe.attach(target.pid) as session:

        @session.ret("a.out:main.(*Server).Handle")
        def on_handle(ctx):
            emit("handled", n=ctx.retval.n, failed=ctx.retval.err.tab != 0)

        @session.ret("a.out:main.Text")
        def on_text(ctx):
            emit("text", text=ctx.retval)

        @session.ret("a.out:main.Divide")
        def on_divide(ctx):
            emit("divided", quotient=ctx.retval.quotient, ok=ctx.retval.ok)

        @session.ret("a.out:main.Server.Name")
        def on_name(ctx):
            emit("name", name=ctx.retval)

        found = records(session, target)
    assert found["handled"] == [(3, False), (11, True)]
    assert found["text"] == [(b"/index.html42",), (b"0",), ((b"long " * 13)[:64],), ("Grüße\0end-1".encode(),)]
    assert found["divided"] == [(0.25, True)]
    assert found["name"] == [(b"the main server",)]


def test_interfaces_maps_channels_and_functions(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:main.Faces")
        def on_faces(err, m, ch, f):
            emit(
                "faces", err=err.tab != 0, m=len(m), waiting=len(ch),
                room=ch.dataqsiz if ch != 0 else 0, f=f != 0,
            )  # fmt: skip

        assert rows(session, "faces", target) == [(True, 3, 2, 4, True), (False, 0, 0, 0, False)]


def test_generic_functions(target):
    """Instances for several types have a dictionary besides, which has no name."""
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:main.Generic[[]go.shape.string*]")
        def on_string(value, n):
            emit("string", value=value, n=n)

        @session.entry("a.out:main.Generic[[]go.shape.int64*]")
        def on_number(value, n):
            emit("number", value=value, n=n)

        assert records(session, target) == {"string": [(b"generic", 3)], "number": [(5, 4)]}


def test_all_instances_of_a_generic_function_have_one_name(plain):
    """As in Go's own backtraces; brackets of globs, that are closed or not, are in the names' own."""
    with anyprobe.attach(plain.pid) as session:
        for name in ("Generic[...]", "Generic[[]*", "Generic*"):
            found, _ = session.resolve(f"a.out:main.{name}")
            assert {"main.Generic[go.shape.string", "main.Generic[go.shape.int64"} == {
                each.function.name.partition("_")[0].rstrip("]") for each in found
            }
        with pytest.raises(SpecError, match=r"nearest: main\.Generic\[\.\.\.\]"):
            session.count("a.out:main.Generic")
    plain.finish()


def test_texts_and_slices_are_kept_until_the_return(target):
    with anyprobe.attach(target.pid) as session:

        @session.call("a.out:main.Text")
        def on_text(ctx, path, n):
            ctx.data.n = n
            ctx.data.path = path
            ctx.data.after = n + 1

        @on_text.ret
        def of_text(ctx):
            path = buf(ctx.data.path, 4)
            emit("text", path=ctx.data.path, n=ctx.data.n, length=len(ctx.data.path), first=path, after=ctx.data.after)

        @session.call("a.out:main.Bytes")
        def on_bytes(ctx, content, numbers):
            ctx.data.content = content
            ctx.data.numbers = numbers

        @on_bytes.ret
        def of_bytes(ctx):
            emit("bytes", content=ctx.data.content, n=len(ctx.data.numbers), room=ctx.data.numbers.cap)

        found = records(session, target)
    assert found == {
        "text": [
            (TEXTS[0], 42, 11, b"/ind", 43), (TEXTS[1], 0, 0, b"", 1),
            (TEXTS[2], 1, 200, b"long", 2), (TEXTS[3], -1, 11, "Grü".encode(), 0),
        ],
        "bytes": [(b"content", 2, 8)],
    }  # fmt: skip


def test_what_is_kept_until_the_return_has_room_for_eight_words(plain):
    with anyprobe.attach(plain.pid) as session:

        def too_many(ctx, content, numbers, names):
            ctx.data.content = content
            ctx.data.numbers = numbers
            ctx.data.names = names

        def several(ctx, content, names):
            ctx.data.kept = content
            ctx.data.kept = names

        for handler, message in ((too_many, "at most 8 words"), (several, "ctx.data.kept is .* this is")):
            with pytest.raises(HandlerError, match=message):
                session.call("a.out:main.Bytes")(handler)
    plain.finish()


def test_what_is_listed_has_go_types(plain):
    with anyprobe.attach(plain.pid) as session:
        (text,) = session.list("a.out:main.Text")
        assert (text.arguments, text.result) == ((("path", "string"), ("n", "i64")), "string")
        (handle,) = session.list("a.out:main.(*Server).Handle")
        assert [name for name, _ in handle.arguments] == ["s", "ctx_", "r"]
    plain.finish()


def test_positions_are_those_of_go_without_debug_information(run_target):
    target = run_target("go_values.go", options=("-ldflags=-s -w",))
    with anyprobe.attach(target.pid) as session:

        @session.entry("a.out:main.Text")
        def on_text(path: ptr, length: u64, n: i64):
            emit("text", path=buf(path, length, 64), n=n)

        @session.entry("a.out:main.Divide")
        def on_divide(a: f64, b: f64):
            emit("divide", a=a, b=b)

        found = records(session, target)
    assert found["text"] == list(zip(TEXTS, (42, 0, 1, -1), strict=True))
    assert found["divide"] == [(1.0, 4.0)]


def test_mistakes_in_go(plain):
    with anyprobe.attach(plain.pid) as session:

        def unknown(pth):
            emit("x", n=len(pth))

        def complex_number(c):
            emit("x", c=c)

        def of_slice(numbers):
            emit("x", numbers=numbers)

        for spec, handler, message in (
            ("Text", unknown, "main.Text has no parameter pth"),
            ("Complex", complex_number, "complex128, which handlers cannot compute with"),
            ("Bytes", of_slice, "cannot be a field of a record"),
        ):
            with pytest.raises(HandlerError, match=message):
                session.entry(f"a.out:main.{spec}")(handler)
    plain.finish()
