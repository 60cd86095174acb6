"""tracefs, in a folder that looks like it."""

import pytest

from anyprobe.core.errors import TargetError
from anyprobe.target.kernel import symbols, tracefs
from anyprobe.target.kernel.tracefs import Field, Traceable

OPENED = """name: sys_enter_open
ID: 782
format:
\tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;
\tfield:int common_pid;\toffset:4;\tsize:4;\tsigned:1;

\tfield:int __syscall_nr;\toffset:8;\tsize:4;\tsigned:1;
\tfield:const char * filename;\toffset:16;\tsize:8;\tsigned:0;
\tfield:char comm[16];\toffset:24;\tsize:16;\tsigned:0;
\tfield:__data_loc char[] name;\toffset:40;\tsize:4;\tsigned:0;
\tfield:long state;\toffset:48;\tsize:8;\tsigned:1;

print fmt: "filename: 0x%08lx", ((unsigned long)(REC->filename))
"""


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(tracefs, "root", lambda: str(tmp_path))
    return tmp_path


def test_fields_of_an_event(root):
    folder = root / "events" / "syscalls" / "sys_enter_open"
    folder.mkdir(parents=True)
    (folder / "format").write_text(OPENED)
    assert tracefs.fields("syscalls", "sys_enter_open") == [
        Field("filename", "const char *", 16, 8, is_signed=False),
        Field("comm", "char[16]", 24, 16, is_signed=False),
        Field("name", "__data_loc char[]", 40, 4, is_signed=False),
        Field("state", "long", 48, 8, is_signed=True),
    ]


def test_an_event_that_there_is_not(root):
    with pytest.raises(TargetError, match="syscalls:sys_enter_open cannot be read"):
        tracefs.fields("syscalls", "sys_enter_open")


def test_what_is_traceable_is_known_by_address(root):
    (root / "available_filter_functions_addrs").write_text("ffffffff81000004 f\nffffffff81000100 g\n")
    known = Traceable()
    assert known.has(0xFFFFFFFF81000000, ("f",)) is True  # behind an endbr64
    assert known.has(0xFFFFFFFF81000100, ("g",)) is True
    assert known.has(0xFFFFFFFF81000200, ("g",)) is False
    assert tracefs.traceable([0xFFFFFFFF81000000, 0xFFFFFFFF81000200]) == [True, False]


def test_what_is_traceable_is_known_by_name_before_linux_6_5(root):
    (root / "available_filter_functions").write_text("f\ng [nfs]\n")
    known = Traceable()
    assert [known.has(0, names) for names in (("f",), ("other", "g"), ("h",))] == [True, True, False]
    assert tracefs.traceable([0]) is None


def test_what_is_traceable_may_not_be_told(root):
    assert Traceable().has(0, ("f",)) is None


@pytest.mark.parametrize("text", ["f\n", "0xffffffff81000000 f\n", "ffffffff81000000\n", "ffffffff81000000 f\n81 g\n"])
def test_lines_without_addresses_tell_nothing(root, text):
    (root / "available_filter_functions_addrs").write_text(text)
    assert tracefs.traceable([0xFFFFFFFF81000000]) is None


def test_nothing_is_traceable_where_no_line_is(root):
    (root / "available_filter_functions_addrs").write_text("")
    assert tracefs.traceable([0xFFFFFFFF81000000]) == [False]


def test_what_is_traceable_is_kept_as_long_as_modules_stay(root, monkeypatch):
    state = [b"one"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
    monkeypatch.setattr(symbols, "state_of_modules", lambda: state[0])
    monkeypatch.setattr(tracefs, "_PLACES", (str(root),))
    told = root / "available_filter_functions_addrs"
    told.write_text("ffffffff81000104 g\nffffffff81000000 f\n")
    asked = [0xFFFFFFFF81000000, 0xFFFFFFFF81000100, 0xFFFFFFFF81000104, 0xFFFFFFFF81000200]
    assert tracefs.traceable(asked) == [True, True, True, False]
    told.write_text("ffffffff81000200 h\n")
    assert tracefs.traceable(asked) == [True, True, True, False]
    state[0] = b"another module"
    assert tracefs.traceable(asked) == [False, False, False, True]


RANGES = [(0x500, 0x520, "later"), (0x100, 0x180, "wide"), (0x120, 0x130, "within"), (0x200, 0x240, "after")]


@pytest.mark.parametrize(
    ("address", "names", "found"),
    [
        (0x0FF, ["a"], ""),
        (0x100, ["a"], "wide"),
        (0x125, ["a"], "wide"),
        (0x17F, ["a"], "wide"),
        (0x180, ["a"], ""),
        (0x23F, ["a"], "after"),
        (0x510, ["a"], "later"),
        (0x520, ["a"], ""),
        (0x900, ["within.part.0"], "within"),
        (0x900, ["within"], ""),
        (0x900, ["other.cold"], ""),
    ],
)
def test_what_kprobes_may_not_touch(monkeypatch, address, names, found):
    monkeypatch.setattr(tracefs, "blacklist", lambda: RANGES)
    assert tracefs.Restrictions().blacklisted(address, names) == found
