"""How sessions begin: on a running process, or with a program that is started."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from anyprobe.core.errors import TargetError
from anyprobe.probes.options import OptionNames, SessionOptions, chosen
from anyprobe.probes.providers.function import removal
from anyprobe.probes.providers.function.copies import has_libraries
from anyprobe.probes.session import Session
from anyprobe.probes.target_errors import refuse_emulated, typed
from anyprobe.target.process.process import Process

if TYPE_CHECKING:
    from collections.abc import Mapping as Environment

    from anyprobe.target.process.launch import Stream


_EXECUTING = 2.0
"""Seconds for which a process is attached to anew that goes on executing other programs."""

_LOADING = 0.25
"""Seconds that a program which has just begun has to map its libraries."""


def attach(pid: int, options: SessionOptions | None = None, **changes: Unpack[OptionNames]) -> Session:
    """Open a session on a running process. Nothing is changed in it until a probe is armed.

    What an earlier controller left behind when it died is removed first. A process that executes another program
    meanwhile is attached to anew.

    Args:
        pid: the process.
        options: how to probe, see ``SessionOptions``.
        changes: the same options one by one, as ``live=True``; they take precedence.

    Raises:
        PermissionDenied, NoSuchProcess, UnsupportedTarget, SessionConflict: it cannot be probed.
        UsageError: an option has a value that means nothing.

    Returns:
        The session: use it in a ``with`` block, which removes everything at its end.
    """
    settings = chosen(options, changes)
    deadline = time.monotonic() + _EXECUTING
    while True:
        process = Process.open(pid)
        try:
            return _attached(process, settings)
        except BaseException as error:
            executes = isinstance(error, TargetError) and process.became() is not None and not process.exited()
            process.close()
            if not executes or time.monotonic() > deadline:
                raise


def _attached(process: Process, settings: SessionOptions) -> Session:
    with typed(process, "attaching to"):
        refuse_emulated(process)
        warnings = removal.clean_up(process)
        session = Session(process, settings)
        deadline = time.monotonic() + _LOADING
        while not has_libraries(session.objects, process.mem) and time.monotonic() < deadline:  # it has just begun
            time.sleep(0.001)
            session = Session(process, settings)
    session.host.warn(*warnings)
    return session


def run(
    argv: Sequence[str],
    options: SessionOptions | None = None,
    *,
    stdin: "Stream" = None,
    stdout: "Stream" = None,
    stderr: "Stream" = None,
    env: "Environment[str, str] | None" = None,
    cwd: str | None = None,
    process_group: int | None = None,
    **changes: Unpack[OptionNames],
) -> Session:
    """Start a program, held before its first instruction; ``Session.resume`` lets it go.

    Probes in the executable and the loader are placed at once, those in libraries as soon as these are mapped, before
    anything in them runs. As in ``subprocess``, the program is in the caller's process group unless ``process_group``
    is 0 (one of its own, for programs that send signals to all of their group) or another one's number.

    Args:
        argv: the program and its arguments, as for ``subprocess.Popen``.
        options: how to probe, see ``SessionOptions``.
        stdin: what it reads, as in ``subprocess``.
        stdout: where it writes.
        stderr: where it writes errors.
        env: its environment, this process's without it.
        cwd: its working directory.
        process_group: 0 for one of its own, or another's number.
        changes: the options one by one.

    Returns:
        The session, with the program held; use it in a ``with`` block.

    Raises:
        UsageError: the program cannot be executed, or an option has a value that means nothing.
        PermissionDenied, UnsupportedTarget: it cannot be probed; it is ended then.
    """
    from anyprobe.target.process.launch import launch

    settings = chosen(options, changes)
    streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
    process = launch(list(argv), **streams, env=env, cwd=cwd, process_group=process_group)
    try:
        with typed(process, "starting"):
            refuse_emulated(process)
        return Session(process, settings, held=True)
    except BaseException:
        process.discard()  # it would run without probes
        raise
