"""Stacks with Python's functions in place of the interpreter that executes them."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from anyprobe.data.layouts import stacks
from anyprobe.probes.providers.function.handlers.python_stacks import UNKNOWN, PythonStacks
from anyprobe.probes.stacks.interpreter import Function

LOOP = range(0x1000, 0x2000)
OUTSIDE, INSIDE = 0x500, 0x1800
ADDRESS = st.integers(16, (1 << 47) - 1)


def frame(number, *, last=False):
    return stacks.mark(number, 8 * number, 16 * number) | (stacks.LAST if last else 0)


def known(**fields):
    session = SimpleNamespace(process=SimpleNamespace(exited=lambda: False))
    found = PythonStacks(session, lambda words: None)
    found._loop = LOOP
    names = {1: Function("one", "a/b/c.py"), 2: Function("two", "c.py"), 3: Function("", "<shim>")}
    found._interpreter = SimpleNamespace(marked=lambda each: names.get(stacks.code_of(each)), **fields)
    return found


def test_each_activation_has_its_functions_and_code_in_c_stays():
    frames = [frame(1), frame(3), frame(2, last=True), frame(2, last=True)]
    assert known().places([OUTSIDE, INSIDE, OUTSIDE, INSIDE + 8, OUTSIDE, *frames]) == [
        OUTSIDE, "b/c.py:one", "c.py:two", OUTSIDE, "c.py:two", OUTSIDE,
    ]  # fmt: skip


def test_an_activation_that_is_not_told_of_stays_and_one_beyond_the_stack_is_added():
    assert known().places([OUTSIDE, INSIDE, INSIDE]) == [OUTSIDE, INSIDE, INSIDE]
    assert known().places([OUTSIDE, frame(1, last=True), frame(2)]) == [OUTSIDE, "b/c.py:one", "c.py:two"]


def test_a_function_that_is_gone_is_not_known():
    assert known().places([INSIDE, frame(9, last=True)]) == [UNKNOWN]


@given(ADDRESS, ADDRESS, ADDRESS)
def test_a_mark_keeps_the_code_object(code, file, name):
    found = stacks.mark(code, file, name)
    assert stacks.code_of(found) == stacks.code_of(found | stacks.LAST) == code
    assert found & stacks.PYTHON
    assert not found & stacks.LAST
    assert found < 1 << 64
