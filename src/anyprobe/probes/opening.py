"""How sessions begin: on a running process, or with a program that is started."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Unpack

from anyprobe.probes import removal
from anyprobe.probes.options import OptionNames, SessionOptions, chosen
from anyprobe.probes.session import Session
from anyprobe.probes.target_errors import refuse_emulated, typed
from anyprobe.splice.apply.uprobes import ADVICE, IN_USE, has_uprobes
from anyprobe.target.process.process import Process

if TYPE_CHECKING:
    from collections.abc import Mapping as Environment

    from anyprobe.target.process.launch import Stream


def attach(pid: int, options: SessionOptions | None = None, **changes: Unpack[OptionNames]) -> Session:
    """Open a session on a running process. Nothing is changed in it until a probe is armed.

    What an earlier controller left behind when it died is removed first.

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
    process = Process.open(pid)
    try:
        with typed(process, "attaching to"):
            refuse_emulated(process)
            warnings = removal.clean_up(process)
            if has_uprobes(process.mappings()):
                warnings.append(f"{IN_USE}: {ADVICE}")
            session = Session(process, settings)
    except BaseException:
        process.close()
        raise
    session.warnings = [*warnings, *session.warnings]
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
