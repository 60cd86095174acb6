"""What every test may rely on: markers by folder, and skips that are counted with their reason."""

import gc
import os
import sys
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from support import forked_commands
from support.slices import all_are_wanted, left_out
from support.watchdog import Watchdog

HERE = Path(__file__).parent
FOLDER_MARKERS = {"live": "live", "torture": "torture"}


# Tests start the command line and controllers hundreds of times; without bytecode, each compiles all modules again, for
# over a second.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
os.environ["ANYPROBE_PROGRESS"] = "0"  # what is told depends on what was asked for, not on how busy the machine is
sys.dont_write_bytecode = False
# How long an example takes is for the machine to say, which may be busy.
settings.register_profile("anyprobe", deadline=None)
settings.load_profile("anyprobe")


@pytest.fixture(scope="session", autouse=True)
def no_width():
    """Forget how wide a terminal the tests run in, which the processes that run several files at a time are told."""
    for name in ("COLUMNS", "LINES"):
        os.environ.pop(name, None)


@pytest.fixture(autouse=True)
def _command_leaves_nothing():
    """Put back what a command changes for the rest of its process, where a test runs one in this process."""
    path, argv, often = sys.path.copy(), sys.argv, gc.get_threshold()
    yield
    sys.path[:], sys.argv = path, argv
    gc.set_threshold(*often)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--torture", action="store_true", help="run the long tests too")
    parser.addoption("--slice", action="store_true", help="in a guest, leave the thorough tests of the kernel out")
    parser.addoption("--part", default="1/1", help="K/N: of an enumeration of faults in the torture, every N-th from K")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item):
    marker = item.get_closest_marker("timeout")
    is_torture = item.config.getoption("--torture")
    forked_commands.Switch.wanted = not is_torture and item.get_closest_marker("fresh") is None
    limit = float(marker.args[0] if marker else item.config.getini("timeout"))
    if limit > 0:  # else there is none, in a debugger for instance
        watchdog().begin(item.nodeid, limit)
    try:
        return (yield)
    finally:
        watchdog().end()


@cache
def watchdog() -> Watchdog:
    return Watchdog()


def pytest_configure() -> None:
    watchdog()  # before output is captured
    forked_commands.install()


def pytest_unconfigure() -> None:
    forked_commands.uninstall()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not all_are_wanted(config):
        others = left_out(items)
        config.hook.pytest_deselected(items=others)
        unwanted = {id(each) for each in others}
        items[:] = [each for each in items if id(each) not in unwanted]
    items[:] = guest_early(items)
    may_not_trace = reason_against_tracing()
    for item in items:
        folder = item.path.relative_to(HERE).parts[0] if item.path.is_relative_to(HERE) else ""
        if folder in FOLDER_MARKERS:
            item.add_marker(FOLDER_MARKERS[folder])
        if item.get_closest_marker("torture") and not config.getoption("--torture"):
            item.add_marker(pytest.mark.skip(reason="long; run by make torture"))
        elif item.get_closest_marker("live") and may_not_trace:
            item.add_marker(pytest.mark.skip(reason=may_not_trace))
        if item.get_closest_marker("root") and not is_root():
            item.add_marker(pytest.mark.skip(reason="needs uid 0"))


def pytest_collection_finish() -> None:
    """Have no search for cycles go through thousands of tests again."""
    gc.collect()
    gc.freeze()


def guest_early(items: list[pytest.Item]) -> list[pytest.Item]:
    """Return the tests so that a guest is booted by one process at once, and no other waits for it."""
    in_guest = [item for item in items if item.path.is_relative_to(HERE / "kernel")]
    booting = {item.path for item in in_guest[:1]}
    first = [item for item in in_guest if item.path in booting]
    inside = {id(each) for each in in_guest}
    others = [item for item in items if id(item) not in inside]
    return [*first, *others, *(item for item in in_guest if item.path not in booting)]


def is_root() -> bool:
    return os.geteuid() == 0


def reason_against_tracing() -> str | None:
    """Return why this machine lets us trace nobody, or None."""
    scope = Path("/proc/sys/kernel/yama/ptrace_scope")
    if scope.exists() and int(scope.read_text()) >= 3:
        return "Yama forbids tracing altogether (kernel.yama.ptrace_scope = 3)"
    return None
