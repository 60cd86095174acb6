"""A session's end: what is removed, and where its splices are looked for."""

from contextlib import suppress
from types import SimpleNamespace

import pytest

from anyprobe.core.errors import TargetError, TargetExited
from anyprobe.probes.providers.function import removal
from anyprobe.splice.apply.recovery.recovery import Removal

STARTED = 4711
"""When the controller started."""


@pytest.fixture
def ended(monkeypatch):
    """Return a function that ends a session, and returns since when other processes may have its splices."""

    def end(outcome):
        def remove(*_):
            if isinstance(outcome, Exception):
                raise outcome
            return Removal(1, outcome, (), (), 5)

        def everywhere(inodes, sessions, patches, *, but, since):
            looked.append((inodes, but, since))
            return [], []

        looked = []
        monkeypatch.setattr(removal, "remove", remove)
        monkeypatch.setattr(removal, "remove_everywhere", everywhere)
        monkeypatch.setattr(removal, "_forget_lost", lambda *_: None)
        owner = SimpleNamespace(session=b"s", start_time=STARTED)
        splicing = SimpleNamespace(
            holdings=SimpleNamespace(owner=owner, is_nowhere=False, fresh_since=0, inodes=lambda: frozenset([7])),
            upkeep=SimpleNamespace(saved_copies=()),
            access=SimpleNamespace(pause_us={"disarm": 0}),
            end_live=lambda: None,
            let_go=lambda: None,
        )
        with suppress(TargetError):
            removal.detach(SimpleNamespace(pid=1), splicing)
        ((inodes, but, since),) = looked
        assert (inodes, but) == ({7}, 1)
        return since

    return end


def test_only_processes_younger_than_the_controller_can_have_a_session_s_splices(ended):
    assert ended(3) == STARTED


@pytest.mark.parametrize("outcome", [0, TargetExited(1), TargetError("it would not stop")])
def test_where_nothing_was_removed_from_the_target_older_ones_may_share_its_memory(ended, outcome):
    assert ended(outcome) == 0
