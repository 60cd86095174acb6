"""kallsyms, from texts as the kernel writes them."""

import os
import stat
from pathlib import Path

import pytest

from anyprobe.core import kept
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


def test_functions_are_in_the_order_of_their_addresses():
    lines = LISTING.splitlines(keepends=True)
    symbols = Symbols(b"".join([*lines[:5], *reversed(lines[5:])]))
    assert [each.address for each in symbols.named("cleanup")] == [0xFFFFFFFF81000080, 0xFFFFFFFFC0000000]
    found = symbols.containing(0xFFFFFFFFC0000010)
    assert (found.name, found.module) == ("cleanup", "nfs")
    assert symbols.next_after(found) == 0xFFFFFFFFC0000040


def test_names_are_whole_and_of_functions():
    symbols = Symbols(LISTING + b"ffffffffc0000100 t nfs_open_more\t[nfs]\nffffffffc0000200 t __pfx_more\n")
    assert [each.name for each in symbols.named("nfs_open")] == ["nfs_open"]
    assert symbols.named("open") == []
    assert symbols.names() == [
        "__do_sys_getppid", "__x64_sys_getppid", "_stext", "cleanup", "nfs_open", "nfs_open_more",
    ]  # fmt: skip


def test_patterns_are_of_names_and_modules():
    symbols = Symbols(LISTING)

    def found(*patterns):
        return [(each.module, each.name) for each in symbols.matching(*patterns)]

    assert found("*clean*", "nfs") == [("nfs", "cleanup")]
    assert found("*clean*", "[nv]*") == found("*clean*") == [("vmlinux", "cleanup"), ("nfs", "cleanup")]
    assert found("*", "no_such_module") == []


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


MODULES = b"""nfs 4096 1 - Live 0xffffffffc0000000 (OE)
sunrpc 8192 2 nfs, Live 0xffffffffc0100000
"""


@pytest.fixture
def kernel(tmp_path, monkeypatch):
    """Return a folder whose files are what the kernel shows, with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name, constant, content in [
        ("kallsyms", "_PATH", LISTING), ("modules", "_MODULES", MODULES), ("boot", "_BOOT", b"one\n"),
    ]:  # fmt: skip
        (tmp_path / name).write_bytes(content)
        monkeypatch.setattr(module, constant, str(tmp_path / name))
    module._running.cache_clear()
    yield tmp_path
    module._running.cache_clear()


def names_in_another_process():
    module._running.cache_clear()
    return module.running().names()


def test_functions_are_kept_as_long_as_the_kernel_runs(kernel):
    names = names_in_another_process()
    (kernel / "kallsyms").write_bytes(b"")
    assert names_in_another_process() == names
    (name,) = os.listdir(kept.directory())
    assert stat.S_IMODE(os.stat(os.path.join(kept.directory(), name)).st_mode) == 0o600
    (kernel / "boot").write_bytes(b"another\n")
    assert names_in_another_process() == []


@pytest.mark.parametrize(
    "changed",
    [
        MODULES.splitlines(keepends=True)[0],
        MODULES.replace(b"Live", b"Loading"),
        MODULES.replace(b"c0100000", b"c0200000"),
        b"",
    ],
)
def test_functions_are_read_again_when_modules_are_others(kernel, changed):
    names_in_another_process()
    (kernel / "kallsyms").write_bytes(LISTING + b"ffffffffc0000100 t later\t[later]\n")
    (kernel / "modules").write_bytes(MODULES.replace(b" 2 nfs,", b" 3 nfs,lockd,"))
    assert "later" not in names_in_another_process(), "who uses a module changes nothing"
    (kernel / "modules").write_bytes(changed)
    assert "later" in names_in_another_process()


def test_what_the_kernel_makes_itself_is_not_kept(kernel):
    made = b"ffffffffc0300000 t bpf_prog_1\t[bpf]\nffffffffc0400000 t ftrace_trampoline\t[__builtin__ftrace]\n"
    (kernel / "kallsyms").write_bytes(LISTING + made)
    names = names_in_another_process()
    assert module.running().listing == LISTING + made
    assert names_in_another_process() == names
    assert module.running().listing == LISTING


def test_functions_are_found_without_the_whole_listing(kernel, monkeypatch):
    names_in_another_process()
    module._running.cache_clear()
    monkeypatch.setattr(module.kept_content, "load_second", None)
    symbols = module.running()
    assert [each.module for each in symbols.named("cleanup")] == ["vmlinux", "nfs"]
    assert [each.name for each in symbols.matching("nfs_*")] == ["nfs_open"]
    assert symbols.aliases(*symbols.named("__do_sys_getppid")) == ["__do_sys_getppid", "__x64_sys_getppid"]
    found = symbols.containing(0xFFFFFFFFC0000041)
    assert found is not None
    assert found.name == "nfs_open"


def test_what_is_kept_and_damaged_is_read_again(kernel):
    names = names_in_another_process()
    (name,) = os.listdir(kept.directory())
    path = os.path.join(kept.directory(), name)
    whole = Path(path).read_bytes()
    for content in (b"", b"x" * 100, whole[:-20], whole.replace(b"nfs_open", b"nfs_shut")):
        Path(path).write_bytes(content)
        assert names_in_another_process() == names


def test_a_listing_without_addresses_is_not_kept(kernel):
    (kernel / "kallsyms").write_bytes(b"0000000000000000 T _stext\n")
    with pytest.raises(PermissionDenied):
        names_in_another_process()
    assert not os.path.exists(kept.directory())


def test_kernel_without_modules_has_functions(kernel):
    (kernel / "modules").unlink()
    assert module.running().named("__do_sys_getppid")


def test_what_lies_behind_a_module_is_no_function_of_it():
    trampoline = 0xFFFFFFFFC0004000
    assert Symbols(LISTING).containing(trampoline) is not None
    ends = module._ends_of(b"nfs 8192 Live 0xffffffffc0000000\nhidden 4096 Live 0x0000000000000000")
    assert ends == {"nfs": 0xFFFFFFFFC0002000}
    bounded = Symbols(LISTING, ends)
    assert bounded.containing(trampoline) is None
    found = bounded.containing(0xFFFFFFFFC0001FFF)
    assert found is not None
    assert found.name == "nfs_open"


def test_variables_that_addresses_are_in():
    variables = (
        b"ffffffff82000000 D init_task\nffffffff82003000 b a_lock.1\nffffffff82003040 T _etext_of_it\n"
        b"ffffffff82003000 D __start_of_it\nffffffff82004000 B __bss_stop\n"
    )
    asked = {0xFFFFFFFF82000000, 0xFFFFFFFF82003008, 0xFFFFFFFF82003048, 0xFFFFFFFF82014000, 0xFFFF888100000000, 0}
    found = Symbols(LISTING + variables).variables_at(asked)
    assert found.pop(0xFFFFFFFF82003008) in {"a_lock.1+0x8", "__start_of_it+0x8"}
    assert found == {0xFFFFFFFF82000000: "init_task"}
    assert Symbols(LISTING + variables.replace(b"init_task", b"__start_init")).variables_at(asked) == {}
