"""What is wanted, in which objects it has been looked for, and what is left to look for."""

from collections import Counter
from dataclasses import dataclass

import pytest

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.function.probe import Probe
from anyprobe.probes.providers.function.wanted.desired import Desired, DesiredState, Policy
from anyprobe.probes.specs.spec import parse

LOADER, LIBC, PLUGIN = "loader", "libc", "plugin"


@dataclass(eq=False)
class Loaded:
    """A library, by its path."""

    path: str


def wanted(policy, *seen, is_open=True):
    return Desired(Probe(parse("libc:f")), policy, set(seen), is_open)


def lacking(state, modules):
    return [(each, fresh) for each, fresh in state.lacking(modules)]


def test_each_object_is_looked_at_once():
    desired = wanted(Policy.FOLLOW, LOADER)
    state = DesiredState([desired])
    assert lacking(state, [LOADER, LIBC]) == [(desired, {LIBC})]
    desired.seen.add(LIBC)
    assert lacking(state, [LOADER, LIBC]) == []
    assert lacking(state, [LOADER, LIBC, PLUGIN]) == [(desired, {PLUGIN})]


def test_an_object_that_was_unloaded_is_looked_at_again_when_it_comes_back():
    desired = wanted(Policy.FOLLOW, LIBC, PLUGIN)
    state = DesiredState([desired])
    assert lacking(state, [LIBC]) == []
    assert lacking(state, [LIBC, PLUGIN]) == [(desired, {PLUGIN})]


def test_what_is_complete_is_looked_for_no_more():
    assert lacking(DesiredState([wanted(Policy.PRESENT, is_open=False)]), [LIBC]) == []


def test_where_a_library_comes_again_is_looked_even_if_others_are_not_meant():
    plugin, fresh, other, libc = map(Loaded, ("plugin.so", "plugin.so (deleted)", "other.so", "libc.so.6"))
    desired = wanted(Policy.PRESENT, libc, plugin)
    desired.returning = Counter(["plugin.so"])
    state = DesiredState([desired])
    assert state.follows
    assert not state.awaits_others
    assert lacking(state, [libc, plugin, other]) == []
    assert state.gone == set()
    assert lacking(state, [libc, other]) == []
    assert state.gone == {"plugin.so"}
    assert lacking(state, [libc, other, fresh]) == [(desired, {fresh})]


def test_what_was_wanted_of_a_program_at_its_start_is_settled_by_that():
    held, following = wanted(Policy.PRESENT), wanted(Policy.FOLLOW)
    state = DesiredState([held, following])
    state.settle()
    assert state.wanted == [following]
    assert state.follows
    assert not DesiredState([held]).follows


@pytest.mark.parametrize(("policy", "expected"), [(Policy.PRESENT, False), (Policy.FOLLOW, True)])
def test_a_spec_without_a_meaning_yet_is_a_mistake_unless_it_follows(policy, expected):
    desired = wanted(policy)
    assert desired.may_mean_nothing is expected
    desired.probe.refused.append(("libc:f", Refusal(Reason.NO_EXIT, 0, "it never returns")))
    assert desired.may_mean_nothing


def test_what_is_refused_is_said_once():
    desired, part = wanted(Policy.FOLLOW), Probe(parse("libc:f"))
    part.refused = [("libc:f", Refusal(Reason.NO_EXIT, 0, "it never returns"))]
    desired.add(part)
    desired.add(part)
    assert len(desired.probe.refused) == 1
