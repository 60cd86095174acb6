"""Fixtures of the live tests."""

import ctypes
import gc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from anyprobe.splice.apply.recovery import recovery
from anyprobe.target.process.process import Process
from support.changes import stop_patiently
from support.driver import MissingTool, Target, build

LEAVING = 20 * (0.1,)
"""Pauses in which threads may leave their patches at the end of a session, besides those that there are in any case."""


@pytest.fixture
def compiled() -> Callable[..., Path]:
    """Return a function that builds a target program, or skips where the compiler is missing."""

    def compile_target(source: str, *options: str, **more: str | None) -> Path:
        try:
            return build(source, *options, **more)
        except MissingTool as tool:
            pytest.skip(f"needs {tool}")

    return compile_target


@pytest.fixture
def run_target(compiled: Callable[..., Path]) -> Iterator[Callable[..., Target]]:
    """Return a function that builds and starts a target; what still runs at the end of the test is killed."""
    with ExitStack() as stack:

        def start(source: str, *arguments: str, options: tuple[str, ...] = (), **more: str | None) -> Target:
            target = Target([compiled(source, *options, **more), *arguments])
            stack.callback(target.close)
            return target

        yield start


@pytest.fixture(scope="session", autouse=True)
def patient() -> Iterator[None]:
    """Give threads more time to stop, and to leave patches.

    Programs that are busy make way for others, and on a busy machine wait long.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Process.stop, "__defaults__", Process.stop.__defaults__)  # as it is afterwards
        patched.setattr(recovery, "_QUIET_PAUSES", (*recovery._QUIET_PAUSES, *LEAVING))
        stop_patiently()
        yield


@pytest.fixture(scope="module", autouse=True)
def small() -> Iterator[None]:
    """Give memory back behind each module: many tests fork this process, which takes the longer the larger it is."""
    yield
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
