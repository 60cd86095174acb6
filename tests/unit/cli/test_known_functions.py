"""What is shown of a function whose parameters and result debug information describes."""

from anyprobe.cli.handlers.expressions import parse_all
from anyprobe.cli.handlers.knownfunctions import Knowledge, received
from anyprobe.handlers.types.annotations import u32, u64
from anyprobe.handlers.types.calling_convention import Located, Piece, Prototype

REGISTER = (Piece("rdi", 0, 64),)


def of_rust(parameters, result, places, place):
    return Knowledge(Prototype("f", parameters, result, located=Located("Rust", places, place)))


def test_a_parameter_that_the_compiler_has_moved_is_not_shown():
    known = of_rust((("text", u64), ("n", u64), ("last", u32)), None, (REGISTER, None, REGISTER), ())
    found = received(known, (), None)
    assert (found.names, found.labels, found.fields) == (("text", "last"), ("text", "n", "last"), (0, None, 1))
    # whoever asks for it is told
    assert "n" in received(known, parse_all("--print", "n"), 0).names


def test_a_result_is_shown_wherever_it_is():
    """One in memory of the caller, too: the entry keeps where."""
    for place in (None, REGISTER):
        known = of_rust((), u64, (), place)
        assert (known.has_result, known.hides_result) == (True, False)
        assert known.prototype.is_result_in_memory == (place is None)
        assert known.reads_result(())
    nothing = of_rust((), None, (), None)
    assert not nothing.has_result
    assert not nothing.prototype.is_result_in_memory
    assert Knowledge().has_result
