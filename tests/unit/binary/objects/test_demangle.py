import pytest

from anyprobe.binary.objects.demangle import Spelling, is_mangled, mangled_hint, spellings

# mangled, with parameters, without them, without template arguments
NAMES = [
    ("_ZN2ns1fEi", "ns::f(int)", "ns::f", "ns::f"),
    ("_Z1fv", "f()", "f", "f"),
    ("_ZN2ns5twiceIiEET_S1_", "int ns::twice<int>(int)", "ns::twice<int>", "ns::twice"),
    ("_ZNK2ns1C3getEv", "ns::C::get() const", "ns::C::get", "ns::C::get"),
    ("_ZN2ns1CD1Ev", "ns::C::~C()", "ns::C::~C", "ns::C::~C"),
    ("_ZN2nsplERKNS_1CES2_", "ns::operator+(ns::C const&, ns::C const&)", "ns::operator+", "ns::operator+"),
    ("_ZN2ns1CclEi", "ns::C::operator()(int)", "ns::C::operator()", "ns::C::operator()"),
    ("_ZN2ns1CcvbEv", "ns::C::operator bool()", "ns::C::operator bool", "ns::C::operator bool"),
    ("_ZN12_GLOBAL__N_16helperEi", "(anonymous namespace)::helper(int)", "(anonymous namespace)::helper",
     "(anonymous namespace)::helper"),
    ("_Z5applyPFvvE", "apply(void (*)())", "apply", "apply"),
    ("_ZTV1C", "vtable for C", "vtable for C", "vtable for C"),
    ("_ZSt9terminatev", "std::terminate()", "std::terminate", "std::terminate"),
    ("_Z1fv.cold", "f().cold", "f.cold", "f.cold"),
    ("_Z1fi.part.0.constprop.2", "f(int).part.0.constprop.2", "f.part.0.constprop.2", "f.part.0.constprop.2"),
    # Rust, the older mangling: a hash at the end, escapes
    ("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE", "core::fmt::Formatter::pad", "core::fmt::Formatter::pad",
     "core::fmt::Formatter::pad"),
    ("_ZN49_$LT$alloc..vec..Vec$LT$T$GT$$u20$as$u20$Drop$GT$4drop17h0123456789abcdefE",
     "<alloc::vec::Vec<T> as Drop>::drop", "<alloc::vec::Vec<T> as Drop>::drop", "<alloc::vec::Vec<T> as Drop>::drop"),
    # Rust v0
    ("_RNvC7mycrate3foo", "mycrate::foo", "mycrate::foo", "mycrate::foo"),
    ("_RNvNtCs1234_7mycrate3foo3bar", "mycrate::foo::bar", "mycrate::foo::bar", "mycrate::foo::bar"),
    ("_RNvMNtC1r5innerNtB2_1S2go", "<r::inner::S>::go", "<r::inner::S>::go", "r::inner::S::go"),
    ("_RINvC1r3genmEB2_", "r::gen::<u32>", "r::gen::<u32>", "r::gen"),
    ("_ZN1r4main28_$u7b$$u7b$closure$u7d$$u7d$17h0123456789abcdefE", "r::main::{{closure}}", "r::main::{{closure}}",
     "r::main::{{closure}}"),
    # neither
    ("malloc", "malloc", "malloc", "malloc"),
    ("_Znonsense", "_Znonsense", "_Znonsense", "_Znonsense"),
    ("_ZN", "_ZN", "_ZN", "_ZN"),
]  # fmt: skip


@pytest.mark.parametrize(("mangled", "full", "plain", "bare"), NAMES)
def test_spellings(mangled, full, plain, bare):
    assert spellings(mangled) == Spelling(full, plain, bare)


@pytest.mark.parametrize(("mangled", "full", "plain", "bare"), NAMES)
def test_the_hint_is_in_every_mangled_form(mangled, full, plain, bare):
    if is_mangled(mangled) and full != mangled:
        for spelled in (full, plain, bare):
            assert mangled_hint(spelled) in mangled


def test_blanks_that_tell_nothing_apart_are_ignored():
    assert Spelling.normal("std::vector<int, std::allocator<int> >::at") == Spelling.normal(
        "std::vector<int,std::allocator<int>>::at"
    )
    assert Spelling.normal("f(unsigned int)") != Spelling.normal("f(unsignedint)")


def test_whole_libraries_demangle_quickly():
    import glob
    import time

    from anyprobe.binary.images.image import Image

    paths = glob.glob("/usr/lib/x86_64-linux-gnu/libstdc++.so.6")
    if not paths:
        pytest.skip("libstdc++ is not installed")
    names = [name for name in Image.open(paths[0]).functions.names() if is_mangled(name)]
    start = time.process_time()
    spelled = [spellings(name).full for name in names]
    assert time.process_time() - start < 2
    assert sum(each == name for each, name in zip(spelled, names, strict=True)) < len(names) / 50
