"""What ``inject --explore`` does: each call site of a function fails once, one run of the command each."""

import json
import os
import shlex
import signal
import stat
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import click

from anyprobe.cli.terminal import output
from anyprobe.core.errors import TargetError
from anyprobe.core.printable import printable

_PATIENCE = 10.0
"""Seconds that any run may take besides ten times what the command takes by itself."""
_LONGEST, _LONGER = 600.0, 3
_SHOWN = 70
"""Characters of the last line of standard error that are shown."""
_SIGNALS = 128
_FAILS = ("--return", "--errno", "--delay")


class Ending(NamedTuple):
    """How a run has ended."""

    status: int | None
    """As shells have it: 128 and more for signals; None where it did not end in time."""
    printed: str
    """What went to standard output."""
    complained: str
    """What went to standard error; addresses and process ids may be in it, so it is for people alone."""
    seconds: float = 0.0

    @property
    def shown(self) -> str:
        """How it has ended, in words."""
        if self.status is None:
            return "hangs"
        if self.status > _SIGNALS:
            with suppress(ValueError):
                return f"killed by {signal.Signals(self.status - _SIGNALS).name}"
        return f"exit {self.status}"


class Verdict(NamedTuple):
    """What became of one call site."""

    site: str
    number: int
    """The number of the first call from there, which has failed."""
    calls: int
    outcome: str
    detail: str
    command: str
    """What repeats it."""


@dataclass
class Exploration:
    """The runs of one command."""

    arguments: Sequence[str]
    """Options and specs of ``anyprobe inject`` that say what fails, and how."""
    frames: int
    program: Sequence[str]
    quiet: bool = False
    repeats: bool = True
    """Whether the command prints the same each time, so that other output means something."""
    verdicts: list[Verdict] = field(default_factory=list)

    def run(self, tell: Callable[[Verdict], None]) -> Ending:
        """Run them all, and return how the command ends without faults."""
        with tempfile.TemporaryDirectory(prefix="anyprobe-explore-") as folder:
            report = Path(folder) / "report.json"
            before = self._plain()
            patience = 10 * before.seconds + _PATIENCE
            first = self._once(["--sites", "--frames", str(self.frames)], report, patience * _LONGER, fails=False)
            sites = _document(report).get("call_sites")
            if sites is None:
                raise TargetError(f"the first run has left no list of call sites: {first.complained.strip()[-300:]}")
            self.repeats = (before.status, before.printed) == (first.status, first.printed)
            for at, site in enumerate(sites, 1):
                with output.progress(f"call site {at} of {len(sites)}", quiet=self.quiet):
                    after = self._once(["--nth", str(site["first"])], report, patience)
                    verdict = self._verdict(site, before, after, report)
                self.verdicts.append(verdict)
                tell(verdict)
        return before

    def _command(self, more: Sequence[str], *, fails: bool = True) -> list[str]:
        given = self.arguments if fails else [each for each in self.arguments if not each.startswith(_FAILS)]
        given = ["inject", "--unsafe", *given, *more, "--no-follow", "--children", "free"]
        return [*given, "--", *self.program]

    def _once(self, more: Sequence[str], report: Path, patience: float, *, fails: bool = True) -> Ending:
        """Run the command with anyprobe, for so many seconds at most."""
        report.unlink(missing_ok=True)
        command = self._command(more, fails=fails)
        at = command.index("--")
        given = ["--json", "--quiet", "--exit-status", "--kill", "--for", f"{patience:.0f}", "-o", str(report)]
        ended = _ending([sys.executable, "-m", "anyprobe", *command[:at], *given, *command[at:]], patience + _PATIENCE)
        if _document(report).get("duration_s", 0) >= int(patience):
            return ended._replace(status=None)
        return ended

    def _plain(self) -> Ending:
        """Run the command as it is."""
        return _ending(list(self.program), _LONGEST)

    def _verdict(self, site: dict[str, Any], before: Ending, after: Ending, report: Path) -> Verdict:
        made = _document(report).get("injected", [])
        lines = [each for each in after.complained.splitlines() if not each.startswith("anyprobe:")]
        detail = printable(lines[-1][-_SHOWN:]) if lines else ""
        if after.status is None or after.status != before.status:
            outcome = after.shown
        elif not made:
            outcome, detail = "not made", "the program has made fewer calls this time"
        elif self.repeats and after.printed != before.printed:
            outcome = "other output"
        else:
            outcome = "the same"
        if made and " < ".join(made[0]["stack"][1 : self.frames + 1]) != site["site"]:
            detail = f"call {site['first']} came from elsewhere this time, {made[0]['stack'][1]}"
        command = shlex.join(["anyprobe", *self._command(["--nth", str(site["first"])])])
        return Verdict(site["site"], site["first"], site["calls"], outcome, detail, command)


def explore(
    specs: Sequence[str], given: Mapping[str, object], frames: int, program: Sequence[str], settings: Mapping[str, Any]
) -> int:
    """Have each call site of some functions fail, and show what becomes of the command."""
    if not program:
        raise click.UsageError("--explore runs a command again and again: anyprobe inject SPEC --explore -- COMMAND")
    words = [f"{name}={value}" for name, value in given.items() if value is not None]
    exploration = Exploration([*specs, *words], frames, program, settings["quiet"])
    as_json = settings["format"] == "json"
    with output.results(settings["output"], program_owns_output=False) as stream:

        def tell(verdict: Verdict) -> None:
            if not as_json:
                stream.write(_line(verdict) + "\n")
                stream.flush()

        before = exploration.run(tell)
        if as_json:
            document = {"without_faults": before.shown, "repeats": exploration.repeats}
            output.write_json({**document, "explored": [each._asdict() for each in exploration.verdicts]}, stream)
        else:
            kinds = Counter(each.outcome for each in exploration.verdicts)
            told = ", ".join(f"{count} {outcome}" for outcome, count in kinds.most_common())
            total = len(exploration.verdicts)
            stream.write(f"{total} call sites{': ' * bool(told)}{told}; without faults: {before.shown}\n")
            if not exploration.repeats:
                output.warn("the command prints something else each time, so other output was not looked for")
    return 0


def _line(verdict: Verdict) -> str:
    found = f"{verdict.outcome:<18} {printable(verdict.site)} ({verdict.calls:,} call{'s' * (verdict.calls > 1)})"
    found += f": {verdict.detail}" * bool(verdict.detail)
    return found if verdict.outcome == "the same" else f"{found}\n{'':18} {verdict.command}"


def _ending(command: list[str], patience: float) -> Ending:
    """Run a command to its end, or until it has taken too long; standard input that is a file is read anew."""
    began = time.monotonic()
    path = Path("/dev/stdin" if stat.S_ISREG(os.fstat(0).st_mode) else os.devnull)
    with (
        path.open("rb") as given,
        subprocess.Popen(
            command, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
        ) as process,
    ):
        try:
            printed, complained = process.communicate(timeout=patience)
            status: int | None = process.returncode
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            printed, complained = process.communicate()
            status = None
    if status is not None and status < 0:  # as shells, and --exit-status, say it
        status = 128 - status
    told = complained.decode(errors="replace")
    return Ending(status, printed.decode(errors="replace"), told, time.monotonic() - began)


def _document(report: Path) -> dict[str, Any]:
    """Return what a run has written, nothing where it has failed before."""
    try:
        found: dict[str, Any] = json.loads(report.read_text())
    except (OSError, ValueError):
        return {}
    return found
