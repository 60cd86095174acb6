"""The grammar, as a table of what is read and a table of what is not, each with the caret's place."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anyprobe.core.errors import SpecError, UsageError
from anyprobe.probes.specs.parts import Part, in_full, module_part
from anyprobe.probes.specs.spec import check_functions, parse, parsed

# text, module, function, name, offset
READ = [
    # the canonical form
    ("pid:libc:malloc:entry", "libc", "malloc", "entry", None),
    ("pid:libc.so.6:malloc:return", "libc.so.6", "malloc", "return", None),
    ("pid1234:libc:malloc:entry", "libc", "malloc", "entry", None),
    ("pid:libc:malloc:1c", "libc", "malloc", "offset", 0x1C),
    ("pid:libc:malloc:0x1c", "libc", "malloc", "offset", 0x1C),
    ("pid:libc:malloc:0", "libc", "malloc", "offset", 0),
    ("pid:libc:-:0x1234", "libc", "-", "offset", 0x1234),
    ("pid:a.out:main:entry", "a.out", "main", "entry", None),
    ("pid::malloc:entry", "", "malloc", "entry", None),
    ("pid:libc::entry", "libc", "", "entry", None),
    ("pid:libc::return", "libc", "", "return", None),
    ("pid:::entry", "", "", "entry", None),
    ("pid:libc:malloc:", "libc", "malloc", "entry", None),
    (":libc:malloc:entry", "libc", "malloc", "entry", None),
    ("pid:lib*:*alloc:entry", "lib*", "*alloc", "entry", None),
    ("pid:lib[cm]:s[!i]n?:return", "lib[cm]", "s[!i]n?", "return", None),
    ("pid:memfd:plugin:work:entry", "memfd:plugin", "work", "entry", None),
    ("memfd:plug*:add", "memfd:plug*", "add", "entry", None),
    ("memfd:plugin:work%return", "memfd:plugin", "work", "return", None),
    ("/memfd:plugin:ns::f(int)", "/memfd:plugin", "ns::f(int)", "entry", None),
    ("memfd:main:return", "memfd", "main", "return", None),
    ("memfd:main:0x1c", "memfd", "main", "offset", 0x1C),
    ("memfd:main", "memfd", "main", "entry", None),
    # a glob leaves one of two brackets to its stars
    ("*Heap::Collect(*", "", "*Heap::Collect(*", "entry", None),
    ("node:*Heap::Collect(int, *%return", "node", "*Heap::Collect(int, *", "return", None),
    ("pid:node:v8::Map<*:entry", "node", "v8::Map<*", "entry", None),
    ("libx:*{lambda(*", "libx", "*{lambda(*", "entry", None),
    # the short forms
    ("malloc", "", "malloc", "entry", None),
    ("  malloc ", "", "malloc", "entry", None),
    ("libc:malloc", "libc", "malloc", "entry", None),
    ("libc:*", "libc", "*", "entry", None),
    ("libc:malloc:return", "libc", "malloc", "return", None),
    ("libc:malloc:0x1c", "libc", "malloc", "offset", 0x1C),
    ("malloc%return", "", "malloc", "return", None),
    ("malloc%entry", "", "malloc", "entry", None),
    ("libc:malloc%return", "libc", "malloc", "return", None),
    ("pid:libc:malloc:insn", "libc", "malloc", "insn", None),
    ("libc:malloc%block", "libc", "malloc", "block", None),
    ("pid:libc:*:call", "libc", "*", "call", None),
    ("malloc+0x1c", "", "malloc", "offset", 0x1C),
    ("libc:malloc+28", "libc", "malloc", "offset", 28),
    ("libc.so.6:memcpy@GLIBC_2.14", "libc.so.6", "memcpy@GLIBC_2.14", "entry", None),
    ("memcpy@@GLIBC_2.14%return", "", "memcpy@@GLIBC_2.14", "return", None),
    ("bare:bare+0x1139", "bare", "bare", "offset", 0x1139),
    # demangled names
    ("ns::f", "", "ns::f", "entry", None),
    ("a.out:ns::f", "a.out", "ns::f", "entry", None),
    ("a.out:ns::f(int, char const*)", "a.out", "ns::f(int, char const*)", "entry", None),
    ("pid:a.out:ns::f(int):return", "a.out", "ns::f(int)", "return", None),
    ("pid:a.out:ns::C::~C():entry", "a.out", "ns::C::~C()", "entry", None),
    ("a.out:std::vector<ns::C, std::allocator<ns::C> >::push_back", "a.out",
     "std::vector<ns::C, std::allocator<ns::C> >::push_back", "entry", None),
    ("a.out:(anonymous namespace)::f(int)", "a.out", "(anonymous namespace)::f(int)", "entry", None),
    ("operator+", "", "operator+", "entry", None),
    ("a.out:ns::operator++", "a.out", "ns::operator++", "entry", None),
    ("a.out:ns::operator<<", "a.out", "ns::operator<<", "entry", None),
    ("a.out:ns::operator()(int)", "a.out", "ns::operator()(int)", "entry", None),
    ("a.out:ns::operator[]", "a.out", "ns::operator[]", "entry", None),
    ("a.out:main.Map[[]*", "a.out", "main.Map[[]*", "entry", None),
    ("a.out:main.Map[[]int]%return", "a.out", "main.Map[[]int]", "return", None),
    ("a.out:ns::f(int) const+0x4", "a.out", "ns::f(int) const", "offset", 4),
    ("a.out:<alloc::vec::Vec<T> as core::ops::Drop>::drop", "a.out",
     "<alloc::vec::Vec<T> as core::ops::Drop>::drop", "entry", None),
    ("a.out:core::fmt::{{closure}}", "a.out", "core::fmt::{{closure}}", "entry", None),
    ("a.out:main.(*T).Method", "a.out", "main.(*T).Method", "entry", None),
    # bpftrace
    ("uprobe:/bin/bash:readline", "/bin/bash", "readline", "entry", None),
    ("uretprobe:/bin/bash:readline", "/bin/bash", "readline", "return", None),
    ("u:libc:malloc", "libc", "malloc", "entry", None),
    ("ur:libc:malloc", "libc", "malloc", "return", None),
    ("uprobe:/bin/bash:readline+4", "/bin/bash", "readline", "offset", 4),
    ("uprobe:/bin/bash:0x1234", "/bin/bash", "-", "offset", 0x1234),
    ('uprobe:/bin/x:"ns::f(int)"', "/bin/x", "ns::f(int)", "entry", None),
    ("uprobe:/bin/x:cpp:ns::f", "/bin/x", "ns::f", "entry", None),
    # kprobe_events and uprobe_events
    ("p:grp/ev libc:malloc", "libc", "malloc", "entry", None),
    ("p:mine malloc+0x10 size=%di", "", "malloc", "offset", 0x10),
    ("p malloc", "", "malloc", "entry", None),
    ("r:grp/ev malloc $retval", "", "malloc", "return", None),
    ("r4:grp/ev malloc", "", "malloc", "return", None),
    ("p:grp/ev malloc%return", "", "malloc", "return", None),
    ("p:grp/ev /lib/libc.so.6:0x1234 %ax", "/lib/libc.so.6", "-", "offset", 0x1234),
]  # fmt: skip


@pytest.mark.parametrize(("text", "module", "function", "name", "offset"), READ)
def test_forms_that_are_read(text, module, function, name, offset):
    spec = parse(text)
    assert (spec.module.text, spec.function.text, spec.name, spec.offset) == (module, function, name, offset)
    for part in (spec.module, spec.function):
        assert text[part.position :].startswith(part.text) or part.text == "-"


def test_the_process_may_be_in_the_provider():
    assert parse("pid1234:libc:malloc:entry").pid == 1234
    assert parse("pid:libc:malloc:entry").pid is None


@pytest.mark.parametrize(("spec", "message"), [(lambda: 0, "a function is no spec"), (5, "5 is no spec")])
def test_what_is_no_text_is_no_spec(spec, message):
    assert parsed(["libc:malloc", parse("libc:free")]) == (parse("libc:malloc"), parse("libc:free"))
    with pytest.raises(UsageError, match=message):
        parsed([spec])


@pytest.mark.parametrize("spec", ["libc:malloc+0x4", "libc:malloc%insn", "pid:libc:malloc:call"])
def test_instructions_are_not_timed(spec):
    check_functions(parsed(["libc:malloc", "libc:malloc%return", "libc:-:0x1000", "uprobe:/lib/libc.so.6:malloc"]))
    with pytest.raises(SpecError, match="functions are timed"):
        check_functions([parse(spec)])


def test_source_lines_are_recognised():
    spec = parse("src/file.c:120")
    assert (spec.module.text, spec.function.text, spec.line) == ("", "src/file.c", 120)
    for text in ("libx:src/file.c:120", "pid:libx:src/file.c:120", "pid42:libx:src/file.c:120"):
        spec = parse(text)
        assert (spec.module.text, spec.function.text, spec.line, spec.name) == ("libx", "src/file.c", 120, "line")
    assert (spec.pid, parse("pid7:file.c:9").pid, parse("pid::file.c:9").line) == (42, 7, 9)
    assert parse("pid:libx:file.c:0x12").offset == 0x12


# text, what the caret line is, part of the message
MALFORMED = [
    ("", "^", "empty"),
    ("   ", "^", "empty"),
    ("libc:", "    ^", "function is missing"),
    ("libc:%return", "     ^", "function is missing"),
    ("+0x10", "^", "function is missing"),
    ("malloc+", "      ^", "an offset is missing"),
    ("libc:malloc+12ab", "            ^^^^", "is not an offset"),
    ("malloc%", "      ^", "a name (entry or return) is missing"),
    ("malloc%retrun", "       ^^^^^^", "no such name"),
    ("libc:malloc%entri", "            ^^^^^", "no such name"),
    ("pid:libc:malloc:retrun", "                ^^^^^^", "no such name"),
    ("pid:libc:malloc:xyz", "                ^^^", "no such name"),
    ("libc:malloc:exit", "            ^^^^", "no such name"),
    ("pid:libc:malloc", "         ^^^^^^", "three of four parts"),
    ("pid:malloc", "    ^^^^^^", "needs four parts"),
    ("pid:ns::f:entry", "          ^^^^^", "three of four parts"),
    ("pid77:malloc", "      ^^^^^^", "needs four parts"),
    ("a:b:c:d:e", "        ^", "more than four parts"),
    ("pid:libc:malloc:entry:x", "                      ^", "more than four parts"),
    ("pdi:libc:malloc:entry", "^^^", "no provider"),
    ("kernel:vmlinux:vfs_read:entry", "^^^^^^", "this is in the kernel"),
    ("kprobe:vfs_read", "^^^^^^", "this is in the kernel"),
    ("tracepoint:syscalls:sys_enter_open", "^^^^^^^^^^", "this is in the kernel"),
    ("syscall::read:entry", "^^^^^^^", "this is in the kernel"),
    ("usdt:", "    ^", "the marker is missing"),
    ("usdt:a:b:c:d", "           ^", "more than usdt:module:provider:name"),
    ("usdt:postgresql:query__start%return", "                            ^", "it has no return"),
    ('usdt:app:"start"+0x10', "                ^^^^^", "neither offset nor return"),
    ("pid:libc:-:entry", "         ^", "'-' stands for offsets"),
    ("pid:libc:-:return", "           ^^^^^^", "'-' has no return"),
    ("pid:libc:-:", "         ^", "'-' stands for offsets"),
    ("pid:libc:-:*", "           ^", "'-' has one instruction at a time"),
    ("pid:libc:-:1?", "           ^^", "'-' has one instruction at a time"),
    ("pid$target:libc:malloc:x*", "                       ^^", "no such name"),
    ("pidgin:libc:malloc:entry", "^^^^^^", "no provider 'pidgin'"),
    ("pid0:libc:malloc:entry", "^^^^", "process 0"),
    ("q*d$target:libc:malloc:entry", "^^^^^^^^^^", "no provider"),
    ("pid:libc:malloc:ffffffffffffffff", "                ^^^^^^^^^^^^^^^^", "larger than any address space"),
    ("libc:mal[oc", "        ^", "never closed"),
    ("a.out:f(int", "       ^", "never closed"),
    ("a.out:v<ns::C", "       ^", "never closed"),
    ("libc:malloc free", "           ^", "a blank within a spec"),
    ("libc :malloc", "    ^", "a blank within a spec"),
    ("libc:mal\x07loc", "        ^", "unprintable"),
    ("file.c:12a", "       ^^^", "a line number"),
    ("file.c:0", "       ^", "a line number"),
    ("uprobe:/bin/bash", "       ^^^^^^^^^", "needs a path and a symbol"),
    ("uprobe::readline", "       ^", "the path is missing"),
    ("uprobe:/bin/bash:readline:x", "                          ^", "a path and a symbol only"),
    ("uretprobe:/bin/bash:readline+4", "                             ^", "a return probe has no offset"),
    ("r:grp/ev malloc+0x10", "                ^^^^", "a return probe has no offset"),
    ("p:gr-p/ev malloc", "  ^^^^^^^", "not an event name"),
    ("p:grp/ev malloc+", "               ^", "an offset is missing"),
]


@pytest.mark.parametrize(("text", "caret", "message"), MALFORMED)
def test_malformed_specs_point_at_the_part(text, caret, message):
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert message in caught.value.message
    assert str(caught.value).splitlines()[2] == "  " + caret
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    ("text", "wanted"), [("malloc%retrun", "return"), ("a:b:etry", "entry"), ("pd:a:b:entry", "pid")]
)
def test_malformed_specs_name_the_nearest(text, wanted):
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert wanted in caught.value.nearest


def test_canonical_form_reads_back():
    for text, *_ in READ:
        spec = parse(text)
        canonical = spec.canonical("libc.so.6", spec.function.text or "malloc")
        again = parse(canonical)
        assert (again.function.text, again.name, again.offset) == (
            spec.function.text or "malloc",
            spec.name,
            spec.offset,
        ), canonical


@given(st.text(alphabet="pid:libcmaloc*+%@<>()[]{}-0x1 /.~:usdtr\t", max_size=30))
def test_any_text_is_a_spec_or_a_spec_error_inside_it(text):
    error = None
    try:
        parse(text)
    except SpecError as caught:
        error = caught
    assert error is None or (0 <= error.position <= len(text) and error.message)


@pytest.mark.parametrize("head", ["pid$target", "p*d$target", "p?d$target", "*", "pid*", "p[hi]d$target"])
def test_dtraces_names_of_the_process_provider(head):
    for module in ("libc*", "") if head.endswith("$target") else ("libc*",):  # *::f is a name in C++
        text = f"{head}:{module}:mall?c:entry"
        spec = parse(text)
        assert (spec.function.text, spec.name, spec.pid, spec.provider) == ("mall?c", "entry", None, "pid")


@pytest.mark.parametrize("name", ["*", "e*", "entr?", "re*", "[er]*", "1?", "0x1*", "[0-4]"])
def test_a_glob_of_names_is_over_entries_returns_and_offsets(name):
    spec = parse(f"pid$target:libc:malloc:{name}")
    assert (spec.name, spec.pattern) == ("any", name)
    with pytest.raises(SpecError, match="functions are timed"):
        check_functions([spec])


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("libc:malloc", "libc:malloc%return"),
        ("libc:malloc%entry", "libc:malloc%return"),
        ("libc:malloc%return", "libc:malloc%return"),
        ("pid:libc:malloc:entry", "pid:libc:malloc:return"),
        ("pid7:libc:malloc:", "pid7:libc:malloc:return"),
        ("pid:libc:entry:entry", "pid:libc:entry:return"),
        ("a.out:entry", "a.out:entry%return"),
        ("uprobe:/bin/bash:readline", "uprobe:/bin/bash:readline%return"),
        ("uretprobe:/bin/bash:readline", "uretprobe:/bin/bash:readline"),
        ('libc:"a:b"', 'libc:"a:b"%return'),
        ("a.out:f(unsigned int) const", "a.out:f(unsigned int) const%return"),
        ("bare+0x1139", "bare+0x1139%return"),
        ("p:opens libc:open path=+0(%di):string", "pid:libc:open:return"),
    ],
)
def test_the_return_of_a_spec_is_the_same_functions_and_reads_as_it_is_written(text, written):
    end = parse(text).end("return")
    assert end.text == written
    assert end.name == parse(written).name == "return"
    assert [(each.module.text, each.function.text, each.pid) for each in (end, parse(written))] == [
        (end.module.text, end.function.text, end.pid)
    ] * 2
    assert end.end("return") is end


@pytest.mark.parametrize(
    ("text", "written"),
    [("libc:malloc%return", "pid:libc:malloc:entry"), ('pid7:libc:"a:b":return', 'pid7:libc:"a:b":entry')],
)
def test_the_entry_of_a_return_is_the_same_functions(text, written):
    end = parse(text).end("entry")
    assert end == parse(written)


@pytest.mark.parametrize("text", ["libc:malloc:insn", "libc:malloc:*", "pid:libc:-:0x10", "file.c:12", "usdt:a:b"])
def test_what_is_no_function_has_no_return_and_the_caret_says_where(text):
    with pytest.raises(SpecError, match="no return") as error:
        parse(text).end("return")
    assert error.value.position == parse(text).name_position


def test_a_spec_in_full_reads_as_the_same_value():
    function = Part("a:b", 0, quoted=True)
    for made in (
        in_full(module_part("libc.so.6"), Part("malloc", 0), "return", pid=7),
        in_full(module_part("my lib"), function, "entry"),
        in_full(module_part("libc.so.6"), Part("-", 0), "offset", offset=0x1234),
    ):
        assert made == parse(made.text)
