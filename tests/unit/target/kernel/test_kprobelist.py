"""The kernel's list of kprobes, as its text is read."""

import pytest

from anyprobe.target.kernel import kprobelist, tracefs
from anyprobe.target.kernel.kprobelist import DynamicEvent, ListedKprobe

LISTING = """\
ffffffff810eaf0f  k  __do_sys_getppid+0xf    [OPTIMIZED]
ffffffff81453d90  r  do_sys_openat2+0x0    [DISABLED][FTRACE]
ffffffffc0301450  k  ovl_lookup+0x0  overlay [GONE][FTRACE]
ffffffff81392c00  k  vfs_kern_mount.part.0+0x1c  \x20
"""


def test_lines():
    assert kprobelist.kprobes(LISTING) == [
        ListedKprobe(0xFFFFFFFF810EAF0F, "k", "__do_sys_getppid", 0xF, "", ("OPTIMIZED",)),
        ListedKprobe(0xFFFFFFFF81453D90, "r", "do_sys_openat2", 0, "", ("DISABLED", "FTRACE")),
        ListedKprobe(0xFFFFFFFFC0301450, "k", "ovl_lookup", 0, "overlay", ("GONE", "FTRACE")),
        ListedKprobe(0xFFFFFFFF81392C00, "k", "vfs_kern_mount.part.0", 0x1C, "", ()),
    ]


@pytest.fixture
def tracing(tmp_path, monkeypatch):
    def write(name, text):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    monkeypatch.setattr(tracefs, "root", lambda: str(tmp_path))
    return write


def test_events(tracing):
    tracing("kprobe_events", "p:kprobes/opens do_sys_openat2 x=%di\nr10:kprobes/opened do_sys_openat2\n")
    tracing("kprobe_profile", "  opens                     203               4\n")
    tracing("uprobe_events", "p:uprobes/main /bin/true:0x0000000000001234\n")
    tracing("uprobe_profile", "  /bin/true main        7\n")
    tracing("events/kprobes/opens/enable", "1\n")
    tracing("events/kprobes/opened/enable", "0\n")
    opens, opened, main = kprobelist.events()
    definition = "p:kprobes/opens do_sys_openat2 x=%di"
    assert opens == DynamicEvent(definition, "p", "kprobes/opens", "do_sys_openat2", True, 203, 4)
    assert (opened.type, opened.enabled, opened.hits, opened.misses) == ("r", False, None, None)
    assert (main.name, main.place, main.hits, main.misses) == ("uprobes/main", "/bin/true:0x0000000000001234", 7, None)


def test_nothing_is_defined(tracing):
    assert kprobelist.events() == []
