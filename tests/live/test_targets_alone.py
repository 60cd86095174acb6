"""The target programs find nothing wrong with themselves when nobody probes them."""

import pytest

from support.driver import MissingTool, started
from support.situations import SITUATIONS, Situation


@pytest.mark.parametrize("situation", SITUATIONS, ids=lambda s: s.name)
def test_unprobed(situation: Situation) -> None:
    """A round or two end well and are counted."""
    try:
        executable = situation.build()
    except MissingTool as tool:
        pytest.skip(f"no {tool}")
    with started(executable, *situation.arguments) as target:
        counts = target.go(4)
        for function in situation.functions:
            assert counts.calls.get(function, 1) > 0
        target.run_freely()
        target.halt()
        target.finish()
