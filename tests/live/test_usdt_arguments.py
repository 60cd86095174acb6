"""Arguments of USDT markers in handlers: each form has what the program passes."""

import struct

import pytest

import anyprobe
from anyprobe import (
    Count,
    HandlerError,
    Hist,
    Struct,
    Sum,
    UsageError,
    cstr,
    emit,
    f32,
    f64,
    i32,
    i64,
    ptr,
    u8,
    u16,
    u32,
    u64,
)
from support.driver import build, started
from support.plugins import loading
from support.results import counts

pytestmark = pytest.mark.live
ROUNDS = 40
NUMBERS = range(1, ROUNDS + 1)


@pytest.fixture
def target():
    with started(build("marked.c")) as running:
        yield running


def mixed(number):
    return number * 0x9E3779B97F4A7C15 % (1 << 64)


def wrapped(value, bits, *, signed):
    value &= (1 << bits) - 1
    return value - (1 << bits) if signed and value >> (bits - 1) else value


def widths(value, *forms):
    """Return a value as numbers of some widths in bits; a negative width is of a signed number."""
    return tuple(wrapped(value, abs(bits), signed=bits < 0) for bits in forms)


def rows_of(session):
    """Return the rows of the only record, as tuples."""
    ((_, _, rows),) = session.handling.records(final=True)
    return [tuple(row[name].item() for name in rows.dtype.names if name.startswith("a")) for row in rows]


def test_registers_of_all_widths_and_signs(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("usdt:forms:widths")
        def on_widths(arg0, arg1, arg2, arg3, arg4, arg5, arg6, arg7):
            emit("widths", a0=arg0, a1=arg1, a2=arg2, a3=arg3, a4=arg4, a5=arg5, a6=arg6, a7=arg7)

        target.go(ROUNDS)
        assert rows_of(session) == [widths(mixed(n), 64, -64, 32, -32, 16, -16, 8, -8) for n in NUMBERS]


def test_the_older_registers_and_their_second_bytes(target):
    with anyprobe.attach(target.pid) as session:

        @session.at("usdt:forms:old-widths")
        def on_widths(arg0, arg1, arg2, arg3, arg4, arg5):
            emit("widths", a0=arg0, a1=arg1, a2=arg2, a3=arg3, a4=arg4, a5=arg5)

        target.go(ROUNDS)
        expected = [widths(mixed(n), 64, -32, 16, -8) + widths(mixed(n) >> 8, 8, -8) for n in NUMBERS]
        assert rows_of(session) == expected


def test_every_register(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("usdt:forms:low")
        def on_low(arg0, arg1, arg2, arg3, arg4, arg5, arg6, arg7, arg8, arg9, arg10, arg11):
            emit("low", a0=arg0, a1=arg1, a2=arg2, a3=arg3, a4=arg4, a5=arg5, a6=arg6, a7=arg7, a8=arg8, a9=arg9,
                 a10=arg10, a11=arg11)  # fmt: skip

        target.go(ROUNDS)
        assert rows_of(session) == [
            tuple(wrapped(mixed(n) + k, 64, signed=False) for k in (0, 1, 2, 3, 5, 6, 7, 8, 9, 10, 11, 12))
            for n in NUMBERS
        ]


def test_parts_of_the_other_registers(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("usdt:forms:high")
        def on_high(arg0, arg1, arg2, arg3, arg4, arg5, arg6, arg7):
            emit("high", a0=arg0, a1=arg1, a2=arg2, a3=arg3, a4=arg4, a5=arg5, a6=arg6, a7=arg7)

        target.go(ROUNDS)
        forms = ((5, 32), (6, 16), (7, 8), (5, 8), (13, -32), (14, 32), (15, 16), (15, 64))
        assert rows_of(session) == [tuple(widths(mixed(n) + k, bits)[0] for k, bits in forms) for n in NUMBERS]


def test_memory_with_and_without_offset(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("usdt:forms:memory")
        def on_memory(arg0, arg1, arg2, arg3, arg4, arg5, arg6):
            emit("memory", a0=arg0, a1=arg1, a2=arg2, a3=arg3, a4=arg4, a5=arg5, a6=arg6)

        target.go(ROUNDS)
        assert rows_of(session) == [
            widths(-mixed(n), -64, 64) + widths(mixed(n), -32, 16, 8, -8) + widths(-mixed(n), -64) for n in NUMBERS
        ]


def test_memory_by_base_index_and_scale(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("usdt:forms:indexed")
        def on_indexed(arg0, arg1, arg2, arg3, arg4):
            emit("indexed", a0=arg0, a1=arg1, a2=arg2, a3=arg3, a4=arg4)

        target.go(ROUNDS)
        assert rows_of(session) == [
            tuple(widths(mixed(n) * (n % 3 + 1 + more), -32)[0] for more in (0, 1, -1, 2, 0)) for n in NUMBERS
        ]


def test_symbols(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("usdt:forms:symbols")
        def on_symbols(arg0, arg1, arg2, arg3: ptr[i32]):
            emit("symbols", a0=arg0, a1=arg1, a2=arg2, a3=arg3[0])

        target.go(ROUNDS)
        assert rows_of(session) == [(n, 2 * n, 3 * n, n) for n in NUMBERS]


def test_constants(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("usdt:forms:constants")
        def on_constants(arg0, arg1, arg2, arg3, arg4, arg5):
            emit("constants", a0=arg0, a1=arg1, a2=arg2, a3=arg3, a4=arg4, a5=arg5)

        target.go(1)
        assert rows_of(session) == [(-1, 7, (1 << 63) - 1, -128, 65535, 0)]


def test_floats_in_registers_and_in_memory(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("usdt:forms:floats")
        def on_floats(arg0, arg1, arg2, arg3, arg4: f64):
            emit("floats", a0=arg0, a1=arg1, a2=arg2, a3=arg3, a4=arg4)

        target.go(ROUNDS)
        assert rows_of(session) == [(n / 4, n / 8, n / 2, float(n), n / 4) for n in NUMBERS]


TRIPLE = Struct("triple", a=u64, b=u64, c=u64)
PAIR = Struct("pair", first=i32, second=i32, third=i32)


def test_numbers_of_odd_sizes_and_structs_by_value(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("usdt:forms:sizes")
        def on_sizes(arg0, arg1, arg2, arg3, arg4, arg5: PAIR, arg6: TRIPLE, arg7):
            emit("sizes", a0=arg0, a1=arg1, a2=arg2, a3=arg3, a4=arg4, a5=arg5.second, a6=arg6.b, a7=arg7)

        target.go(ROUNDS)
        assert rows_of(session) == [
            (*widths(mixed(n), 24, -24, 40, -48, 56), 20, wrapped(mixed(n) + 1, 64, signed=False), mixed(n) & 0xFFFFFF)
            for n in NUMBERS
        ]


def test_twelve_arguments_by_position(target):
    with anyprobe.attach(target.pid) as session:

        @session.entry("usdt:forms:twelve")
        def on_twelve(a: i32, b: i64, c: u8, d: u16, e: u32, f: u64, g: i32, h: i32, i: i32, j: i32, k: f32, m: bool):
            emit("twelve", a0=a, a1=b, a2=c, a3=d, a4=e, a5=f, a6=g, a7=h, a8=i, a9=j, a10=k, a11=m)

        target.go(ROUNDS)
        assert rows_of(session) == [
            (*range(n, n + 10), struct.unpack("<f", struct.pack("<i", n + 10))[0], True) for n in NUMBERS
        ]


def test_by_name_or_by_position_with_types_of_the_note_or_of_the_handler(target):
    sums, texts = Sum("sums"), Count("texts", by=("text", "n"))
    with anyprobe.attach(target.pid) as session:

        @session.entry('usdt:"odd provider":"a:name"')
        def on_query(query: cstr, n: u32):
            texts.add(key=(query, n))

        @session.entry("usdt:forms:twelve")
        def on_twelve(first, second: i64):
            sums.add(second - first)

        target.go(3)
        assert counts(texts) == {("a text", 1): 1, ("a text", 2): 1, ("a text", 3): 1}
        assert sums.result().total.sum == 3


def test_a_marker_at_several_places_has_its_argument_wherever_it_is(target):
    values = Count("values", by=("value",))
    with anyprobe.attach(target.pid) as session:

        @session.entry("usdt:places:many-times")
        def on_any(arg0):
            values.add(key=(arg0,))

        target.go(3)
        assert counts(values) == {(1,): 1, (2,): 2, (3,): 2, (4,): 1, (-3,): 3}


def test_an_argument_that_is_not_understood_is_named_and_the_others_work(target):
    values = Count("values", by=("a", "b"))
    with anyprobe.attach(target.pid) as session:
        with pytest.raises(HandlerError, match=r"arg1 of forms:unknown cannot be read: 8@%st\(3\)") as caught:

            @session.entry("usdt:forms:unknown")
            def on_all(arg0, arg1, arg2):
                values.add(key=(arg0, arg1))

        assert "arg0, arg2" in str(caught.value)
        assert not session.splicing.upkeep.is_installed

        @session.entry("usdt:forms:unknown")
        def on_others(arg0, arg2):
            values.add(key=(arg0, arg2))

        target.go(2)
        assert counts(values) == {(1, 1): 1, (2, 2): 1}


def test_a_symbol_that_is_not_there_is_an_argument_that_is_missing(target):
    with anyprobe.attach(target.pid) as session, pytest.raises(HandlerError, match="marked has no symbol no_such"):

        @session.entry("usdt:forms:symbols")
        def on_symbols(arg4):
            emit(a0=arg4)


@pytest.mark.parametrize(
    ("handler", "message"),
    [
        (lambda arg9: emit(a0=arg9), "forms:constants has 6 arguments"),
        (lambda ctx: emit(a0=ctx.retval), "no return value here"),
    ],
)
def test_what_a_marker_does_not_have_is_an_error(target, handler, message):
    with anyprobe.attach(target.pid) as session, pytest.raises(HandlerError, match=message):
        session.entry("usdt:forms:constants")(handler)


def test_markers_have_no_return(target):
    with anyprobe.attach(target.pid) as session, pytest.raises(UsageError, match="one place"):

        @session.ret("usdt:forms:widths")
        def on_return(ctx):
            emit(a0=ctx.retval)


def test_what_cannot_be_read_is_missing():
    source = """
        #include "protocol.h"
        #include "markers.h"
        static void one_round(void) { MARKER("bad", "address", "0", "8@8(%0) 8@%0", "r"(16L)); }
        static void setup(int argc, char **argv) { (void)argc; (void)argv; }
    """
    seen, missing = Count("seen"), Count("missing")
    with started(build("bad_address.c", text=source)) as target, anyprobe.attach(target.pid) as session:

        @session.entry("usdt:bad:address")
        def on_bad(arg0, arg1: cstr):
            if arg0 is None:
                missing.add()
            if arg1 is None:
                missing.add()
            seen.add()

        target.go(5)
        assert (counts(seen), counts(missing)) == ({(): 5}, {(): 10})
        target.finish()


def test_a_condition_over_arguments(target):
    seen = Count("seen", by=("value",))
    with anyprobe.attach(target.pid) as session:

        @session.entry("usdt:forms:memory", "usdt:places:many-times", when=lambda arg0: arg0 > 1)
        def on_memory(arg0):
            seen.add(key=(arg0 > 0,))

        @session.entry("usdt:forms:twelve", when=lambda n: n > 38)
        def on_twelve(n):
            seen.add(key=(n,))

        target.go(ROUNDS)
        assert counts(seen)[39,] == counts(seen)[40,] == 1


def test_handlers_of_a_library_that_comes_later():
    text = """
        #include "markers.h"
        int plugin_work(int n) { MARKER("plugin", "work", "0", "-4@%0", "r"(n)); return n + 1; }
    """
    library = build("marked_plugin.c", "-shared", "-fPIC", text=text)
    numbers = Hist("numbers")
    with loading(library) as do:
        do("l")
        with anyprobe.attach(do.pid) as session:

            @session.entry("usdt:plugin:work")
            def on_work(n):
                numbers.add(n)

            do("w")
            assert (numbers.result().total.count, numbers.result().total.sum) == (1000, 499_500)


def test_the_program_does_not_notice(target):
    """Its red zone is its own, and its markers' registers are what they were."""
    seen = Count("seen")
    with anyprobe.attach(target.pid) as session:

        @session.entry("usdt:forms:red-zone")
        def on_red_zone(arg0, arg1):
            if arg0 == arg1:
                seen.add()

        @session.entry("usdt:*")
        def on_any(ctx):
            seen.add()

        calls = target.go(200).calls["red_zone"]
        assert calls == 200
    target.finish()
