"""Writes BTF, record by record."""

import struct

from anyprobe.target.kernel.types import Tag


class Blob:
    """Types in the form of the kernel; ``add`` returns the number of each."""

    def __init__(self, first=1, first_text=0):
        self.records, self.texts = b"", b"\0" if not first_text else b""
        self.number, self.first_text = first, first_text

    def text(self, name):
        if not name:
            return 0
        at = len(self.texts) + self.first_text
        self.texts += name.encode() + b"\0"
        return at

    def add(self, tag, name="", last=0, rest=(), count=0, flag=False):
        self.records += struct.pack("<III", self.text(name), flag << 31 | tag << 24 | count, last)
        self.records += struct.pack(f"<{len(rest)}I", *rest)
        self.number += 1
        return self.number - 1

    def integer(self, name, size=4, encoding=1):
        return self.add(Tag.INT, name, size, [encoding << 24 | size * 8])

    def structure(self, name, size, members, tag=Tag.STRUCT, flag=False):
        rest = [word for member, kind, place in members for word in (self.text(member), kind, place)]
        return self.add(tag, name, size, rest, len(members), flag)

    def function(self, name, result, *parameters):
        rest = [word for parameter, kind in parameters for word in (self.text(parameter), kind)]
        prototype = self.add(Tag.FUNC_PROTO, "", result, rest, len(parameters))
        return self.add(Tag.FUNC, name, prototype, count=1)

    def content(self):
        head = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(self.records), len(self.records), len(self.texts))
        return head + self.records + self.texts
