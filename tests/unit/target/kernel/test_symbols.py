"""kallsyms, from texts as the kernel writes them."""

import pytest

from anyprobe.core.errors import PermissionDenied
from anyprobe.target.kernel import symbols as module
from anyprobe.target.kernel.symbols import KernelFunction, Symbols

LISTING = b"""ffffffff81000000 T _stext
ffffffff81000040 T __x64_sys_getppid
ffffffff81000040 t __do_sys_getppid
ffffffff81000080 t cleanup
ffffffff81000100 D jiffies
ffffffffc0000000 t cleanup\t[nfs]
ffffffffc0000040 T nfs_open\t[nfs]
"""


def test_functions_by_name_with_their_modules():
    symbols = Symbols(LISTING)
    assert symbols.named("nfs_open") == [KernelFunction("nfs_open", "nfs", 0xFFFFFFFFC0000040)]
    assert [(each.module, each.address) for each in symbols.named("cleanup")] == [
        ("vmlinux", 0xFFFFFFFF81000080),
        ("nfs", 0xFFFFFFFFC0000000),
    ]
    assert symbols.named("jiffies") == [], "data is no function"


def test_aliases_are_names_of_the_same_address():
    symbols = Symbols(LISTING)
    (function,) = symbols.named("__x64_sys_getppid")
    assert symbols.aliases(function) == ["__x64_sys_getppid", "__do_sys_getppid"]


def test_next_symbol_bounds_a_function():
    symbols = Symbols(LISTING)
    ends = [
        symbols.next_after(each) for name in ("__do_sys_getppid", "cleanup", "nfs_open") for each in symbols.named(name)
    ]
    assert ends == [0xFFFFFFFF81000080, 0xFFFFFFFF81000100, 0xFFFFFFFFC0000040, None]


def test_names_are_whole_and_of_functions():
    symbols = Symbols(LISTING + b"ffffffffc0000100 t nfs_open_more\t[nfs]\nffffffffc0000200 t __pfx_more\n")
    assert [each.name for each in symbols.named("nfs_open")] == ["nfs_open"]
    assert symbols.named("open") == []
    assert symbols.names() == [
        "__do_sys_getppid", "__x64_sys_getppid", "_stext", "cleanup", "nfs_open", "nfs_open_more",
    ]  # fmt: skip


@pytest.mark.parametrize("many", [False, True])
def test_one_or_many_lookups_say_the_same(many):
    symbols = Symbols(LISTING)
    if many:
        assert [each.name for each in symbols.matching("nfs_*")] == ["nfs_open"]
    assert [each.module for each in symbols.named("cleanup")] == ["vmlinux", "nfs"]
    assert symbols.aliases(*symbols.named("__do_sys_getppid")) == ["__do_sys_getppid", "__x64_sys_getppid"]
    assert symbols.named("jiffies") == []


def test_what_the_kernel_has_made_itself_is_left_out():
    symbols = Symbols(LISTING + b"ffffffffc0001000 t handler\t[bpf]\nffffffffc0002000 t handler\t[__builtin__ftrace]\n")
    assert symbols.named("handler") == []


def test_hidden_addresses_are_said():
    with pytest.raises(PermissionDenied, match="kptr_restrict"):
        Symbols(b"0000000000000000 T one\n0000000000000000 T two\n")


def test_kernel_without_modules_has_functions(monkeypatch, tmp_path):
    (tmp_path / "kallsyms").write_bytes(LISTING)
    monkeypatch.setattr(module, "_PATH", str(tmp_path / "kallsyms"))
    monkeypatch.setattr(module, "_MODULES", str(tmp_path / "absent"))
    module._running.cache_clear()
    try:
        assert module.running().named("__do_sys_getppid")
    finally:
        module._running.cache_clear()
