"""Which other processes are asked about when a process is stopped."""

import pytest

from anyprobe.target.process import relatives
from anyprobe.target.process.relatives import Relatives

PID, OTHER, LATER = 100, 200, 300


@pytest.fixture
def machine(monkeypatch):
    """Return the processes that there are, and those about which the kernel was asked: none shares anything."""
    there, asked = {PID, OTHER}, []
    monkeypatch.setattr(relatives.time, "monotonic", lambda: 0.0)
    monkeypatch.setattr(relatives.procfs, "read_processes", lambda: list(there))
    monkeypatch.setattr(relatives.procfs, "read_last_pid", lambda: max(there))
    monkeypatch.setattr(relatives.gateway, "kcmp_vm", lambda _, pid: asked.append(pid))
    return there, asked


def test_every_process_is_asked_about_once(machine):
    there, asked = machine
    found = Relatives(PID)
    assert found.find() == found.find() == []
    assert asked == [OTHER]
    there.add(LATER)
    found.find()
    assert asked == [OTHER, LATER]


def test_of_a_new_program_only_later_processes_are_asked_about(machine):
    there, asked = machine
    found = Relatives(PID)
    found.begin_alone()
    found.find()
    assert asked == []
    there.add(LATER)
    found.find()
    assert asked == [LATER]
