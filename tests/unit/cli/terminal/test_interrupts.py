"""What a command does about signals while it measures, and that it leaves nothing of that."""

import signal

import pytest

from anyprobe.cli.terminal.interrupts import Interrupts


@pytest.mark.parametrize("disposition", [signal.SIG_IGN, signal.default_int_handler], ids=["ignored", "heeded"])
def test_afterwards_signals_are_as_before(disposition):
    """Ignored as in jobs that scripts start in the background: a test run may be one, whose children inherit it."""
    before, mask = signal.signal(signal.SIGINT, disposition), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        with Interrupts():
            pass
        assert signal.getsignal(signal.SIGINT) == disposition
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == mask
    finally:
        signal.signal(signal.SIGINT, before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
