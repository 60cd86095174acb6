"""The type of a result that is given: what is none is refused, and taken for nothing else."""

import pytest

from anyprobe.core.errors import HandlerError
from anyprobe.data.aggregates.aggregations import Hist
from anyprobe.handlers.compiler import intermediate
from anyprobe.handlers.frontend.lowering import Setting
from anyprobe.handlers.intrinsics import buf, cstr
from anyprobe.handlers.types.annotations import f64, i32, ptr, u8
from anyprobe.handlers.types.layouts import Struct

sizes = Hist("sizes")


def returned(ctx):
    if ctx.retval is not None:
        sizes.add(1)


@pytest.mark.parametrize("given", [cstr, buf, int, str, "i32", 4])
def test_what_is_no_type_is_refused(given):
    with pytest.raises(HandlerError, match=r"(?s)retval= is a type.*cstr\(ctx\.retval\)"):
        intermediate(returned, Setting(retval=given))


def members(ctx):
    sizes.add(ctx.retval.other)


@pytest.mark.parametrize("given", [i32, f64, ptr[u8]])
def test_types_are_taken(given):
    assert intermediate(returned, Setting(retval=given))


def test_a_structure_is_taken():
    assert intermediate(members, Setting(retval=Struct("pair", one=i32, other=i32)))
