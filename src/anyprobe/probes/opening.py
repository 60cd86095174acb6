"""How sessions begin: on a running process, or with a program that is started."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from anyprobe.core.errors import UnsupportedTarget
from anyprobe.probes import removal
from anyprobe.probes.session import Session, typed
from anyprobe.splice.apply.uprobes import ADVICE, IN_USE, has_uprobes
from anyprobe.splice.engine import MAXACTIVE
from anyprobe.target.process.process import Process

if TYPE_CHECKING:
    from collections.abc import Mapping as Environment

    from anyprobe.target.process.launch import Stream


def attach(
    pid: int,
    *,
    strategy: str = "auto",
    maxactive: int = MAXACTIVE,
    clock: str = "auto",
    returns: str = "exits",
    live: bool = False,
    unsafe: bool = False,
    strict: bool = False,
) -> Session:
    """Open a session on a running process. Nothing is changed in it until a probe is armed.

    ``clock`` is what timing probes read: ``tsc``, ``monotonic`` (``clock_gettime`` from the vdso), or ``auto``: the
    TSC where it ticks evenly. With ``returns="trampoline"`` functions whose exits cannot all be spliced have their
    return addresses replaced, where nothing is seen that this could break; else they are refused. With ``live``
    probes are armed and removed while all threads but a borrowed one run on; what cannot be done so is done in a stop,
    and ``Session.warnings`` says why.

    Handlers may change what the program computes only with ``unsafe``. With ``strict`` the functions of
    ``anyprobe.kprobes`` raise instead of returning error numbers.

    What an earlier controller left behind when it died is removed first. Raises ``PermissionDenied``,
    ``NoSuchProcess``, ``UnsupportedTarget``, ``SessionConflict``.
    """
    process = Process.open(pid)
    try:
        with typed(process, "attaching to"):
            _refuse_emulated(process)
            warnings = removal.clean_up(process)
            if has_uprobes(process.mappings()):
                warnings.append(f"{IN_USE}: {ADVICE}")
            session = Session(
                process,
                strategy=strategy,
                maxactive=maxactive,
                clock=clock,
                returns=returns,
                live=live,
                unsafe=unsafe,
                strict=strict,
            )
    except BaseException:
        process.close()
        raise
    session.warnings = [*warnings, *session.warnings]
    return session


def _refuse_emulated(process: Process) -> None:
    emulator = process.emulator()
    if emulator is not None:
        raise UnsupportedTarget(
            f"process {process.pid} is run by {emulator}, not by the processor: probes in its text would not be met, "
            f"or translated with it; probe the program without {emulator}"
        )


def run(
    argv: Sequence[str],
    *,
    strategy: str = "auto",
    maxactive: int = MAXACTIVE,
    clock: str = "auto",
    returns: str = "exits",
    live: bool = False,
    unsafe: bool = False,
    strict: bool = False,
    stdin: "Stream" = None,
    stdout: "Stream" = None,
    stderr: "Stream" = None,
    env: "Environment[str, str] | None" = None,
    cwd: str | None = None,
    process_group: int | None = None,
) -> Session:
    """Start a program, held before its first instruction; ``Session.resume`` lets it go.

    Probes in the executable and the loader are placed at once, those in libraries as soon as these are mapped, before
    anything in them runs. As in ``subprocess``, the program is in the caller's process group unless ``process_group``
    is 0 (one of its own, for programs that send signals to all of their group) or another one's number.
    """
    from anyprobe.target.process.launch import launch

    streams = {"stdin": stdin, "stdout": stdout, "stderr": stderr}
    process = launch(list(argv), **streams, env=env, cwd=cwd, process_group=process_group)
    try:
        with typed(process, "starting"):
            _refuse_emulated(process)
        return Session(
            process,
            strategy=strategy,
            maxactive=maxactive,
            clock=clock,
            returns=returns,
            live=live,
            unsafe=unsafe,
            strict=strict,
            held=True,
        )
    except BaseException:
        process.discard()  # it would run without probes
        raise
