"""The options of sessions: listed once, refused before anything is done."""

from dataclasses import FrozenInstanceError, fields
from typing import get_type_hints

import pytest

import anyprobe
from anyprobe.core.errors import UsageError
from anyprobe.probes import opening
from anyprobe.probes.options import DEFAULT, OptionNames, SessionOptions, chosen


def test_keyword_arguments_are_the_fields():
    assert get_type_hints(OptionNames) == get_type_hints(SessionOptions)


def test_changes_take_precedence_and_the_rest_stays():
    options = SessionOptions(live=True, strategy="jump")
    assert chosen(options, {"strategy": "punned"}) == SessionOptions(live=True, strategy="punned")
    assert chosen(None, {}) == DEFAULT == SessionOptions()


def test_options_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        DEFAULT.live = True


@pytest.mark.parametrize("wrong", [{"strategy": "magic"}, {"returns": "sometimes"}, {"pending": "later"}])
@pytest.mark.parametrize("opened", [lambda **each: anyprobe.attach(1, **each), lambda **each: anyprobe.run([], **each)])
def test_what_means_nothing_is_refused_before_a_target_is_looked_at(wrong, opened, monkeypatch):
    monkeypatch.setattr(opening.Process, "open", lambda pid: pytest.fail(f"process {pid} was opened"))
    with pytest.raises(UsageError, match="one of"):
        opened(**wrong)


def test_an_option_that_does_not_exist_is_a_wrong_keyword():
    assert len(fields(SessionOptions)) == 15
    with pytest.raises(TypeError, match="lively"):
        anyprobe.attach(1, lively=True)
