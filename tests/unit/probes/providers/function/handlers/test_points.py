"""Where a handler runs decides what it sees."""

import pytest

from anyprobe.core.code import InputKind
from anyprobe.core.errors import HandlerError
from anyprobe.handlers.types.annotations import i64
from anyprobe.probes.providers.function.handlers.conditions import WaitCondition
from anyprobe.probes.providers.function.handlers.handling import Handling
from anyprobe.probes.providers.function.handlers.points import HandlerAt, Point
from anyprobe.probes.specs.spec import parsed


class Session:
    """A session in which nothing is placed."""

    unsafe = False

    def resolve(self, spec):
        raise AssertionError(spec)


def on_parameters(size: i64):
    return size > 0


def on_result(ctx):
    return ctx.retval > 0


def compiled(function, point):
    code, _ = Handling(Session()).compiled(HandlerAt(function=function, point=point))
    return {each.kind for each in code.inputs}


def test_parameters_are_seen_at_entries():
    assert InputKind.PARAMETER in compiled(on_parameters, Point.ENTRY)


@pytest.mark.parametrize("point", [point for point in Point if not point.has_parameters])
def test_parameters_are_gone_elsewhere(point):
    with pytest.raises(HandlerError):
        compiled(on_parameters, point)


def test_results_are_seen_at_returns_only():
    assert compiled(on_result, Point.RETURN)
    for point in (Point.ENTRY, Point.BEFORE, Point.AFTER):
        with pytest.raises(HandlerError):
            compiled(on_result, point)


def test_the_variant_for_tail_calls_has_no_result_and_is_a_return():
    at = HandlerAt(function=on_result, point=Point.RETURN, specs=parsed(["a.out:f"]))
    assert at.at_tail() == HandlerAt(function=on_result, point=Point.TAIL, specs=parsed(["a.out:f"]))
    assert [point for point in Point if point.is_return] == [Point.RETURN, Point.TAIL]


@pytest.mark.parametrize(
    ("specs", "point"),
    [
        (("a.out:f",), Point.ENTRY),
        (("a.out:f:entry", "a.out:g"), Point.ENTRY),
        (("a.out:f%return",), Point.RETURN),
        (("a.out:f", "a.out:f%return"), Point.BEFORE),
        (("a.out:f+0x4",), Point.BEFORE),
    ],
)
def test_a_condition_sees_what_all_its_sites_have(specs, point):
    asked = []

    class Compiles:
        def compiled(self, at):
            asked.append(at)
            raise HandlerError("enough")

    with pytest.raises(HandlerError, match="enough"):
        WaitCondition(Compiles(), parsed(specs), on_result).check()
    assert [(at.point, at.specs) for at in asked] == [(point, parsed(specs))]
