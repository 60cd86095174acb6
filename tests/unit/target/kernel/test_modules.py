"""Where a module's code and tables are, from types and memory as kernels have them."""

import struct

import pytest

from anyprobe.core.address import AddressRange
from anyprobe.core.errors import UnsupportedTarget
from anyprobe.target.kernel.btf import Btf
from anyprobe.target.kernel.modules import areas_of
from anyprobe.target.kernel.types import Tag
from support.btf_blobs import Blob
from support.bytes_memory import BytesMemory

PLACE, TEXT, TABLE = 0xFFFF_FFFF_C010_0000, 0xFFFF_FFFF_C000_0000, 0xFFFF_FFFF_C020_0000


def types(*, newer):
    blob = Blob()
    number, long = blob.integer("unsigned int"), blob.integer("unsigned long", 8)
    if newer:
        inner = blob.structure("module_memory", 16, [("base", long, 0), ("size", number, 64)])
        array = blob.add(Tag.ARRAY, "", 0, [inner, number, 7])
        outer, place = ("mem", array, 64), 64
    else:
        members = [("base", long, 0), ("size", number, 64), ("text_size", number, 96)]
        outer, place = ("core_layout", blob.structure("module_layout", 16, members), 64), 64
    blob.structure(
        "module", 64,
        [("state", number, 0), outer, ("jump_entries", long, place + 128), ("num_jump_entries", number, place + 192),
         ("extable", long, place + 256), ("num_exentries", number, place + 320)],
    )  # fmt: skip
    return Btf(blob.content())


@pytest.mark.parametrize("newer", [True, False])
def test_text_and_tables(newer):
    layout = struct.pack("<QII", TEXT, 0x2000 if newer else 0x9000, 0x2000)
    content = bytes(8) + layout + struct.pack("<QIIQI", TABLE, 3, 0, 0, 0)
    found = areas_of(types(newer=newer), BytesMemory(PLACE, content.ljust(64, b"\0")), PLACE)
    assert found.text == AddressRange(TEXT, TEXT + 0x2000)
    assert found.tables == {"keys": AddressRange(TABLE, TABLE + 3 * 16)}


def test_types_that_do_not_tell():
    with pytest.raises(UnsupportedTarget, match="what a module is"):
        areas_of(Btf(Blob().content()), BytesMemory(PLACE, bytes(64)), PLACE)
