"""What plans are made with: room above the heap."""

from types import SimpleNamespace

import pytest

from anyprobe.splice.memory.space import GO_HEAP_ROOM, HEAP_ROOM
from anyprobe.splice.plan.splices import AUTO
from anyprobe.splice.planning import Planning

LOW, HIGH, HEAP = 0x40_0000, 0x90_0000, 0x3000_0000


@pytest.mark.parametrize(
    ("is_go", "low", "room"),
    [(True, LOW, GO_HEAP_ROOM), (False, LOW, HEAP_ROOM), (True, 0x7F00_0000_0000, HEAP_ROOM)],
    ids=["a program of Go", "another program", "a library of Go"],
)
def test_springboards_may_stand_near_the_heap_of_a_program_of_go(is_go, low, room):
    module = SimpleNamespace(code=SimpleNamespace(text=SimpleNamespace(is_go=is_go)), low=low, high=low + HIGH - LOW)
    heap = SimpleNamespace(start=HEAP, end=HEAP + 0x1000, path="[heap]")
    planning = Planning(SimpleNamespace(heap_start=HEAP, mappings=lambda: [heap]), allowed=AUTO, slots=False)
    planning.use_space([heap])
    planning.allow_near_heap(module)
    assert planning.springboards.space.is_free(heap.end + room, heap.end + HEAP_ROOM + 0x1000)
    assert not planning.springboards.space.is_free(heap.end + room - 0x1000, heap.end + room)
