"""Names in double quotes, and back."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyprobe.core.quoting import quoted, shown_module, unquoted

NAMES = {
    "plain": '"plain"',
    'a "b" \\c': '"a \\"b\\" \\\\c"',
    "new\nline\t": '"new\\nline\\t"',
    "caf\udce9": '"caf\\xe9"',
    "café": '"café"',
    "\u200b": '"\\xe2\\x80\\x8b"',
}


@pytest.mark.parametrize("name", NAMES)
def test_names_are_quoted(name):
    assert quoted(name) == NAMES[name]
    assert unquoted(NAMES[name][1:-1]) == name


@given(st.binary(min_size=1).filter(lambda raw: b"\0" not in raw))
def test_any_name_comes_back(raw):
    name = raw.decode("utf-8", "surrogateescape")
    shown = quoted(name)
    assert shown.isprintable()
    assert unquoted(shown[1:-1]) == name


@pytest.mark.parametrize("name", ["libc.so.6", "libstdc++.so.6", "[vdso]", "a.out", "ld-linux-x86-64.so.2", "café"])
def test_modules_that_are_read_as_they_stand(name):
    assert shown_module(name) == name


@pytest.mark.parametrize(
    "name", ["my prog", "a:b", "star*", "x[1]", "50%", "hm!", "pid", "pid12", "-", "kprobe", "a\n"]
)
def test_modules_that_are_not(name):
    assert shown_module(name) == quoted(name)
