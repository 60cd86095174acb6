"""What results show as a function's name, pasted as a spec, means just this function."""

import pathlib
import subprocess

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anyprobe.binary.objects.demangle import spellings
from anyprobe.core.errors import SpecError
from anyprobe.probes.providers.function.resolve import resolve
from anyprobe.probes.specs import naming
from anyprobe.probes.specs.naming import as_spec
from anyprobe.probes.specs.spec import parse

SPELLED = pathlib.Path(__file__).parents[3] / "live" / "targets" / "spelled.cpp"
OTHERS = [
    # Go
    "main.(*T).Method",
    "main.(*Pair[go.shape.string,go.shape.int]).Get",
    "main.Gen[go.shape.int_0]",
    "github.com/a/b%2ec.(*T).f-fm",
    "main.main.func1.1",
    "type:.eq.main.T",
    # Rust
    "_ZN72_$LT$alloc..vec..Vec$LT$T$GT$$u20$as$u20$core..ops..drop..Drop$GT$4drop17h0123456789abcdefE",
    "_ZN4prog4main28_$u7b$$u7b$closure$u7d$$u7d$17h0123456789abcdefE",
    "_RNvXCs1234_4progNtB2_6SquareNtB2_5Shape4area",
    "_RNCNvCs1234_4prog4main0B3_",
    "_RNvMCs1234_4progNtB2_6Square19__from_vec_unchecked",
    # parts and copies
    "_Z5worksi.cold",
    "_Z5worksi.constprop.0.isra.0",
    "_Z5worksi.part.0.cold",
    "plain.isra.0",
    "_Z4coroPZ4coroiE14_Z4coroi.Frame.actor",
    # anything else
    "a name with blanks",
    "a:colon",
    "per%cent",
    "a+0x10",
    "star*",
    "brackets[0-9]",
    "module:entry",
    "entry",
    "return",
    "pid",
    "file.c:12",
    "unbalanced(",
    "-",
    "Q::call",
    "operator",
    "bang!",
    "back\\\\slash",
]


def resolved(text, objects):
    return resolve(parse(text), objects)


def functions_in(objects, spec):
    return sorted({site.function.start for site in resolved(spec, objects)})


def pasted(objects):
    """Yield what is shown of each function, and where it is."""
    for site in resolved("spelled:*", objects):
        yield from ((text, site.function.start) for text in (site.canonical, f"spelled:{site.name}", site.name))
        yield f"spelled:{site.name}%return", site.function.start


@pytest.mark.parametrize("flags", [("-O1",), ("-O2", "-g")], ids=["plain", "with copies"])
def test_each_shown_name_of_a_program_is_the_spec_of_its_function(process, flags):
    process.load(SPELLED.read_text(encoding="utf-8"), "spelled", "-std=c++20", *flags, language="c++")
    objects = process.objects()
    found = list(pasted(objects))
    assert len(found) > 250
    wrong = {text: start for text, start in found if functions_in(objects, text) != [start]}
    assert not wrong


def test_other_spellings_find_the_function_too(process):
    """Without parameters, without template arguments, and as gdb and c++filt write it."""
    process.load(SPELLED.read_text(encoding="utf-8"), "spelled", "-std=c++20", "-O2", language="c++")
    objects = process.objects()
    for site in resolved("spelled:*", objects):
        name = site.function.name
        shorter = spellings(name)
        filtered = subprocess.run(["c++filt", name], capture_output=True, text=True, check=True).stdout.strip()
        texts = {shorter.plain, shorter.bare, *([] if "auto:" in filtered or "<&" in filtered else [filtered])}
        for text in texts:
            assert site.function.start in functions_in(objects, f"spelled:{text}"), text


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("main::'lambda'(int)::operator()(int) const", "_ZZ4mainENKUliE_clEi"),
        ("main::{lambda(int)#1}::operator()", "_ZZ4mainENKUliE_clEi"),
        ("tagged[abi:cxx11](int)", "_Z6taggedB5cxx11i"),
    ],
)
def test_names_of_other_tools(process, text, name):
    process.load(SPELLED.read_text(encoding="utf-8"), "spelled", "-std=c++20", "-O1", language="c++")
    found = [site.function.names for site in resolved(f"spelled:{text}", process.objects())]
    assert found
    assert all(name in names for names in found)


SIGNS = "< > <= >= == != && || << >> + - * / % & | ^ <<= >>= += -= *= /= %= ~ ! ++ () [] -> ->* , <=>"
SPACED = ["operator int", "operator char*", "operator long*", "operator new", "operator new[]", "operator delete[]"]


def test_each_operator_is_found_without_its_parameters(process):
    process.load(SPELLED.read_text(encoding="utf-8"), "spelled", "-std=c++20", "-O1", language="c++")
    objects = process.objects()
    for operator in (*(f"operator{sign}" for sign in SIGNS.split()), *SPACED):
        for spec in (f"Number::{operator}", f"spelled:Number::{operator}", f"pid:spelled:Number::{operator}:entry"):
            found = [site.function.demangled for site in resolved(spec, objects)]
            assert found
            assert all(f"Number::{operator}" in name for name in found), (spec, found)
            assert all(name.split(f"Number::{operator}")[1][:1] in "(<" for name in found), (spec, found)


def test_names_of_other_languages_and_any_other_are_found_again(process):
    lines = [f'.type "{name}", @function\n"{name}": ret\n.size "{name}", 1\n' for name in OTHERS]
    source = ".text\n.type twin, @function\ntwin: ret\n.size twin, 1\n" + "".join(lines)
    source += '.section .note.GNU-stack,"",@progbits\n'
    process.load(source, "spelled", "-shared", "-nostdlib", language="assembler")
    objects = process.objects()
    assert len(resolved("spelled:*", objects)) == len(OTHERS) + 1
    wrong = {text: start for text, start in pasted(objects) if functions_in(objects, text) != [start]}
    assert not wrong


def test_functions_of_one_name_are_shown_with_their_addresses(process):
    other = "struct S { virtual ~S(); }; S::~S() {}"
    process.load(other, "spelled", "-shared", "-O1", "-fPIC", language="c++")
    objects = process.objects()
    names = [site.name for site in resolved("spelled:S::~S", objects)]
    assert len(names) == 2
    for name in names:
        base, _, start = name.rpartition("@")
        assert base == "S::~S()"
        assert functions_in(objects, f"spelled:{name}") == [int(start, 16)]
    assert len(functions_in(objects, "spelled:S::~S()")) == 2


@pytest.mark.parametrize(
    "name", ["my prog", "a:b", "new\nline", "caf\udce9", "50%", "star*", "pid", "hm!", 'q"', "b\\s"]
)
def test_each_shown_module_is_found_again(process, name):
    process.load("int work(int x) { return x; }", name, "-shared", "-O1")
    process.load("int work(int x) { return x; }", "other", "-shared", "-O1", bias=0x7F0000800000)
    objects = process.objects()
    (site,) = [each for each in resolved("work", objects) if each.object.name == name]
    assert site.canonical.isprintable()
    (again,) = resolved(site.canonical, objects)
    assert (again.object.name, again.address) == (name, site.address)


@pytest.mark.parametrize("name", ["malloc", "main.(*T).f", "ns::f(int)", "<T as U>::f", "f[...]", "K::operator%(int)"])
def test_names_that_are_read_as_they_stand_are_not_quoted(name):
    assert as_spec(name) == name


WORDS = [
    "v8",
    "std",
    "p",
    "pid",
    "pid12",
    "u",
    "ur",
    "usdt",
    "kernel",
    "call",
    "entry",
    "insn",
    "operator",
    "f2",
    "~S",
    "int",
    "const",
    ".part.0",
    ".cold",
]
PIECES = st.lists(
    st.sampled_from([*WORDS, "::", "<", ">", "(", ")", ", ", "*", "&", " ", "(anonymous namespace)"]),
    max_size=12,
).map("".join)


@given(PIECES)
@example("ns::f<std::pair<int, char const*>>::~f(int (*)(unsigned long)) const")
@example("p::f(int, int)")
@example("ns::f::call")
@example("v8::(anonymous namespace)::f<std::map<int, A<B> > >::g.part.0")
@settings(deadline=None, max_examples=1000)
def test_names_that_are_not_tried_are_read_as_they_stand(name):
    """Only to be faster: what a look at the text decides is what reading the name would."""
    if naming._SCOPED(name):
        assert naming._reads_as(name)


@pytest.mark.parametrize(
    "name", ["ns::f", "a::b<int>::c(d<e*>)", "v8::(anonymous namespace)::Map::~Map", "ns::T<A<B>>::g.cold"]
)
def test_most_names_of_c_plus_plus_are_not_tried(name):
    assert naming._SCOPED(name)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ('libc:"malloc', "never closed"),
        ('libc:""', "no name between"),
        ('libc:"malloc"x', "after a name in quotes"),
        ('libc:"malloc"%', "is missing after"),
        ('libc:"malloc"+q', "is not an offset"),
        ("my prog:malloc", "in double quotes"),
    ],
)
def test_quotes_that_cannot_be_read(process, spec, message):
    process.load("int malloc(int x) { return x; }", "libc", "-shared", "-O1")
    with pytest.raises(SpecError, match=message):
        resolved(spec, process.objects())


def test_what_stands_behind_quotes(process):
    process.load("int work(int x) { return x + 1; }", "my lib.so.1", "-shared", "-O1")
    objects = process.objects()
    for spec, kind, offset in (
        ('"my lib.so.1":"work"%return', "return", 0),
        ('"my lib":work', "entry", 0),
        ('"my lib.so":"work"+0x3', "offset", 3),
        ('pid:"my lib":"work":insn', "insn", 0),
    ):
        (site,) = resolved(spec, objects)
        assert (site.kind, site.offset) == (kind, offset)
    with pytest.raises(SpecError):
        resolved('"my lib*":work', objects)
