"""Every instruction counted by us, by a debugger that goes step by step, and by Valgrind: the same numbers."""

import pytest

from support import callgrind
from support.independent import differences, run_counted, single_stepped, text_of

ENVIRONMENT = {"LC_ALL": "C"}
FREESTANDING = ("-nostdlib", "-static", "-fno-builtin", "-fno-stack-protector")


@pytest.fixture(params=["-O2", "-O1", "-Os"])
def every_kind(request, compiled):
    return compiled("every_kind.c", *FREESTANDING, request.param)


def of_ours(program, directory):
    _, snapshot, modules = run_counted([program], ["a.out:*:insn"], directory, environment={})
    (module,) = modules.values()
    assert snapshot.nmissed == 0
    assert len(module.hits) > 300
    assert len(module.refused) < len(module.hits) // 20
    return module


def unexplained(module, theirs, last=""):
    """Return the differences but for what a stored address leads to: such a place may be a table as well.

    Callgrind counts a block at its end: that in which the ``last`` function leaves the program is short of one.
    """
    return {
        at: (function, ours, other)
        for at, (function, ours, other) in differences(module, theirs).items()
        if ours is not None and not (function == last and ours == other + 1)
    }


def test_as_many_as_single_steps(every_kind, tmp_path):
    """Loops, recursion, jump tables, ``rep``, ``loop``, tail calls, setjmp: all instructions of a whole program."""
    status, stepped = single_stepped(every_kind, *text_of(every_kind), tmp_path)
    module = of_ours(every_kind, tmp_path)
    assert status == 49
    assert sum(stepped.values()) > 20_000
    assert not unexplained(module, stepped)


def test_as_many_as_callgrind(every_kind, tmp_path):
    """The same program, counted by Valgrind's translation of it."""
    _, theirs = callgrind.count_instructions([every_kind], tmp_path, environment={})
    assert not unexplained(of_ours(every_kind, tmp_path), theirs[str(every_kind)], last="call_kernel")


def test_a_program_without_its_libraries(tmp_path):
    """sha256sum: all instructions of the executable, stripped; all of them run as often as Valgrind says."""
    given = tmp_path / "given"
    given.write_bytes(bytes(range(256)) * 40)
    expected, theirs = callgrind.count_instructions(["sha256sum"], tmp_path, given=given, environment=ENVIRONMENT)
    output, snapshot, modules = run_counted(
        ["sha256sum"], ["a.out:*:insn"], tmp_path, given=given, environment=ENVIRONMENT
    )
    (module,) = modules.values()
    assert output == expected
    differing = unexplained(module, theirs[module.path])
    assert {at: each for at, each in differing.items() if not module.is_outside_of_text(at)} == {}
    assert sum(count > 0 for count in module.hits.values()) > 3000
    assert snapshot.hits > 400_000
