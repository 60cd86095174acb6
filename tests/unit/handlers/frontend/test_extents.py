"""What says how many values there are in maps and channels."""

import pytest

from anyprobe.handlers.frontend.extents import counter_of
from anyprobe.handlers.frontend.values import Scalar
from anyprobe.handlers.ir import nodes as ir
from anyprobe.handlers.types.annotations import PointerType, u64
from anyprobe.handlers.types.go_types import go_counter
from anyprobe.handlers.types.layouts import Field, StructType


@pytest.mark.parametrize(
    ("name", "member"),
    [("map<string,int>", "used"), ("hash<string,int>", "count"), ("hchan<int>", "qcount"), ("main.map<int>", "")],
)
def test_only_maps_and_channels_of_go_have_a_count(name, member):
    """A type of another language may be called as they are, and may have such a member."""
    fields = tuple(Field(each, u64, 0) for each in ("used", "count", "qcount"))

    def pointer(counter):
        return Scalar(ir.Const(0, PointerType(StructType(name, 8, fields, counter=counter))))

    assert go_counter(name) == member
    found = counter_of(pointer(go_counter(name)))
    assert found == next((each for each in fields if each.name == member), None)
    assert counter_of(pointer("")) is None
