"""Messages between a program that probes itself and its attendant."""

import os
import socket

import pytest

from anyprobe.core.errors import HandlerError, InternalError, PermissionDenied, SiteRefused, SpecError, TargetExited
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.selfattach.channel import Channel, ChannelClosed, Failure


@pytest.fixture
def ends():
    first, second = (Channel(end) for end in socket.socketpair())
    yield first, second
    first.close()
    second.close()


def test_messages_arrive_whole_and_in_order(ends):
    here, there = ends
    here.send({"some": ["thing"]})
    here.send(b"x" * 5000)
    assert there.receive() == {"some": ["thing"]}
    assert there.receive() == b"x" * 5000


def test_open_files_arrive_with_the_message(ends):
    here, there = ends
    file = os.memfd_create("shared")
    os.write(file, b"seen")
    here.send("none")
    here.send("one", [file])
    assert (there.receive(), there.descriptors) == ("none", [])
    assert there.receive() == "one"
    (arrived,) = there.descriptors
    assert os.pread(arrived, 4, 0) == b"seen"
    os.close(arrived)
    os.close(file)


@pytest.mark.parametrize("content", [b"", b"\x08", b"\x08" + bytes(7), b"\x08" + bytes(7) + b"abc"])
def test_an_end_that_is_gone(content):
    here, there = socket.socketpair()
    here.send(content)
    here.close()
    channel = Channel(there)
    with pytest.raises(ChannelClosed):
        channel.receive()
    with pytest.raises(ChannelClosed):
        channel.send("anybody?")
    channel.close()


@pytest.mark.parametrize(
    "error",
    [
        SpecError("libc:mallok", 5, "no function", ("malloc",)),
        HandlerError("not possible", file="a.py", line=3, column=7, source="return []", instead="a Map"),
        TargetExited(7, 9),
        PermissionDenied("yama", "no", "use sudo"),
        SiteRefused(Refusal(Reason.NO_EXIT, 0x1000, "the function never returns")),
    ],
)
def test_errors_of_ours_are_the_same_at_the_other_end(ends, error):
    here, there = ends
    here.send(Failure.of(error))
    found = there.receive().error()
    assert type(found) is type(error)
    assert str(found) == str(error)
    assert found.__dict__ == error.__dict__


def test_other_errors_are_bugs_of_ours():
    found = Failure.of(KeyError("what")).error()
    assert isinstance(found, InternalError)
    assert "KeyError" in str(found)
    assert isinstance(Failure("subprocess", "Popen", "no").error(), InternalError)
