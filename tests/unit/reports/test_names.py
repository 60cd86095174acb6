"""Long names in tables: what is left out, and that two functions never look the same."""

from dataclasses import replace

import pytest

from anyprobe.data.findings.calltree import CallNode
from anyprobe.reports.names import LONGEST, short_name, with_short_names
from support.sample_snapshots import site, snapshot, timing

PUSH = "std::vector<std::__cxx11::basic_string<char, std::char_traits<char> >, std::allocator<int> >::push_back"


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (PUSH + "(int const&)", "std::vector<…>::push_back(…)"),
        (
            "void v8::internal::Heap::CollectGarbage(v8::internal::AllocationSpace, v8::GCCallbackFlags)",
            "void v8::internal::Heap::CollectGarbage(…)",
        ),
        (
            "std::map<int, std::pair<std::string, int> >::operator[](int&&, std::string const&)",
            "std::map<…>::operator[](…)",
        ),
        (
            "<alloc::vec::Vec<core::option::Option<T>,A> as core::ops::drop::Drop>::drop::really_long",
            "<alloc::vec::Vec<…> as core::ops::drop::Drop>::drop::really_long",
        ),
        (
            "(anonymous namespace)::parse(llvm::StringRef, llvm::SmallVectorImpl<char>&, bool, bool, int)",
            "(anonymous namespace)::parse(…)",
        ),
        (
            "std::ostream& std::operator<< <std::char_traits<char> >(std::ostream&, char const*, long, long)",
            "std::ostream& std::operator<< <…>(…)",
        ),
        ("bool operator->(very::long::name::of::a::type const&, another::very::long::name)", "bool operator->(…)"),
        ("a" * 80, "a" * 80),
        ("f(" + "a" * 70, "f(" + "a" * 70),
    ],
)
def test_what_is_in_brackets_is_left_out(name, short):
    assert short_name(name) == short


def test_the_innermost_goes_first():
    name = "outer<inner<std::allocator<char, long, long, long, long> > >::run(int, short, char)"
    assert short_name(name) == "outer<inner<std::allocator<…> > >::run(int, short, char)"
    assert len(short_name(name)) <= LONGEST


def test_all_tables_have_short_names_and_what_they_stand_for_stays():
    name = PUSH + "(int const&)"
    of = snapshot(
        sites=(replace(site(), function=name), site("free")),
        functions=(timing(name), timing("short")),
        tree=(CallNode("a.out", name, calls=(CallNode("a.out", "x"), CallNode("a.out", name))),),
    )
    short = with_short_names(of)
    assert [each.label or each.function for each in short.sites] == ["std::vector<…>::push_back(…)", "free"]
    assert [each.label or each.function for each in short.functions] == ["std::vector<…>::push_back(…)", "short"]
    assert [each.function for each in short.tree] == ["std::vector<…>::push_back(…)"]
    assert [each.function for each in short.tree[0].calls] == ["x", "std::vector<…>::push_back(…)"]
    assert short.sites[0].key == of.sites[0].key


def test_names_that_would_be_the_same_are_told_apart_by_as_little_as_it_takes():
    names = [
        PUSH + "(int const&)",
        PUSH + "(int&&)",
        PUSH.replace("basic_string<char,", "basic_string<int,") + "(int&&)",
    ]
    short = with_short_names(snapshot(sites=tuple(replace(site(), function=each) for each in names)))
    labels = [each.label for each in short.sites]
    assert len(set(labels)) == 3
    assert all(len(label) < len(name) for label, name in zip(labels[:1], names[:1], strict=True))
    names = ["std::set<std::pair<int, std::allocator<char> >, std::less<int> >::find(int)",
             "std::set<std::list<int, std::allocator<char> >, std::less<int> >::find(int)"]  # fmt: skip
    short = with_short_names(snapshot(sites=tuple(replace(site(), function=each) for each in names)))
    assert [each.label for each in short.sites] == [
        "std::set<std::pair<…>, std::less<…> >::find(int)",
        "std::set<std::list<…>, std::less<…> >::find(int)",
    ]


def test_labels_stay():
    long = "f(" + "int, " * 20 + "int)"
    of = snapshot(sites=(replace(site(), function=long, label="memcpy → avx_unaligned"),))
    assert with_short_names(of).sites[0].label == "memcpy → avx_unaligned"
