"""Threads that wait where they set handlers: who lets them go, and when."""

import threading
from types import SimpleNamespace

import pytest

from anyprobe.core.memory import MemoryFault
from anyprobe.probes.providers.function.gates import handler_gate
from anyprobe.probes.providers.function.gates.handler_gate import HandlerGate
from anyprobe.splice.userspace.fault_handler import SA_SIGINFO
from support.driver import wait_until

SEGV, HANDLER, ACTION = 11, 0x40_1000, 0x7FFF_0000
PATIENCE = 60.0
LONG = 2 * PATIENCE


@pytest.fixture(autouse=True)
def _patient_threads(monkeypatch):
    """Who waits does not go by itself while a test looks, however busy the machine is."""
    monkeypatch.setattr(handler_gate, "PATIENCE", LONG)


class Program:
    """A session whose changes are written down, and a thread that comes to ``sigaction``."""

    def __init__(self, handler=HANDLER):
        self.changes, self.known = [], False
        view = SimpleNamespace(coming=lambda *what: what, planned_amiss=lambda: "anew", expects=lambda *_: self.known)
        self.engine = SimpleNamespace(change=self.changes.append)
        splicing = SimpleNamespace(engine=self.engine, view=view)
        self.left_out = []
        self.gate = HandlerGate(SimpleNamespace(splicing=splicing), self.left_out.append)
        content = {ACTION: handler.to_bytes(8, "little"), ACTION + 136: SA_SIGINFO.to_bytes(4, "little")}

        def read(address, size):
            if address not in content:
                raise MemoryFault(address, size)
            return content[address]

        self.read = read

    def comes(self, action=ACTION):
        hit = SimpleNamespace(regs=SimpleNamespace(rdi=SEGV | 5 << 32, rsi=action), read=self.read)
        thread = threading.Thread(target=self.gate._ask, args=(hit,), daemon=True)
        thread.start()
        return thread

    def wait_for_it(self):
        """Wait until it is known that a thread waits."""
        wait_until(lambda: not self.gate._coming.empty(), "a thread waits")


def gone(thread):
    thread.join(PATIENCE)
    return not thread.is_alive()


def test_a_thread_waits_until_the_handler_is_spliced():
    program = Program()
    thread = program.comes()
    program.wait_for_it()
    assert thread.is_alive()
    program.gate.look()
    assert gone(thread)
    assert program.changes == [(SEGV, HANDLER, SA_SIGINFO), "anew"]


def test_a_change_that_fails_lets_it_go():
    program = Program()
    program.engine.change = lambda edits: 1 / 0
    thread = program.comes()
    program.wait_for_it()
    with pytest.raises(ZeroDivisionError):
        program.gate.look()
    assert gone(thread)


def test_the_end_lets_it_go_at_once_and_nobody_waits_afterwards():
    program = Program()
    waiting = program.comes()
    program.gate.end()
    assert gone(waiting)
    assert gone(program.comes())


@pytest.mark.parametrize("handler", [0, 1])
def test_no_handler_is_not_waited_for(handler):
    assert gone(Program(handler).comes())


def test_neither_is_one_that_is_known_nor_what_cannot_be_read():
    program = Program()
    assert gone(program.comes(action=0x1234))
    program.known = True
    assert gone(program.comes())
    program.gate.look()
    assert not program.changes


def test_a_change_that_takes_long_is_waited_for_once(monkeypatch):
    """Then who comes while it goes on is let go at once."""
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(handler_gate, "time", clock)
    monkeypatch.setattr(handler_gate, "PATIENCE", 0.1)
    program, begun, going_on = Program(), threading.Event(), threading.Event()
    program.engine.change = lambda edits: begun.set() or going_on.wait(2 * LONG)
    first = program.comes()
    program.wait_for_it()
    changing = threading.Thread(target=program.gate.look)
    changing.start()
    assert begun.wait(PATIENCE)
    assert gone(first)
    monkeypatch.setattr(handler_gate, "PATIENCE", LONG)
    clock.now += LONG
    assert gone(program.comes())
    going_on.set()
    assert gone(changing)
