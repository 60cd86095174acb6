"""What is not possible in a handler is said like a compiler says it, before any target is touched."""

import inspect

import pytest

from anyprobe.core.errors import HandlerError, UsageError
from anyprobe.data.aggregates.aggregations import Count, Hist, Sum
from anyprobe.data.readers.maps import Map
from anyprobe.handlers.compiler import intermediate
from anyprobe.handlers.frontend.lowering import Setting, lower
from anyprobe.handlers.intrinsics import buf, cstr, emit, printf
from anyprobe.handlers.ir import show
from anyprobe.handlers.types.annotations import f64, i32, i64, ptr, u8, u64

sizes, calls, table = Hist("sizes"), Count("calls"), Map("table")
keyed = Hist("keyed", by=("a", "b"))
each = Hist("each", by=("a",))


# Each handler has one mistake; the comment at its end is: the marked text | message | instead
def cases():
    def division(n: u64):
        return n / 3  # n / 3 | / divides floats | a // b

    def mixed(n: u64, m: i64):
        return n // m  # n // m | signed and unsigned | i64(…)

    def endless(n: u64):
        while n != 5:  # while n != 5: | cannot be proved that this loop ends | range(LIMIT)
            n += 1

    def unbounded(n: u64):
        for _ in range(n):  # range(n) | cannot be proved that this loop ends | min(n, 64)
            calls.add()

    def skipped(n: u64):
        i = 0
        while i < 10:  # while i < 10: | cannot be proved that this loop ends | range
            if n:
                continue
            i += 1

    def unassigned(n: u64):
        if n:
            x = 1
        return x  # x | may have no value | x = 0

    def listing(n: u64):
        return [n]  # [n] | a list is not possible | a tuple

    def unknown(n: u64):
        return nothing + n  # noqa: F821 # nothing | nothing is not defined | import nothing

    def attribute(ctx):
        return ctx.colour  # ctx.colour | ctx has no colour | one of

    def untyped(n):  # n | the type of n is not known | n: u64
        return n

    def pythons_int(n: int):  # int | int is no type | i64
        return n

    def raising(n: u64):
        raise ValueError(n)  # raise ValueError(n) | raise is not possible | return

    def too_large(n: i32):
        return n + (1 << 63)  # n + (1 << 63) | does not fit i64 | i64(

    def recursion(n: u64):
        return recursion(n)  # recursion(n) | calls itself | a loop

    def writing(p: ptr[u8]):
        p[0] = 1  # p[0] | changes what the program computes | unsafe=True

    def registers(ctx):
        ctx.regs.rax = 1  # ctx.regs.rax | changes what the program computes | unsafe=True

    def address(p: ptr):
        return p[0]  # p[0] | not known what this points at | ptr[u32]

    def values(n: u64):
        sizes.add()  # sizes.add() | a Hist adds a value | add(value)

    def counted(n: u64):
        calls.add(n)  # calls.add(n) | has no value | add()

    def key(n: u64):
        keyed.add(n, key=(n,))  # keyed.add(n, key=(n,)) | has 2 parts: a, b |

    def single(n: u64):
        each.add(n, key=(n, n))  # each.add(n, key=(n, n)) | has 1 part: a |

    def text(p: ptr):
        return cstr(p, 4096) == "x"  # 4096 | at most 128 bytes | several: cstr(p, 128), cstr(p + 128, 128)

    def texts(p: ptr):
        return cstr(p, 8) < "x"  # cstr(p, 8) < "x" | by == and != |

    def either(n: u64, m: u64):
        return n or m  # n or m | of conditions only | a if a else b

    def nothing_here(n: u64):
        return n is None  # n is None | u64 is never missing | p == 0

    def stored(ctx):
        return ctx.data.t0  # ctx.data.t0 | nothing has been stored |

    def shown(n: u64):
        print(n)  # print(n) | print is not possible | emit

    def formatted(n: u64):
        printf("{}", n)  # printf("{}", n) | printf takes one f-string | printf(f

    def record(n: u64):
        emit(n)  # emit(n) | named fields | emit("read"

    def floats(x: f64):
        sizes.add(x)  # x | only whole numbers | i64(

    def mapped(p: ptr):
        table.add(1)  # table.add(1) | Map has no add | .get(key)

    def item(p: ptr):
        return buf(p, 8)[0] + (1).bit_length()  # (1).bit_length | has no bit_length |

    def retyped(n: u64, x: f64):
        v = n
        v = x  # noqa: F841 # v | f64 in a variable of type u64 | u64(…)

    def keyword(n: u64 = 1):  # 1 | only plain parameters |
        return n

    found = [value for value in locals().values() if callable(value)]
    return [pytest.param(value, id=value.__name__) for value in found]


@pytest.mark.parametrize("handler", cases())
def test_the_message_points_at_the_place(handler):
    lines, first = inspect.getsourcelines(handler)
    line, expectation = next((at, text.rpartition("# ")[2]) for at, text in enumerate(lines) if " | " in text)
    marked, message, instead = (part.strip() for part in expectation.split("|"))
    with pytest.raises(HandlerError) as caught:
        intermediate(handler)
    error = caught.value
    assert message in error.message
    assert instead in error.instead
    assert (error.file, error.line) == (__file__, first + line)
    assert lines[line][error.column - 1 :].startswith(marked)
    text = str(error).splitlines()
    assert text[0] == f"{__file__}:{error.line}:{error.column}: {error.message}"
    assert text[2][2:].index("^") == error.column - 1


def test_the_parameters_of_a_condition_are_those_of_the_handler_by_name():
    def handler(file: u64, count: u64):
        sizes.add(count)

    def both(count, file):
        return count > file

    swapped = show.function(intermediate(handler, when=both))
    assert "both.1.count: u64 = count" in swapped
    with pytest.raises(HandlerError, match="handler has no parameter counts") as caught:
        intermediate(handler, when=lambda counts: counts > 3)
    assert (caught.value.instead, caught.value.file) == ("count", __file__)


def test_columns_are_characters_and_tabs_stay_tabs():
    error = HandlerError("no", file="f.py", line=3, column=4, source="\té n", instead="yes")
    assert str(error).splitlines() == ["f.py:3:4: no", "  \té n", "  \t  ^", "instead: yes"]


def test_a_handler_without_source_is_refused():
    space = {"u64": u64}
    exec("def handler(n: u64):\n    return n\n", space)  # noqa: S102 - it is what is refused
    with pytest.raises(HandlerError, match="the source of handler is not available"):
        intermediate(space["handler"])


def test_it_is_a_mistake_of_the_user():
    assert HandlerError("no").exit_status == 2
    with pytest.raises(UsageError):
        intermediate(len)


def test_a_handler_that_fails_leaves_no_trace():
    def handler(ctx, n: u64):
        calls.add(key=(n,))
        ctx.data.t0 = n
        return n / 2

    setting = Setting()
    with pytest.raises(HandlerError):
        lower(handler, setting)
    assert not setting.storages
    assert not setting.instance.fields


def test_too_many_steps_are_refused():
    def handler(n: u64):
        total = u64(0)
        for i in range(1000):
            for j in range(1000):
                total += i * j
        return total

    with pytest.raises(HandlerError, match="more than the 100000"):
        intermediate(handler)


def test_lambdas_on_one_line_are_told_apart():
    first, second = (lambda n: n > 64), (lambda n: n < 7)
    texts = [str(intermediate(each).body) for each in (first, second)]
    assert "value=64" in texts[0]
    assert "value=7" in texts[1]


def test_constants_have_the_sign_of_the_other_values():
    seen, known, total = Map("seen", by=("k",), value=u64), Map("known", by=("k",)), Sum("total")

    def handler(n: u64):
        known[(n,)] = n
        total.add(n)
        if seen.get((0,), 0) == 0:
            seen[(0,)] = 1
            known[(1,)] = 1
            total.add(1)

    assert lower(handler, Setting())
