"""kallsyms, from texts as the kernel writes them."""

import pytest

from anyprobe.core.errors import PermissionDenied
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


def test_next_function_bounds_one():
    symbols = Symbols(LISTING)
    assert symbols.next_after(0xFFFFFFFF81000040) == 0xFFFFFFFF81000080
    assert symbols.next_after(0xFFFFFFFFC0000040) is None


def test_hidden_addresses_are_said():
    with pytest.raises(PermissionDenied, match="kptr_restrict"):
        Symbols(b"0000000000000000 T one\n0000000000000000 T two\n")
