"""Plans that are only shown: whatever ends one, what armed probes depend on stays protected."""

import pytest

import anyprobe
from anyprobe.splice.plan import Planner
from live.test_any_order import ASKED, FUNCTIONS, Toggled, target, times

__all__ = ["target", "times"]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_interrupted(target, times, monkeypatch, function, when):
    """Ctrl-C meets a plan before it has begun or when all of it is there; then everything else is probed as well."""

    def interrupted(planner, *arguments):
        if when == "after":
            plan(planner, *arguments)
        raise KeyboardInterrupt

    plan = Planner.plan
    with anyprobe.attach(target.pid) as session:
        toggled = Toggled(session, target, times)
        toggled.toggle([(function, "insn")])
        module = next(module for module in session.engine.modules if module.claims.written)
        with module.claims.trial() as claimed:
            pass
        with monkeypatch.context() as patched:
            patched.setattr(Planner, "plan", interrupted)
            for kind in ("insn", "block", "entry"):
                with pytest.raises(KeyboardInterrupt):
                    session.explain(f"pid:a.out:{function}:{kind}")
        assert module.claims == claimed
        session.explain(f"pid:a.out:{function}:insn")
        assert module.claims == claimed
        toggled.toggle([one for one in ASKED if one != (function, "insn")])
        with toggled.compared(toggled.armed()):
            target.go(2)
