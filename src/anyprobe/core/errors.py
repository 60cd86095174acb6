"""The whole error tree on one page.

``UsageError``: the user's mistake (exit status 2). ``TargetError``: the target or the machine does not permit it
(exit status 1). ``InternalError``: our bug (exit status 3).
"""

from anyprobe.core.refusal import Refusal


class AnyprobeError(Exception):
    """Anything that anyprobe raises on purpose."""

    exit_status = 3


class UsageError(AnyprobeError):
    """The command line, a spec or an argument is wrong."""

    exit_status = 2


class SpecError(UsageError):
    """A probe spec that cannot be read or that matches nothing; ``position`` and ``length`` point at the part."""

    def __init__(
        self, spec: str, position: int, message: str, nearest: tuple[str, ...] = (), *, length: int = 1
    ) -> None:
        """Keep the parts; the text has the spec, a caret and the nearest names."""
        self.spec, self.position, self.length = spec, position, max(length, 1)
        self.message, self.nearest = message, nearest
        lines = [message, "  " + spec, "  " + " " * position + "^" * self.length]
        if nearest:
            lines.append("nearest: " + ", ".join(nearest))
        super().__init__("\n".join(lines))


class SourceError(UsageError):
    """A text of the user's that cannot be compiled or read: where, what is wrong, and what to write instead."""

    def __init__(
        self, message: str, *, file: str = "", line: int = 0, column: int = 0, source: str = "", instead: str = "",
        said: str = "",
    ) -> None:  # fmt: skip
        """Keep the parts; ``column`` counts from 1, the text has the source line with a caret under it.

        ``said`` is what another program says, whose words stand below.
        """
        self.message, self.file, self.line, self.column = message, file, line, column
        self.source, self.instead = source, instead
        lines = [f"{file}:{line}:{column}: {message}" if file else message]
        if source:
            lead = "".join("\t" if character == "\t" else " " for character in source[: max(column - 1, 0)])
            lines += ["  " + source, "  " + lead + "^"]
        if instead:
            lines.append("instead: " + instead)
        lines += ["  " + each for each in said.splitlines()]
        super().__init__("\n".join(lines))


class HandlerError(SourceError):
    """A handler that cannot be compiled."""


class Interrupted(AnyprobeError):  # noqa: N818 - an event, not a mistake
    """The user asked for the end while a change was prepared; nothing of the change was made."""

    exit_status = 1


class TargetError(AnyprobeError):
    """The target's or the machine's state does not permit it."""

    exit_status = 1


class TargetExited(TargetError):  # noqa: N818 - an event, not a mistake
    """The target is gone. ``status`` is its wait status where that can be known (children only), else ``None``.

    ``became`` is the program that it has executed, where that is how the probed one has ended.
    """

    def __init__(self, pid: int, status: int | None = None, became: str = "") -> None:
        """Keep who and how."""
        how = f"has executed {became}, where there are no probes" if became else "has exited"
        super().__init__(f"process {pid} {how}")
        self.pid, self.status, self.became = pid, status, became


class NoSuchProcess(TargetError):  # noqa: N818
    """There is no process with this pid."""


class UnsupportedTarget(TargetError):  # noqa: N818
    """A process that anyprobe cannot probe, and why: zombie, kernel thread, 32-bit, itself."""


class PermissionDenied(TargetError):  # noqa: N818
    """The kernel forbids tracing the target. ``rule`` says which rule, ``remedy`` what would help."""

    def __init__(self, rule: str, detail: str, remedy: str) -> None:
        """Keep the parts."""
        super().__init__(f"{detail} ({rule}); {remedy}")
        self.rule, self.detail, self.remedy = rule, detail, remedy


class StopTimeout(TargetError):  # noqa: N818
    """Not all threads could be stopped in time; everything was undone."""


class ThreadInside(StopTimeout):
    """A change was to be made while no thread is inside of some functions, and one was; nothing was changed."""

    def __init__(self, tid: int, text: str, function: str = "") -> None:
        """Keep which thread, and the function, where its stack is known as far as that."""
        super().__init__(text)
        self.tid, self.function = tid, function


class RemoteCallFailed(TargetError):  # noqa: N818
    """A system call that anyprobe made in the target failed. ``errno`` is the target's."""

    def __init__(self, name: str, errno: int, detail: str = "") -> None:
        """Keep the call's name and error number."""
        import os
        from errno import errorcode

        why = [os.strerror(errno), detail or _REMEDIES.get((name, errorcode.get(errno, "")), "")]
        super().__init__(f"{name} in the target failed: {': '.join(filter(None, why))}")
        self.name, self.errno = name, errno


_REMEDIES = {
    ("mmap", "ENOMEM"): "its limits on memory or mappings are reached; raise RLIMIT_AS or RLIMIT_DATA (prlimit --pid), "
    "or vm.max_map_count",
    ("mmap", "EAGAIN"): "it locks all its memory (mlockall); raise RLIMIT_MEMLOCK (prlimit --pid)",
    ("memfd_create", "EMFILE"): "it has as many open files as it may; raise RLIMIT_NOFILE (prlimit --pid)",
    ("memfd_create", "EACCES"): "memory files may not be executable there; set vm.memfd_noexec to 0 or 1",
}
"""What to do about what does not permit our calls."""


class SessionConflict(TargetError):  # noqa: N818
    """Another anyprobe session holds the target."""


class SiteRefused(TargetError):  # noqa: N818
    """A probe that the user demanded cannot be placed."""

    def __init__(self, refusal: Refusal) -> None:
        """Keep the refusal."""
        super().__init__(str(refusal))
        self.refusal = refusal


class KprobeError(TargetError):
    """A kprobe that cannot be registered: the kernel's error number and why."""

    def __init__(self, errno: int, detail: str, refusal: Refusal | None = None) -> None:
        """Keep the positive error number, the reason, and the verdict if that is the reason."""
        from errno import errorcode

        # by its name: what EILSEQ is called elsewhere has to do with characters
        super().__init__(f"{errorcode.get(errno, errno)}: {detail}")
        self.errno, self.detail, self.refusal = errno, detail, refusal


class KernelRefused(TargetError):  # noqa: N818
    """The kernel does not do what it was asked for. ``errno`` says why, ``detail`` what is missing."""

    def __init__(self, what: str, errno: int, detail: str = "") -> None:
        """Keep the error number; ``what`` completes "the kernel does not"."""
        import os
        from errno import errorcode

        why = [f"{os.strerror(errno)} ({errorcode.get(errno, errno)})", detail]
        super().__init__(f"the kernel does not {what}: {': '.join(filter(None, why))}")
        self.what, self.errno, self.detail = what, errno, detail


class OutputFailed(AnyprobeError):  # noqa: N818 - the surroundings', not anyprobe's
    """Results cannot be written where they were to go. ``errno`` says why."""

    exit_status = 1

    def __init__(self, message: str, errno: int | None = None) -> None:
        """Keep the error number."""
        super().__init__(message)
        self.errno = errno


class InternalError(AnyprobeError):
    """A broken invariant of anyprobe's; splices are undone before it is raised."""

    exit_status = 3
