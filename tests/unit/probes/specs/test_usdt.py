"""Specs of USDT markers: anyprobe's form, bpftrace's and perf's, and what they match."""

import pytest

from anyprobe.core.errors import SpecError
from anyprobe.probes.providers.usdt.sites import is_named
from anyprobe.probes.specs.parts import Part
from anyprobe.probes.specs.spec import check_functions, parse

FORMS = {
    # module, provider, name
    "usdt:*": ("", "", "*"),
    "usdt:query__start": ("", "", "query__start"),
    "usdt:postgresql:query__start": ("", "postgresql", "query__start"),
    "usdt:postgresql:query-start": ("", "postgresql", "query-start"),
    "usdt:*:gc*": ("", "*", "gc*"),
    "usdt:postgresql:": ("", "postgresql", ""),
    "usdt:libjvm/hotspot:gc__begin": ("libjvm", "hotspot", "gc__begin"),
    "usdt:libjvm:hotspot:gc__begin": ("libjvm", "hotspot", "gc__begin"),
    "usdt::hotspot:gc__begin": ("", "hotspot", "gc__begin"),
    "usdt:/usr/bin/python3.11:python:line": ("/usr/bin/python3.11", "python", "line"),
    "usdt:/usr/bin/python3.11:line": ("/usr/bin/python3.11", "", "line"),
    "usdt:./a.out:app:start": ("./a.out", "app", "start"),
    "sdt_libc:setjmp": ("", "libc", "setjmp"),
    "%sdt_libstdcxx:throw": ("", "libstdcxx", "throw"),
    "sdt_*:*": ("", "*", "*"),
    'usdt:"odd module":"odd provider":"a:name"': ("odd module", "odd provider", "a:name"),
    'usdt:app:"a*b"': ("", "app", "a*b"),
}


@pytest.mark.parametrize(("text", "parts"), FORMS.items())
def test_each_form_is_read(text, parts):
    spec = parse(text)
    assert (spec.provider, spec.name) == ("usdt", "usdt")
    assert (spec.module.text, spec.group.text, spec.function.text) == parts
    assert spec.within is None
    assert text[spec.function.position :].startswith(parts[2])


def test_a_function_can_be_named_in_dtraces_order():
    spec = parse("usdt:postgres/postgresql:exec_simple_query:query-start")
    assert (spec.module.text, spec.group.text, spec.within.text) == ("postgres", "postgresql", "exec_simple_query")
    assert spec.function.text == "query-start"


@pytest.mark.parametrize("text", ["sdt_parser", "libsdt_x:f:entry", "a.out:usdt", "usdts:f", '"usdt":f'])
def test_names_that_only_look_like_it_are_functions(text):
    assert parse(text).provider == "pid"


def test_markers_are_not_timed():
    with pytest.raises(SpecError, match="a marker is one place"):
        check_functions([parse("usdt:postgresql:query__start")])


@pytest.mark.parametrize(
    ("wanted", "name", "matches"),
    [
        ("query__start", "query__start", True),
        ("query-start", "query__start", True),
        ("query_start", "query__start", False),
        ("query*", "query__start", True),
        ("*-start", "query__start", True),
        ("q?ery-*", "query__start", True),
        ("start", "query__start", False),
        ("", "anything", True),
    ],
)
def test_names_match_with_dashes_and_patterns(wanted, name, matches):
    assert is_named(Part(wanted, 0), name) is matches


def test_a_name_in_quotes_is_no_pattern():
    assert is_named(Part("a*", 0, quoted=True), "a*")
    assert not is_named(Part("a*", 0, quoted=True), "abc")
