"""Contexts that signal handlers have left on stacks that no thread is on: what they come back to stays."""

from pathlib import Path

import anyprobe
from anyprobe.probes.providers.function.outside import leftover
from support.results import refusals


def test_a_context_between_the_instructions_to_be_moved(run_target):
    target = run_target("preempted.c")
    target.go(1)
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:worked")
        assert refusals(session.refused) == {"worked": "signal-context-in-jtpr"}
    target.go(2)
    target.finish()


def test_a_context_in_a_patch(run_target):
    """The memory stays until it has come back."""
    target = run_target("preempted.c")
    with anyprobe.attach(target.pid) as session:
        session.count("a.out:worked")
        counts = target.go(1)
        assert session.snapshot().sites[0].hits == counts.calls["worked"]
    assert any("is not quiet yet" in text for text in session.warnings)
    assert "memfd:anyprobe" in Path(f"/proc/{target.pid}/maps").read_text()
    target.go(2)
    leftover.remove(target.pid)
    target.go(2)
    target.finish()
