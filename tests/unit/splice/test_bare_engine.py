"""The engine where there is no process: no ptrace, no memfd, no thread slots, no signals."""

import pytest

from anyprobe.core.refusal import Reason
from anyprobe.journal.records import RecordKind, read_journal
from anyprobe.probes.providers.function.reading import BankValues
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.edits import Edit
from anyprobe.splice.plan.splices import Want, WantKind
from anyprobe.splice.regions.banks import Hook
from support.simulated.bare import BareTarget
from support.simulated.bare_engine import bare_engine


class Spliced:
    """The usual functions in a bare target; the emulator that runs them sees nothing but the same memory."""

    def __init__(self, program):
        self.program, self.target = program, BareTarget()
        self.target.mem = program.target.mem
        self.engine, self.holdings = bare_engine(self.target)
        self.module = program.new_module()
        self.engine.add_module(self.module)

    def edit(self, name):
        code = self.module.code.function_at(self.program.starts[name])
        return Edit(self.module, self.module.state_of(code))

    def count(self, name):
        edit, hook = self.edit(name), Hook(ActionKind.COUNT)
        edit.added.append(Want(edit.state.code.entry, WantKind.ENTRY, tag=hook))
        self.engine.change([edit])
        return hook

    def take_out(self, name):
        edit = self.edit(name)
        edit.removed += edit.state.wants
        self.engine.change([edit])

    def listed(self):
        journal = self.holdings.arenas[0].journal
        found = read_journal(self.target.mem, journal.address, journal.size)
        return [record.address for record in found.of(RecordKind.SPLICE)]


@pytest.fixture
def spliced(program):
    return Spliced(program)


def hits(hook):
    return BankValues().hits(hook)


def test_what_is_planned_emitted_and_armed_counts_and_comes_out_again(spliced):
    program, before = spliced.program, spliced.program.text()
    hook = spliced.count("sum_to")
    assert (hook.armed, hook.refusal) == (True, None)
    assert program.text() != before
    assert spliced.listed() == [program["sum_to"]]
    assert [program.call("sum_to", 4) for _ in range(3)] == [10, 10, 10]
    assert hits(hook) == 3
    spliced.take_out("sum_to")
    assert program.text() == before
    assert spliced.listed() == []
    assert program.call("sum_to", 4) == 10
    assert hits(hook) == 3


def test_a_task_that_will_come_back_into_the_bytes_leaves_its_function_as_it_is(spliced):
    program, before = spliced.program, spliced.program.text()
    (second, *_) = [at for at in program.instructions("sum_to") if at != program.starts["sum_to"]]
    spliced.target.add_task(program["fib"], returns=[second + program["sum_to"] - program.starts["sum_to"]])
    refused = spliced.count("sum_to")
    assert refused.refusal.reason is Reason.SIGNAL_CONTEXT_IN_JTPR
    assert (program.text(), spliced.listed()) == (before, [])
    other = spliced.count("twice")
    assert program.call("twice", 6) == 12
    assert (other.armed, hits(other)) == (True, 1)
