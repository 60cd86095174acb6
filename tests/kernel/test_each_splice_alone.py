"""Each instruction of a hundred functions spliced alone: it is counted exactly where that is known, and then gone."""

import os
import socket
import time
from collections import Counter
from contextlib import contextmanager

import pytest

from anyprobe.core.refusal import Reason
from anyprobe.probes.providers.kernel.places.sites import KernelNames
from support import checked_work, kernel_patches, place_planner
from support.kernel_patches import text

ROOTS = (
    "__do_sys_getppid", "vfs_read", "vfs_write", "ksys_read", "schedule", "try_to_wake_up", "pipe_read", "tcp_sendmsg",
    "do_sys_openat2",
)  # fmt: skip
FUNCTIONS = int(os.environ.get("ANYPROBE_ALONE_FUNCTIONS", "100"))
FIRST = int(os.environ.get("ANYPROBE_ALONE_FIRST", "0"))
"""In how many functions instructions are spliced, and behind how many others."""
_MOST = 1000
"""Of how many functions these are chosen: some may not be written at all."""
CALLS, ROUNDS, TRIES = 9, 3, 5
KNOWN = {
    "__do_sys_getppid": CALLS, "vfs_read": 2 * CALLS, "ksys_read": 2 * CALLS, "vfs_write": 2 * CALLS,
    "pipe_read": CALLS, "tcp_sendmsg": CALLS, "do_sys_openat2": CALLS,
}  # fmt: skip
"""How often `Work.once` calls functions that nothing else here calls meanwhile."""
_STALE = {Reason.FOREIGN_BYTES, Reason.KERNEL_REFUSES, Reason.OVERLAP, Reason.NOT_A_BOUNDARY, Reason.MAY_FAULT}
"""What the driver has never to say of a plan."""


class Work:
    """System calls whose number is known, beside a process that is woken and that wakes this one."""

    def __init__(self, folder):
        self._file = folder / "file"
        self._file.touch()
        self._zero, self._null = os.open("/dev/zero", os.O_RDONLY), os.open("/dev/null", os.O_WRONLY)
        self._reading, self._writing = os.pipe()
        with socket.create_server(("127.0.0.1", 0)) as server:
            self._client = socket.create_connection(server.getsockname())
            self._peer, _ = server.accept()
        self._near, far = socket.socketpair()
        self._child = os.fork()
        if not self._child:
            self._near.close()
            try:
                while data := far.recv(1):  # no read and no write: those are counted
                    far.send(data)
            finally:
                os._exit(0)
        far.close()

    def once(self):
        """Do all of it once."""
        for number in range(CALLS):
            byte = bytes([number])
            os.getppid()
            assert os.read(self._zero, 1) == b"\0"
            assert os.write(self._null, byte) == 1
            assert os.write(self._writing, byte) == 1
            assert os.read(self._reading, 8) == byte
            assert self._client.send(byte) == 1
            assert self._peer.recv(8) == byte
            os.close(os.open(self._file, os.O_RDONLY))
        for number in range(ROUNDS):
            assert self._near.send(bytes([number])) == 1
            assert self._near.recv(1) == bytes([number])

    def close(self):
        self._near.close()
        os.waitpid(self._child, 0)
        self._client.close()
        self._peer.close()
        for each in (self._zero, self._null, self._reading, self._writing):
            os.close(each)


@contextmanager
def working(folder):
    work = Work(folder)
    try:
        for _ in range(3):
            work.once()
        yield work
    finally:
        work.close()


class Alone:
    """What was found of a function's instructions."""

    def __init__(self, whole, function, work):
        self.whole, self.sites, self.runs = whole, function.sites, function.runs
        self.counts, self._work = {}, work
        self.tries = 0

    @property
    def name(self):
        return self.sites[0].name

    def measure(self, number):
        """Splice one instruction, work, and take it out; the text is as before."""
        self.whole.arm_one(number)
        if number in self.whole.refused:
            return
        writes = [each.change.write for each in self.whole.planned[number]]
        assert all(text(write.address, len(write.new)) == write.new for write in writes), self.sites[number].spec
        before = self.whole.counts(range(number, number + 1))[0]
        self._work.once()
        after = self.whole.counts(range(number, number + 1))[0]
        self.whole.take_out(number)
        assert all(text(write.address, len(write.old)) == write.old for write in writes), self.sites[number].spec
        self.counts[number] = after - before
        self.tries += 1

    def expected(self, number):
        """Return what an instruction has to count; ``None`` where that is not known."""
        if self.name not in KNOWN:
            return None
        run = self.runs[number]
        same = Counter(count for other, count in self.counts.items() if self.runs[other] == run and other != number)
        return KNOWN[self.name] if run == 0 else same.most_common(1)[0][0] if same else None


def measured(whole, function, work):
    """Splice each instruction alone; what is wrong once is looked at again: another process may have been there."""
    alone = Alone(whole, function, work)
    numbers = [number for number in range(len(function.sites)) if number not in whole.refused]
    for _ in range(TRIES):
        for number in numbers:
            alone.measure(number)
        numbers = [number for number, count in alone.counts.items() if alone.expected(number) not in (None, count)]
        if not numbers:
            break
    wrong = [(function.sites[number].spec, alone.counts[number], alone.expected(number)) for number in numbers]
    assert wrong == []
    return alone


@pytest.mark.thorough
@pytest.mark.torture
@pytest.mark.timeout(3 * 3600)
def test_each_instruction_of_a_hundred_functions(loaded, folder):
    checked_work.warm_up(folder)
    names, reasons, counted, hit, exact, spliced = KernelNames(), Counter(), 0, 0, 0, []
    with place_planner.asking() as planner, working(folder) as work, kernel_patches.unharmed():
        for start in planner.called(ROOTS, _MOST)[FIRST:]:
            began = time.monotonic()
            whole, function = planner.each_alone(start, names)
            try:
                alone = measured(whole, function, work)
            finally:
                whole.close()
            refused = Counter(why.reason.value for why in whole.refused.values())
            assert {why.reason for why in whole.refused.values()}.isdisjoint(_STALE), refused
            known = sum(alone.expected(number) is not None for number in alone.counts)
            print(
                f"{alone.name}: {len(alone.counts)} of {len(function.sites)} instructions, "
                f"{sum(count > 0 for count in alone.counts.values())} hit, {known} known, {alone.tries} times in "
                f"{time.monotonic() - began:.1f} s, refused: {dict(refused)}",
                flush=True,
            )
            reasons += refused
            counted += len(alone.counts)
            hit += sum(count > 0 for count in alone.counts.values())
            exact += known
            spliced += [alone.name] if alone.counts else []
            if len(spliced) >= FUNCTIONS:
                break
    print(f"{len(spliced)} functions, {counted} instructions alone, {hit} hit, {exact} known; refused: {dict(reasons)}")
    assert len(spliced) >= FUNCTIONS
    assert FIRST or exact >= 50
    assert hit >= counted // 10
