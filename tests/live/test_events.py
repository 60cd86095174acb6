"""Records as they come, by ``for``, ``async for`` and functions that are called with them."""

import asyncio
import ctypes
import threading
import time

import pytest

import anyprobe
from anyprobe import emit, u64
from support.driver import build, started

pytestmark = pytest.mark.live
IN_A_ROUND = 4_000
"""Calls of ``sized`` in one round of handled.c, in four threads."""


@pytest.fixture
def target():
    with started(build("handled.c", "-O2", "-pthread")) as running:
        yield running


def emitting(session):
    """Emit the sizes that are multiples of 100: ten for each thousand calls."""

    @session.entry("a.out:sized")
    def on_sized(size: u64):
        if size % 100 == 0:
            emit("sized", size=size)


def test_events_come_in_order_while_the_program_runs(target):
    with anyprobe.attach(target.pid) as session:
        emitting(session)
        target.start(3)
        found = []
        for event in session.events(timeout=60):
            found.append(event)
            if len(found) == 3 * IN_A_ROUND // 100:
                break
        target.wait_done()
        times = [event.fields["ts"] for event in found]
        assert times == sorted(times)
        assert {name for name, _ in found} == {"sized"}
        assert sorted(event.fields["size"] for event in found) == sorted(12 * list(range(0, 1000, 100)))
        assert list(session.events(timeout=0.05)) == []
    target.finish()


def test_the_iteration_ends_with_the_target(target):
    with anyprobe.attach(target.pid) as session:
        emitting(session)
        target.start(2)
        threading.Timer(0.3, target.finish).start()
        assert len(list(session.events())) == 2 * IN_A_ROUND // 100
        begin = time.process_time()
        assert list(session.events()) == []
        assert time.process_time() - begin < 1


def test_async_for(target):
    async def collect(session):
        ticks = 0
        waited = []

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.001)

        ticking = asyncio.create_task(tick())
        found = []
        async for event in session.events(timeout=60):
            found.append(event)
            if len(found) == 2 * IN_A_ROUND // 100:
                break
        for seconds in (0.05, 0.5, 5):  # on a busy machine others may have no turn for a while
            before = ticks
            assert [event async for event in session.events(timeout=seconds)] == []
            waited.append(ticks - before)
            if waited[-1] > 10:
                break
        ticking.cancel()
        return found, waited

    with anyprobe.attach(target.pid) as session:
        emitting(session)
        target.start(2)
        found, waited = asyncio.run(collect(session))
        assert len(found) == 2 * IN_A_ROUND // 100
        assert max(waited) > 10  # others ran meanwhile
        target.wait_done()
    target.finish()


def test_waiting_for_events_takes_hardly_any_time(target):
    with anyprobe.attach(target.pid) as session:
        emitting(session)
        list(session.events(timeout=0.05))
        begin = time.process_time()
        assert list(session.events(timeout=1)) == []
        assert time.process_time() - begin < 0.2
    target.finish()


def test_functions_are_called_with_records(target):
    sizes, every, threads = [], [], set()
    with anyprobe.attach(target.pid) as session:
        emitting(session)

        @session.on("sized")
        def on_record(event):
            sizes.append(event.fields["size"])
            threads.add(threading.current_thread())
            if len(sizes) == 1:
                raise ValueError("the others are called all the same")

        session.on()(every.append)
        session.on("something else")(pytest.fail)
        target.go(2)
    # what came until the end has been told
    assert len(sizes) == len(every) == 2 * IN_A_ROUND // 100
    assert threads.isdisjoint({threading.main_thread()})
    assert [str(error) for error in session.listeners.errors] == ["the others are called all the same"]
    target.finish()


def test_events_of_this_very_process():
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
    told, others = [], threading.enumerate()
    with anyprobe.attach_self() as session:

        @session.entry("libc:malloc")
        def on_malloc(size: u64):
            if size == 54_321:
                emit("odd", size=size)

        @session.on("odd")
        def on_odd(event):
            told.append(event.fields["size"])
            libc.free(libc.malloc(54_321))  # in a thread of ours: no hit

        for _ in range(5):
            libc.free(libc.malloc(54_321))
        time.sleep(0.1)
        libc.free(libc.malloc(54_321))
    assert told == [54_321] * 6
    assert not any(each.name.startswith("anyprobe") for each in threading.enumerate() if each not in others)
