"""Changes while the program runs, on a simulated target whose threads run between any two writes."""

import pytest

from support.simulated.functions import FUNCTIONS
from support.simulated.session import splicing

NUMBER = 4
ONE_BYTE, SEVERAL = "twice", "constant"
"""Functions whose entry is armed by one store of one byte, and by way of an ``int3``."""
NAMES = [name for name in FUNCTIONS if name != "count_down"]  # its entry is in its loop: that takes a stop


class Running:
    """A second thread that calls functions again and again, once between any two writes of text."""

    def __init__(self, program, names):
        self.program, self.names = program, names
        self.thread = program.target.new_thread()
        self.expected = {name: program.call(name, NUMBER) for name in names}
        self.rounds, self.traps = 0, 0

    def __call__(self):
        self.rounds += 1
        self.traps += b"\xcc" in [self.program.target.mem.read(self.program[name], 1) for name in self.names]
        for name in self.names:
            assert self.program.target.call(self.program[name], NUMBER, thread=self.thread) == self.expected[name]


@pytest.fixture
def running(program):
    """Whatever is written to the text, the program works right after it."""
    program.target.mem.after_write = running = Running(program, NAMES)
    return running


def test_no_thread_stands_still_and_after_every_write_the_program_is_correct(program, running):
    with splicing(program, live=True) as session:
        hooks = {name: session.count(name)[0] for name in NAMES}
        assert {hook.arming for hook in hooks.values()} == {"live"}
        assert running.traps > 0
        before = dict(zip(hooks, session.hits(hooks.values()), strict=True))
        for name in NAMES:
            program.call(name, NUMBER)
        calls = {name: new - before[name] for name, new in zip(hooks, session.hits(hooks.values()), strict=True)}
        assert calls == dict.fromkeys(NAMES, 1) | {"twice": 2, "fib": 9}
        for name in NAMES:
            session.take_out(name)
        assert program.is_pristine()
        session.splicing.end_live()
        assert not any("anyprobe" in mapping.path for mapping in program.target.mappings())
        assert program.target.stops == 0


@pytest.mark.parametrize("name", [ONE_BYTE, SEVERAL])
def test_from_the_write_that_arms_to_the_one_that_takes_out_every_call_counts(program, running, name):
    running.names = [name]
    with splicing(program, live=True) as session:
        armed_from = None
        text = program.text()

        def note():
            nonlocal armed_from
            running()
            if armed_from is None and program.text() != text:
                armed_from = running.rounds

        program.target.mem.after_write = note
        (hook,) = session.count(name)
        assert hook.arming == "live"
        assert session.hits([hook]) == [running.rounds - armed_from + 1]
        rounds, (hits,) = running.rounds, session.hits([hook])
        session.take_out(name)
        assert session.hits([hook]) == [hits + running.rounds - rounds - 1]


def test_what_needs_a_stop_is_made_in_one_and_says_so(program):
    with splicing(program, live=True) as session:
        hooks = session.count("sum_to", program.instructions("sum_to"))
        assert program.target.stops == 1
        assert all(hook.armed and hook.arming.startswith("stop: ") for hook in hooks)
        assert session.splicing.live.notes()
        assert program.call("sum_to", NUMBER) == 10
        assert session.hits(hooks) == [1, 1, 1, 4, 4, 4, 1]


def test_where_a_thread_blocks_traps_none_is_written(program):
    target, seen = program.target, []
    target.new_thread().blocked.add(5)
    with splicing(program, live=True) as session:
        target.mem.after_write = lambda: seen.append(target.mem.read(program[SEVERAL], 1))
        (one,), (several,) = session.count(ONE_BYTE), session.count(SEVERAL)
        assert one.arming == "live"
        assert "has SIGTRAP blocked" in several.arming
        assert seen
        assert b"\xcc" not in seen


@pytest.mark.parametrize("failing", [1, 2, 3, 4])
def test_a_write_that_fails_in_the_middle_is_taken_back(program, running, failing):
    """The first makes the page a copy; then come the ``int3``, what follows it, and the true first byte."""
    left = failing

    def fail():
        nonlocal left
        running()
        left -= 1
        if not left:
            raise OSError("the test wants this write to fail")

    with splicing(program, live=True) as session:
        program.target.mem.after_write = fail
        with pytest.raises(OSError, match="the test wants"):
            session.count(SEVERAL)
        assert program.is_pristine()
        assert not session.module.claims.written
        (hook,) = session.count(SEVERAL)
        assert hook.arming == "live"
        (before,) = session.hits([hook])
        program.call(SEVERAL, NUMBER)
        assert session.hits([hook]) == [before + 1]


def test_memory_that_a_thread_is_in_stays_until_it_has_left(program):
    target = program.target
    thread, expected = target.new_thread(), program.call("twice", NUMBER)
    with splicing(program, live=True) as session:
        (hook,) = session.count("twice")
        target.begin(program["twice"], NUMBER, thread=thread)
        while program.low <= thread.actual.rip < program.high:
            target.step(thread)
        session.splicing.end_live()
        assert program.is_pristine()
        assert any("anyprobe" in mapping.path for mapping in target.mappings())
        assert target.finish(thread) == expected
        assert session.hits([hook]) == [1]
        session.splicing.end_live()
        assert not any("anyprobe" in mapping.path for mapping in target.mappings())
