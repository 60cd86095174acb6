"""Which processes have probes of a tree's sessions, while others are about to have them."""

from types import SimpleNamespace

import pytest

from anyprobe.probes.following import followed
from anyprobe.probes.following.followed import Followed

PID, FIRST, LATER = 42, 7, 8


def session(inode):
    return SimpleNamespace(splicing=SimpleNamespace(holdings=SimpleNamespace(inodes=lambda: frozenset({inode}))))


@pytest.fixture
def tree():
    made = object.__new__(Followed)
    made._coming, made.sessions = [], (session(FIRST),)
    return made


def test_one_that_is_probed_while_all_are_looked_at_is_not_overlooked(tree, monkeypatch):
    """It executes another program: the old probes are gone, and the memory of the new ones was not known yet."""
    looks = []

    def looked(inodes):
        looks.append(inodes)
        if len(looks) == 1:
            tree.sessions = (*tree.sessions, session(LATER))
        return [PID] if LATER in inodes else []

    monkeypatch.setattr(followed, "processes_with_splices", looked)
    assert tree.remaining() == [PID]
    assert looks == [{FIRST}, {FIRST, LATER}]


@pytest.mark.parametrize("ends", [True, False])
def test_one_that_is_about_to_be_probed_remains(tree, monkeypatch, ends):
    def looked(inodes):
        if ends:
            tree._coming.clear()
        else:
            tree._coming.append(PID)
        return []

    tree._coming += [PID] * ends
    monkeypatch.setattr(followed, "processes_with_splices", looked)
    assert tree.remaining() == [PID]
