"""What is wanted alone and has room for a jump is planned without claims of its own, as it would be with them."""

from pathlib import Path

import pytest

from anyprobe.splice.plan.context import PlanContext
from anyprobe.splice.plan.planner import Attempt, Planner
from anyprobe.splice.plan.splices import Strategy, Want, WantKind
from support.kept_plans import Planned, shape

STEP = 31


@pytest.mark.parametrize("faults", [False, True], ids=["", "faults handled"])
@pytest.mark.parametrize("name", ["bash", "perl"])
def test_plans_are_those_that_are_made_with_claims_of_their_own(monkeypatch, name, faults):
    path = Path("/usr/bin", name)
    if not path.exists():
        pytest.skip(f"there is no {name} here")
    program, plainly, plain = Planned(path.resolve(), faults=faults), Attempt.plainly, []

    def noted(attempt, want):
        found = plainly(attempt, want)
        plain.append(found)
        return found

    for function in program.functions(STEP):
        places = [(function.entry, WantKind.ENTRY)]
        places += [(insn.address, WantKind.OFFSET) for insn in function.insns[1::7][:3]]
        for address, kind in places:
            want = Want(address, kind)
            context = PlanContext(
                program.code, program.claims, program.claims.places.reachable, faults_handled=faults, bias=program.bias
            )
            monkeypatch.setattr(Attempt, "plainly", lambda *_: False)
            expected = Planner(context).plan(function, [want])
            monkeypatch.setattr(Attempt, "plainly", noted)
            made = Planner(context).plan(function, [want])
            assert (shape(made, [want])[:2], made.verdicts) == (shape(expected, [want])[:2], expected.verdicts)
            if not plain[-1]:
                assert made.scope == expected.scope
            else:
                (splice,) = made.splices
                assert (splice.strategy, splice.head, splice.start) == (Strategy.JUMP, address, address)
            if kind is WantKind.ENTRY:  # what comes after it has to regard it
                for splice in made.splices:
                    program.claims.claim(splice)
    assert plain.count(True) > len(plain) // 3
    assert False in plain
