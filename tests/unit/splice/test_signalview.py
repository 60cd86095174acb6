"""What a session says of signal handlers that it cannot see to."""

from types import SimpleNamespace

import pytest

from anyprobe.core.errors import StopTimeout, TargetExited
from anyprobe.splice import signalview


@pytest.mark.parametrize(("error", "complaints"), [(TargetExited(7), 0), (StopTimeout("thread 8 does not stop"), 1)])
def test_that_handlers_could_not_be_asked_matters_to_the_living(monkeypatch, error, complaints):
    def borrow():
        raise error

    engine = SimpleNamespace(process=SimpleNamespace(borrow=borrow), faults=SimpleNamespace(wanted=False), live=None)
    view = signalview.SignalView(engine)
    view.locate = lambda address: None
    monkeypatch.setattr(signalview, "handled_signals", lambda process: 1 << 9)
    view.look()
    assert list(view.with_handlers([SimpleNamespace(added=["something"])])) != []
    assert len(list(view.complaints())) == complaints
