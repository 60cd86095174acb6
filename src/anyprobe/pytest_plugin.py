"""The plug-in of pytest: ``pytest --anyprobe 'libssl:*'`` shows which native functions tests call, and for how long.

pytest imports it wherever anyprobe is installed: everything else is imported when the option is used.
"""

import json
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from anyprobe.probes.selfattach.session import SelfSession

PROPERTY = "anyprobe"
"""The property of a test's report, in JUnit's XML too, with what it has called: a JSON list of function, calls, calls
that were timed, and nanoseconds of these."""
FUNCTIONS = 5
"""Functions that are shown of a test; the property has all."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options."""
    group = parser.getgroup("anyprobe", "native functions")
    group.addoption(
        "--anyprobe", action="append", default=[], metavar="SPEC",
        help="time these native functions in each test, as 'libssl:*' or libc:malloc; repeatable",
    )  # fmt: skip
    group.addoption(
        "--anyprobe-top", type=int, default=20, metavar="N", help="show the N tests with most time in them, 0 for all"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Do nothing unless there are functions to time."""
    if config.getoption("anyprobe"):
        config.pluginmanager.register(NativeCalls(config), "anyprobe-native-calls")


class NativeCalls:
    """Times native functions of the process in which tests run; of pytest-xdist's workers, in each."""

    def __init__(self, config: pytest.Config) -> None:
        """Read the options."""
        self._specs: list[str] = config.getoption("anyprobe")
        self._top: int = config.getoption("anyprobe_top")
        self._session: SelfSession | None = None
        self._runs_tests = not config.pluginmanager.hasplugin("dsession")

    def pytest_sessionstart(self) -> None:
        """Place the probes; functions of libraries that are loaded later are timed from then on."""
        if not self._runs_tests:
            return
        import anyprobe

        try:
            self._session = anyprobe.attach_self()
            self._session.time(*self._specs, follow=True)
        except anyprobe.AnyprobeError as error:
            self.pytest_sessionfinish()
            raise pytest.UsageError(f"--anyprobe: {error}") from error

    def pytest_sessionfinish(self) -> None:
        """Take the probes out."""
        session, self._session = self._session, None
        if session is not None:
            session.close()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, object, object]:
        """Note what a test calls; fixtures are not part of it."""
        if self._session is None:
            return (yield)
        before = self._session.snapshot()
        try:
            return (yield)
        finally:
            from anyprobe.data.snapshots.called import called_between

            item.user_properties.append((PROPERTY, json.dumps(called_between(before, self._session.snapshot()))))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Show the tests with most time in these functions."""
        found = {}
        for report in (report for reports in terminalreporter.stats.values() for report in reports):
            text = dict(getattr(report, "user_properties", ())).get(PROPERTY)
            if text is not None and getattr(report, "when", "") == "call":
                found[report.nodeid] = json.loads(text)
        from anyprobe.reports.quantities import counted, duration

        called = sorted((each for each in found if found[each]), key=lambda each: -sum(ns for *_, ns in found[each]))
        terminalreporter.section(f"native calls: {' '.join(self._specs)}")
        for test in called[: self._top or None]:
            terminalreporter.line(test)
            terminalreporter.line(f"  {'calls':>12}  {'total':>8}  {'mean':>8}  function")
            for function, calls, timed, ns in found[test][:FUNCTIONS]:
                total, mean = (duration(ns), duration(ns / timed)) if timed else ("-", "-")
                partly = f"  (times are of {counted(timed, 'call')})" * (timed < calls)
                terminalreporter.line(f"  {calls:>12,}  {total:>8}  {mean:>8}  {function}{partly}")
            if len(found[test]) > FUNCTIONS:
                terminalreporter.line(f"  … and {counted(len(found[test]) - FUNCTIONS, 'more function')}")
        rest = len(called) - len(called[: self._top or None])
        quiet = len(found) - len(called)
        terminalreporter.line(f"{counted(rest, 'more test')} with calls, {counted(quiet, 'test')} without")
