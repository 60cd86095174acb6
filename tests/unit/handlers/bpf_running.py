"""Runs handlers in the kernel, by test runs of programs of the kind that a system call runs."""

import ctypes
import os
import struct

from anyprobe.core.code import MISSES, InputKind
from anyprobe.handlers import bpfsyscall
from anyprobe.handlers.bpf import MISSES_REFERENCE

MISSES_BYTES = 8 * len(MISSES)
refused_because = bpfsyscall.refused_because


class Runner:
    """One program in the kernel, and what it counts."""

    def __init__(self, program, storages=()):
        self.program = program
        self.maps = {MISSES_REFERENCE: bpfsyscall.create_array(MISSES_BYTES)}
        self.maps |= {index: bpfsyscall.create_array(size) for index, size in enumerate(storages)}
        self.descriptor = -1

    def __enter__(self):
        self.descriptor = bpfsyscall.load(bpfsyscall.placed(self.program, self.maps))
        return self

    def __exit__(self, *_):
        for descriptor in (*self.maps.values(), self.descriptor):
            os.close(descriptor)

    def run(self, words):
        """Return the result's word and the misses so far."""
        context = (ctypes.c_uint64 * (len(self.program.inputs) + 1))()
        for index, each in enumerate(self.program.inputs):
            assert each.kind is InputKind.PARAMETER
            context[index] = words[each.index]
        bpfsyscall.run(self.descriptor, context)
        counts = struct.unpack(f"<{len(MISSES)}Q", bpfsyscall.read_array(self.maps[MISSES_REFERENCE], MISSES_BYTES))
        misses = {miss.value: count for miss, count in zip(MISSES, counts, strict=True)}
        return context[len(self.program.inputs)], misses
