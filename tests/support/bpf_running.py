"""Runs handlers in the kernel, by test runs of programs of the kind that a system call runs."""

import ctypes
import os
import struct

from anyprobe.core.code import InputKind
from anyprobe.core.errors import TargetError
from anyprobe.handlers.bpf.machine import compile_bpf
from anyprobe.handlers.bpf.storages import KernelMaps
from anyprobe.target.kernel import programs


def refused_because() -> str | None:
    """Return why programs cannot be loaded here, ``None`` if they can."""
    trivial = struct.pack("<BBhi", 0xB7, 0, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0)
    try:
        os.close(programs.load(trivial))
    except TargetError as failure:
        return f"the kernel loads no BPF programs here: {failure}"
    return None


class KernelStorages:
    """The maps of one handler, until they are closed."""

    def __init__(self, handler, maps=None):
        self.maps = maps or KernelMaps()
        self._storages, self._is_owner = handler.storages, maps is None
        try:
            for each in handler.storages:
                self.maps.adopt(each)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        if self._is_owner:
            self.maps.close()

    def placed(self, program):
        return self.maps.placed(program, self._storages)

    def misses(self):
        return self.maps.misses()

    def result(self, index, names=None):
        storage = self._storages[index]
        return self.maps.result(storage, names)

    def dropped_stacks(self, index):
        return self.maps.dropped(self._storages[index]).get("no room", 0)


class Runner:
    """One program in the kernel, and what it counts."""

    def __init__(self, function, maps=None, program=None):
        self.program = program or compile_bpf(function, result_word=True)
        self.storages = KernelStorages(function, maps)
        self.descriptor = -1

    def __enter__(self):
        try:
            self.descriptor = programs.load(self.storages.placed(self.program))
        except BaseException:
            self.storages.close()
            raise
        return self

    def __exit__(self, *_):
        os.close(self.descriptor)
        self.storages.close()

    def call(self, words):
        """Run once; return the result's word."""
        context = (ctypes.c_uint64 * (len(self.program.inputs) + 1))()
        for index, each in enumerate(self.program.inputs):
            assert each.kind is InputKind.PARAMETER
            context[index] = words[each.index]
        programs.run(self.descriptor, context)
        return context[len(self.program.inputs)]

    def run(self, words):
        """Return the result's word and the misses so far."""
        return self.call(words), self.storages.misses()
