"""Running a script for a session: ordinary Python, whose mistakes are shown like a compiler's."""

import linecache
import os
import sys
import traceback
import types
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import click

from anyprobe.cli.terminal import interrupts
from anyprobe.core.errors import AnyprobeError, HandlerError, UsageError

if TYPE_CHECKING:
    from anyprobe.cli.programs.targets import Measured
    from anyprobe.probes.providers.function.resolve import ResolvedSite
    from anyprobe.probes.rehearsal import RehearsedHandler
    from anyprobe.probes.session import Session

NAME = interrupts.SCRIPT
"""Not ``__main__``, so that a file can have a main part of its own."""
STANDARD_INPUT = "-"


@dataclass(frozen=True, slots=True)
class Script:
    """A file with handlers, compiled as Python and not run yet."""

    path: str
    code: types.CodeType
    arguments: tuple[str, ...] = ()
    kept: dict[str, object] = field(default_factory=dict)
    """What a script that runs at each hit keeps from one to the next."""

    def run(self, stack: ExitStack, session: "Measured") -> None:
        """Run it with a session as the current one.

        The first one stays that until the stack is left, for whatever the script does besides; what it has placed in
        others finds those.
        """
        from anyprobe.probes.scripts import current

        module = types.ModuleType(NAME)
        module.__file__ = self.path
        sys.modules[NAME] = module
        sys.argv = [self.path, *self.arguments]
        folder = os.path.dirname(os.path.abspath(self.path))
        if folder not in sys.path:
            sys.path.insert(0, folder)
        opened = cast("Session", session)
        if not current.is_there_for_scripts():
            stack.enter_context(current.for_script(opened))
        try:
            with current.entered(opened):
                exec(self.code, module.__dict__)  # noqa: S102 - running it is what the user asks for
        except KeyboardInterrupt:
            return  # the session ends like any other, with results
        except (AnyprobeError, SystemExit) as error:
            raise self._placed(error) from None
        except Exception as error:  # noqa: BLE001 - the user's, whatever it is
            raise UsageError(self._traceback(error)) from None

    def run_with(self, names: dict[str, object]) -> None:
        """Run it with some names besides its own, which it finds again the next time."""
        names["kept"] = self.kept
        try:
            exec(self.code, {"__name__": NAME, "__file__": self.path, **names})  # noqa: S102 - the user asks for it
        except AnyprobeError as error:
            raise self._placed(error) from None
        except Exception as error:  # noqa: BLE001 - the user's, whatever it is
            raise UsageError(self._traceback(error)) from None

    def _placed(self, error: BaseException) -> BaseException:
        """Return an error that says where in the script it came from, if it does not say so itself."""
        if not isinstance(error, UsageError) or (isinstance(error, HandlerError) and error.file):
            return error
        frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename == self.path]
        return UsageError(f"{self.path}:{frames[-1].lineno}: {error}") if frames else error

    def _traceback(self, error: Exception) -> str:
        """Return what Python prints of an exception, from the script's first frame on."""
        told = traceback.TracebackException.from_exception(error)
        at = next((at for at, frame in enumerate(told.stack) if frame.filename == self.path), 0)
        told.stack = traceback.StackSummary.from_list(list(told.stack)[at:])
        return "the script failed\n" + "".join(told.format()).rstrip()


def load(path: str, arguments: tuple[str, ...] = ()) -> Script:
    """Read and compile a script; ``-`` is standard input."""
    if path == STANDARD_INPUT:
        source, path = sys.stdin.read(), "<stdin>"
        # handlers are compiled from their source, which Python looks up here
        linecache.cache[path] = (len(source), None, source.splitlines(keepends=True), path)
    else:
        try:
            with open(path, encoding="utf-8") as file:
                source = file.read()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise click.FileError(path, reason) from error
    try:
        return Script(path, compile(source, path, "exec", dont_inherit=True), arguments)
    except SyntaxError as error:
        text = (error.text or "").rstrip("\n")
        raise HandlerError(
            error.msg, file=path, line=error.lineno or 0, column=error.offset or 1, source=text
        ) from None
    except ValueError as error:  # a NUL
        raise UsageError(f"{path}: {error}") from None


def rehearse(script: Script, session: "Session", function_start: int) -> "list[RehearsedHandler]":
    """Run a script without placing anything; return its handlers that would run in the function at an address."""
    from anyprobe.probes.rehearsal import Rehearsal

    rehearsal = Rehearsal(session)
    with ExitStack() as stack:
        script.run(stack, cast("Session", rehearsal))
    return [
        each
        for each in rehearsal.handlers
        if any(_start(site) == function_start for spec in each.specs for site in session.resolve(spec)[0])
    ]


def _start(site: "ResolvedSite") -> int:
    return site.object.runtime(site.function.start)
