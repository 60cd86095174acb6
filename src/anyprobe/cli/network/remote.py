"""A command on several hosts at once, by SSH: what each answers, how its clock differs, and why there is no answer."""

import asyncio
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import click

from anyprobe.cli.network.sending import Unfit
from anyprobe.cli.terminal import output
from anyprobe.core.errors import UsageError

if TYPE_CHECKING:
    import asyncssh

    from anyprobe.cli.network.sending import Parcel

PATIENCE = 60.0
"""Seconds that hosts have for their results, once they were asked to end."""
CONNECTING = 20.0
"""Seconds that a host has for answering at all."""
LOOKS_AT_CLOCKS = 5
NO_COMMAND = 127
"""The status of a shell that finds no command of a name."""
MISSING = "no anyprobe there; --remote COMMAND says how it is called"
_CLOCK = "exec sh -c 'while read -r _; do date +%s%N; done'"
_HOST = re.compile(
    r"(?:(?P<user>[^@\s]+)@)?(?P<name>\[[0-9a-fA-F:.%\w]+\]|[^\s:@\[\]/-][^\s:@\[\]/]*)(?::(?P<port>\d{1,5}))?"
)


class Host(NamedTuple):
    """A host as the command line names it; what it does not say is as ``~/.ssh/config`` has it."""

    text: str
    name: str
    user: str | None
    port: int | None

    @classmethod
    def of(cls, text: str) -> Self:
        """Return the host that a text names."""
        found = _HOST.fullmatch(text)
        if found is None or not 0 < int(found["port"] or 22) < 1 << 16:
            raise click.UsageError(f"{text!r} is no host: name, user@name, name:port, [::1]:port")
        return cls(text, found["name"].strip("[]"), found["user"], int(found["port"]) if found["port"] else None)


@dataclass(slots=True)
class Answer:
    """What has come back from a host."""

    host: str
    archive: bytes = b""
    status: int | None = None
    """The exit status of anyprobe there; None where that is not known."""
    lost: str = ""
    """Why there are no results; empty where there are."""
    offset_s: float | None = None
    """By how much the host's clock is ahead of this machine's; None: that is not known."""
    error_s: float | None = None
    """By how much that may be wrong: half of the time that question and answer took."""

    @property
    def clock(self) -> str:
        """How the host's clock differs, in words."""
        if self.offset_s is None or self.error_s is None:
            return "how its clock differs is not known"
        if abs(self.offset_s) <= self.error_s:
            return f"its clock differs by less than {1e3 * (abs(self.offset_s) + self.error_s):.3g} ms"
        side = "ahead" if self.offset_s > 0 else "late"
        shown = f"{abs(self.offset_s):,.3f} s" if abs(self.offset_s) >= 1 else f"{1e3 * abs(self.offset_s):.4g} ms"
        return f"its clock is {shown} {side}, ± {1e3 * self.error_s:.2g} ms"

    def lose(self, why: str) -> None:
        """Take note that there are no results."""
        self.archive, self.lost = b"", why


def ask(
    hosts: Sequence[Host],
    command: str,
    *,
    quiet: bool,
    lines: Callable[[str, str], None] | None = None,
    parcel: "Parcel | None" = None,
) -> tuple[list[Answer], bool]:
    """Run a command on hosts until it has ended on all of them; return the answers, and whether Ctrl-C has ended it.

    Args:
        hosts: where.
        command: for the shell there; it ends when its standard input does, and writes its status, the size of an
            archive and the archive.
        quiet: whether what it writes to standard error is not shown.
        lines: instead of an archive it writes lines, of which each is given with its host to this.
        parcel: what hosts are to have before.
    """
    try:
        import asyncssh  # noqa: F401 - whether it is there
    except ImportError:
        raise UsageError("-H needs asyncssh: pip install 'anyprobe[hosts]'") from None
    return asyncio.run(_Hosts(command, quiet=quiet, lines=lines, parcel=parcel).ask(hosts))


class _Hosts:
    """The connections of one command."""

    def __init__(
        self, command: str, *, quiet: bool, lines: Callable[[str, str], None] | None, parcel: "Parcel | None"
    ) -> None:
        self._command, self._quiet, self._lines, self._parcel = command, quiet, lines, parcel
        self._stop = asyncio.Event()
        self._signals: list[int] = []

    async def ask(self, hosts: Sequence[Host]) -> tuple[list[Answer], bool]:
        """Ask all hosts at once."""
        loop = asyncio.get_running_loop()
        answers = [Answer(each.text) for each in hosts]
        tasks = [asyncio.create_task(self._ask(*each)) for each in zip(hosts, answers, strict=True)]

        def remember(number: int) -> None:
            """Ask all to end at the first signal, and wait no longer at the second one."""
            self._signals.append(number)
            self._stop.set()
            if len(self._signals) > 1:
                for each in tasks:
                    each.cancel()

        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, remember, number)
        running: set[asyncio.Task[Any]] = set(tasks)
        stopping = asyncio.create_task(self._stop.wait())
        while running and not self._stop.is_set():
            _, running = await asyncio.wait({*running, stopping}, return_when=asyncio.FIRST_COMPLETED)
            running.discard(stopping)
        stopping.cancel()
        if running:
            await asyncio.wait(running, timeout=PATIENCE)
        for task in tasks:
            task.cancel()
        for answer, ended in zip(answers, await asyncio.gather(*tasks, return_exceptions=True), strict=True):
            if isinstance(ended, asyncio.CancelledError):
                answer.lose("it has sent no results since it was asked to end")
            elif isinstance(ended, BaseException):
                raise ended
        return answers, signal.SIGINT in self._signals[:1]

    async def _ask(self, host: Host, answer: Answer) -> None:
        """Fill in the answer of a host, or why there is none."""
        import asyncssh

        given: dict[str, Any] = {"username": host.user, "port": host.port}
        given = {name: value for name, value in given.items() if value is not None}
        try:
            async with asyncssh.connect(
                host.name, connect_timeout=CONNECTING, keepalive_interval=5, keepalive_count_max=3, **given
            ) as connection:
                answer.offset_s, answer.error_s = await _clock(connection)
                if self._parcel is not None and (sent := await self._parcel.send(connection)) and not self._quiet:
                    output.say(f"{host.text}: anyprobe was sent, {sent / 1e6:.0f} MB", error=True)
                await self._run(connection, answer)
        except Unfit as reason:
            answer.lose(str(reason))
        except asyncssh.PermissionDenied:
            answer.lose("permission denied: no key that it takes")
        except asyncssh.HostKeyNotVerifiable:
            answer.lose("its key is not among the known hosts; 'ssh' to it once")
        except (asyncssh.Error, asyncssh.ConfigParseError) as error:
            answer.lose(f"the connection was lost: {error}")
        except TimeoutError:
            answer.lose(f"no answer within {CONNECTING:.0f} s")
        except asyncio.IncompleteReadError:
            answer.lose("the connection was lost")
        except OSError as error:
            answer.lose(error.strerror or str(error))

    async def _run(self, connection: "asyncssh.SSHClientConnection", answer: Answer) -> None:
        async with connection.create_process(self._command, encoding=None) as process:
            saying = asyncio.create_task(self._say(answer.host, process.stderr))
            stopping = asyncio.create_task(self._end(process.stdin))
            try:
                if self._lines is not None:
                    await self._take_lines(process, answer, self._lines)
                    return
                head = (await process.stdout.readuntil(b"\n")).split()
                answer.status, size = int(head[0]), int(head[1])
                answer.archive = await process.stdout.readexactly(size)
            except ValueError:
                answer.lose("its shell has written what is no answer of anyprobe's")
            finally:
                await asyncio.wait([saying], timeout=0.5)  # a command that runs on there may hold standard error
                stopping.cancel()
                saying.cancel()
                process.close()
        if not answer.archive and not answer.lost:
            ended = f"anyprobe has ended there with status {answer.status} and without results"
            answer.lose(MISSING if answer.status == NO_COMMAND else ended)

    async def _take_lines(
        self, process: "asyncssh.SSHClientProcess[bytes]", answer: Answer, show: Callable[[str, str], None]
    ) -> None:
        """Hand on the lines of a host as they come, until its command has ended."""
        if not self._quiet:
            output.say(f"{answer.host}: {answer.clock}", error=True)
        async for line in process.stdout:
            show(answer.host, line.decode(errors="replace").rstrip("\n"))
        await process.wait()
        answer.status = process.exit_status
        if answer.status is None:
            answer.lose("the connection was lost")
        elif answer.status == NO_COMMAND:
            answer.lose(MISSING)
        elif answer.status and not self._stop.is_set():
            answer.lose(f"anyprobe has ended there with status {answer.status}")

    async def _end(self, stdin: "asyncssh.SSHWriter[bytes]") -> None:
        await self._stop.wait()
        stdin.write_eof()

    async def _say(self, host: str, stderr: "asyncssh.SSHReader[bytes]") -> None:
        """Print what the command there writes to standard error, and the command that it starts to either."""
        async for line in stderr:
            if line.strip() and not self._quiet:
                output.say(f"{host}: {line.decode(errors='replace').rstrip()}", error=True)


async def _clock(connection: "asyncssh.SSHClientConnection") -> tuple[float | None, float | None]:
    """Return by how much a host's clock is ahead, and by how much that may be wrong: of the quickest answer."""
    found: list[tuple[float, float]] = []
    async with connection.create_process(_CLOCK) as process:
        for _ in range(LOOKS_AT_CLOCKS):
            before, ticks = time.time(), time.perf_counter()
            process.stdin.write("\n")
            line = (await process.stdout.readline()).strip()
            error = (time.perf_counter() - ticks) / 2
            if not re.fullmatch(r"\d{16,20}", line):  # this date knows no nanoseconds
                return None, None
            found.append((error, int(line) / 1e9 - before - error))
        process.stdin.write_eof()
    error, offset = min(found)
    return offset, error
