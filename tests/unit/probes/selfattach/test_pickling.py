"""Handlers on their way to another process: what their names mean arrives, and nothing is imported."""

import enum
import pickle

import pytest

import anyprobe
from anyprobe import Count, HandlerError, Map, emit, ptr, u64
from anyprobe.handlers.compiler import intermediate
from anyprobe.handlers.frontend.lowering import Setting
from anyprobe.handlers.frontend.source import source_of
from anyprobe.probes.selfattach.pickling import Receiver, Sender

LIMIT, NAMES = 64, ("a", ("b", 3))
calls, started = Count("calls", by=("size",)), Map("started", by=("size",))


class Size(enum.IntEnum):
    BIG = 4096


class Config:
    step = 8

    class Inner:
        deep = 5


def helper(size):
    return size * Config.step + Config.Inner.deep


def on_malloc(ctx, size: "u64", where: ptr[u64]):
    if size > LIMIT and helper(size) < Size.BIG:
        calls.add(key=(size,))
        started.set((size,), ctx.now)
        emit("big", size=min(size, 10))


def sent(function, sender=None, receiver=None):
    """Return a function as it arrives."""
    return (receiver or Receiver()).unpack(pickle.loads(pickle.dumps((sender or Sender()).pack(function))))  # noqa: S301 - our own


def text_of(function):
    return str(intermediate(function, Setting(), None))


def test_a_handler_is_compiled_to_the_same_at_the_other_end():
    assert text_of(sent(on_malloc)).replace(" ", "") == text_of(on_malloc).replace(" ", "")


def test_the_meanings_of_names():
    arrived = sent(on_malloc).__globals__
    assert arrived["LIMIT"] == 64
    assert arrived["Size"].BIG == 4096
    assert type(arrived["Size"].BIG) is int
    assert arrived["u64"] == u64
    assert arrived["emit"] is emit
    assert arrived["min"] is min
    assert arrived["helper"].__globals__["Config"].Inner.deep == 5
    assert not hasattr(arrived["helper"].__globals__["Config"], "mro")
    assert "NAMES" not in arrived


def test_a_storage_has_one_twin_however_often_it_is_sent():
    sender, receiver = Sender(), Receiver()
    first, second = (sent(on_malloc, sender, receiver) for _ in range(2))
    assert first.__globals__["calls"] is second.__globals__["calls"] is not calls
    assert first.__globals__["calls"].name == "calls"
    assert [each.name for each in sender.storages.values()] == ["calls", "started"]
    assert sender.storages.keys() == receiver.storages.keys()


def test_closures_lambdas_modules_and_tuples():
    bound = 17

    def inner(size: u64):
        return anyprobe.u8(size) > bound or size in NAMES

    arrived = sent(inner)
    assert arrived.__closure__[0].cell_contents == 17
    assert arrived.__globals__["NAMES"] == NAMES
    assert arrived.__globals__["anyprobe"] is anyprobe
    condition = sent(lambda size: size > bound)
    assert source_of(condition).function is condition
    assert condition.__closure__[0].cell_contents == 17


def test_errors_point_at_the_source():
    def wrong(size: u64):
        return {size}

    with pytest.raises(HandlerError) as raised:
        text_of(sent(wrong))
    assert raised.value.file == __file__
    assert raised.value.source.strip() == "return {size}"


def test_what_has_no_meaning_there_is_an_error_there():
    thing = object()

    def wrong(size: u64):
        return size + thing

    with pytest.raises(HandlerError):
        text_of(sent(wrong))
    with pytest.raises(HandlerError, match="is not available"):
        Sender().pack(eval("lambda size: size"))  # noqa: S307 - as users do
