"""Specs of probes in the kernel: text to parts, with a caret where it cannot be read."""

import re
from collections.abc import Iterable
from enum import StrEnum
from typing import Literal, NamedTuple, cast

from anyprobe.core.errors import SpecError
from anyprobe.probes.specs.parts import Part, split

Name = Literal["entry", "return", "offset", "insn", "block", "call"]
EACH = frozenset({"insn", "block", "call"})
"""Names that mean many instructions of a function: each, each first one of a basic block, each call."""
_EVERY = "*"
"""Stands for ``insn``."""
_HEX = re.compile(r"(?:0[xX])?[0-9a-fA-F]+")
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|[0-9]+")
_SOURCE = re.compile(r"[\w./-]+\.[chS]")
_BRACKETS = re.compile(r"[*?\[]")
_EXAMPLES = ("kernel::vfs_read:entry", "tracepoint:sched:sched_switch", "syscall::openat:entry")
_DIALECT: dict[str, tuple[str, Name]] = {
    "kprobe": ("kprobe", "entry"), "k": ("kprobe", "entry"), "kretprobe": ("kprobe", "return"),
    "kr": ("kprobe", "return"), "fentry": ("fentry", "entry"), "kfunc": ("fentry", "entry"), "f": ("fentry", "entry"),
    "fexit": ("fentry", "return"), "kretfunc": ("fentry", "return"), "fr": ("fentry", "return"),
}  # fmt: skip
"""bpftrace's providers: the mechanism that each demands, and the end of the function."""
_CALLED = {
    ("kprobe", False): "kprobe",
    ("kprobe", True): "kretprobe",
    ("fentry", False): "fentry",
    ("fentry", True): "fexit",
}
"""What the provider is called by which a mechanism is demanded, at returns or elsewhere."""
_EVENTS = {
    "interval": "interval", "i": "interval", "profile": "profile", "p": "profile",
    "software": "software", "s": "software", "hardware": "hardware", "h": "hardware",
}  # fmt: skip
"""Providers of timers and events, with bpftrace's short forms."""
_IN_FILES: dict[str, tuple[str, Name]] = {
    "uprobe": ("uprobe", "entry"), "u": ("uprobe", "entry"), "uretprobe": ("uprobe", "return"),
    "ur": ("uprobe", "return"), "usdt": ("usdt", "entry"), "U": ("usdt", "entry"),
}  # fmt: skip
"""Providers of places in files. Elsewhere they mean places in one process, so ``is_kernel`` leaves them out."""


class Provider(StrEnum):
    """What a probe in the kernel is at."""

    FUNCTION = "kernel"
    TRACEPOINT = "tracepoint"
    RAW = "rawtracepoint"
    SYSCALL = "syscall"
    INTERVAL = "interval"
    PROFILE = "profile"
    SOFTWARE = "software"
    HARDWARE = "hardware"
    UPROBE = "uprobe"
    USDT = "usdt"


class KernelSpec(NamedTuple):
    """A spec, read. ``module`` is a tracepoint's category; empty: any. ``mechanism``: demanded by the spec.

    Of a source line ``function`` is the file.

    Of timers and events ``module`` is the unit or the event, and ``function`` how often; see ``events``. Of places in
    files ``module`` is the file.
    """

    text: str
    provider: Provider
    module: Part
    function: Part
    name: Name
    offset: int = 0
    mechanism: str | None = None
    line: int = 0

    @property
    def is_glob(self) -> bool:
        """Whether it may mean several functions."""
        return not self.is_event and any(is_pattern(part.text) for part in (self.module, self.function))

    @property
    def is_in_file(self) -> bool:
        """Whether places in a file of programs are meant."""
        return self.provider.value in {"uprobe", "usdt"}

    @property
    def is_event(self) -> bool:
        """Whether a timer or an event is meant, not a place in the kernel."""
        return self.provider.value in _EVENTS

    @property
    def is_function(self) -> bool:
        """Whether it means functions of the kernel or system calls."""
        return self.provider in {Provider.FUNCTION, Provider.SYSCALL}

    @property
    def tells_address(self) -> bool:
        """Whether a hit's address is known, by whichever mechanism it is seen."""
        return self.provider is Provider.FUNCTION

    @property
    def has_return(self) -> bool:
        """Whether what it means returns."""
        return self.is_function or self.provider is Provider.UPROBE

    def at(self, name: Name, offset: int = 0) -> "KernelSpec":
        """Return the same functions at another place of theirs; results call it as this one is written."""
        return self._replace(name=name, offset=offset)

    def end(self, name: Name) -> "KernelSpec":
        """Return the spec of an end of the same functions, in full."""
        if self.line:
            raise self.error(self.function, "a line has no ends; name the function")
        end = self.at(name)
        text = end.canonical(self.module.text, self.function.text)
        module = text.index(":") + 1
        function = text.index(self.function.text, module + len(self.module))
        return end._replace(
            text=text,
            module=Part(self.module.text, module),
            function=Part(self.function.text, function),
        )

    def canonical(self, module: str, function: str) -> str:
        """Return the full form for one function, tracepoint or system call that it means."""
        if self.provider is Provider.TRACEPOINT:
            return f"tracepoint:{module}:{function}"
        if self.provider is Provider.RAW:
            return f"rawtracepoint:{function}"
        if self.mechanism is not None:
            inside = f"+{self.offset:#x}" if self.name == "offset" else ""
            where = f"{module}:" if module else ""
            return f"{_CALLED[self.mechanism, self.name == 'return']}:{where}{function}{inside}"
        if self.is_event or self.provider is Provider.USDT:
            return f"{self.provider.value}:{module}:{function}"
        if self.provider is Provider.UPROBE:
            inside = f"+{self.offset:#x}" if self.name == "offset" else ""
            return f"{'uretprobe' if self.name == 'return' else 'uprobe'}:{module}:{function}{inside}"
        name = f"{self.offset:#x}" if self.name == "offset" else self.name
        return (
            f"syscall::{function}:{name}" if self.provider is Provider.SYSCALL else f"kernel:{module}:{function}:{name}"
        )

    def error(self, part: Part, message: str, nearest: tuple[str, ...] = ()) -> SpecError:
        """Return an error with the caret under a part."""
        return SpecError(self.text, part.position, message, nearest, length=len(part))


def is_pattern(text: str) -> bool:
    """Return whether a part may mean several names."""
    return _BRACKETS.search(text) is not None


def is_kernel(text: str, *, short: bool = True) -> bool:
    """Return whether a spec means something in the kernel, by its first part.

    Without ``short``, only if no module is likely to have that name: ``k:main`` is in a program ``k`` then.
    """
    head, colon, _ = text.strip().partition(":")
    if not short and (len(head) < 3 or (head in _EVENTS and text.count(":") < 2)):
        return False
    providers = {each.value for each in Provider} - _IN_FILES.keys()
    return bool(colon) and (head in providers or head in {"t", "rt", *_DIALECT, *_EVENTS})


def is_in_any_process(text: str) -> bool:
    """Return whether a spec means places in a file, in all processes, if no process is chosen."""
    return text.strip().partition(":")[0] in _IN_FILES and text.count(":") > 1


def parse(text: str) -> KernelSpec:
    """Read a spec of the kernel in any of the forms; raise ``SpecError`` with a caret where it cannot be read."""
    stripped = text.strip()
    if not stripped:
        raise SpecError(text, 0, "the spec is empty", _EXAMPLES)
    lead = len(text) - len(text.lstrip())
    head, *rest = split(text, lead, lead + len(stripped))
    if not rest:
        message = "a provider is missing before the name"
        raise SpecError(text, head.position, message, (f"kernel::{head.text}:entry",), length=len(head))
    if head.text in {"tracepoint", "t"}:
        return _tracepoint(text, rest)
    if head.text in {"rawtracepoint", "rt"}:
        return KernelSpec(text, Provider.RAW, _none(rest[-1]), _last(text, rest, 2), "entry")
    if head.text in _DIALECT:
        return _bpftrace(text, head, rest)
    if head.text == Provider.FUNCTION and len(rest) == 3 and _is_line(*rest[1:]):
        return _line(text, rest[0], *rest[1:])
    if len(rest) == 1 and _is_line(head, rest[0]):
        return _line(text, _none(head), head, rest[0])
    if head.text in {Provider.FUNCTION, Provider.SYSCALL}:
        return _four(text, head, rest)
    if head.text in _EVENTS:
        often = _last(text, rest, 2) if len(rest) > 1 and rest[-1] else rest[1] if len(rest) == 2 else _none(rest[0])
        return KernelSpec(text, Provider(_EVENTS[head.text]), _required(text, rest[0]), often, "entry")
    if head.text in _IN_FILES:
        return _in_file(text, head, rest)
    raise SpecError(text, head.position, f"no provider {head.text!r} in the kernel", _EXAMPLES, length=len(head))


def parsed(specs: "Iterable[str | KernelSpec]") -> list[KernelSpec]:
    """Return the values of specs that a user has given as texts, or that are read already."""
    return [parse(each) if isinstance(each, str) else each for each in specs]


def of_function(module: str, name: str, end: Name = "entry", offset: int = 0) -> KernelSpec:
    """Return the spec of a function of the kernel, or of an instruction of it."""
    function = KernelSpec("", Provider.FUNCTION, Part(module, 0), Part(name, 0), end, offset)
    at = len("kernel:")
    text = function.canonical(module, name)
    return function._replace(text=text, module=Part(module, at), function=Part(name, at + len(module) + 1))


def _is_line(file: Part, number: Part) -> bool:
    """Return whether two parts are a source file and a line in it."""
    return bool(_SOURCE.fullmatch(file.text)) and number.text.isdecimal() and int(number.text) > 0


def _line(text: str, module: Part, file: Part, number: Part) -> KernelSpec:
    """Read ``fs/read_write.c:463``, alone or as ``kernel::fs/read_write.c:463``."""
    if module and module.text != "vmlinux":
        message = "lines are known of the kernel itself, not of modules"
        raise SpecError(text, module.position, message, ("vmlinux",), length=len(module))
    return KernelSpec(text, Provider.FUNCTION, module, file, "entry", line=int(number.text))


def _none(at: Part) -> Part:
    return Part("", at.position)


def _last(text: str, parts: list[Part], most: int) -> Part:
    """Return the part with the name, of which there may be some before that say where it is."""
    if len(parts) > most:
        raise SpecError(text, parts[most].position, "more parts than this provider has", length=len(parts[most]))
    return _required(text, parts[-1])


def _required(text: str, part: Part) -> Part:
    if not part:
        raise SpecError(text, min(part.position, max(len(text) - 1, 0)), "a name is missing", _EXAMPLES)
    return part


def _tracepoint(text: str, parts: list[Part]) -> KernelSpec:
    name = _last(text, parts, 2)
    if len(parts) < 2:
        message = "a tracepoint has a category and a name"
        raise SpecError(text, name.position, message, ("tracepoint:sched:sched_switch",), length=len(name))
    return KernelSpec(text, Provider.TRACEPOINT, parts[0], name, "entry")


def _bpftrace(text: str, head: Part, parts: list[Part]) -> KernelSpec:
    """Read ``kprobe:[MODULE:]FUNCTION[+OFFSET]`` and its like."""
    function = _last(text, parts, 2)
    module = parts[0] if len(parts) == 2 else _none(function)
    mechanism, name = _DIALECT[head.text]
    spec = _suffixed(KernelSpec(text, Provider.FUNCTION, module, function, name, 0, mechanism))
    if spec.name == "offset" and (name, mechanism) != ("entry", "kprobe"):
        raise spec.error(function, f"{head.text} has no offset")
    return spec


def _in_file(text: str, head: Part, parts: list[Part]) -> KernelSpec:
    """Read ``uprobe:FILE:FUNCTION[+OFFSET]`` and ``usdt:FILE:[PROVIDER:]NAME``."""
    provider, name = _IN_FILES[head.text]
    if len(parts) < 2:
        example = "usdt:/usr/bin/python3:function__entry" if provider == "usdt" else f"{head.text}:/bin/bash:readline"
        message = f"a file and a {'marker' if provider == 'usdt' else 'function'} are wanted"
        raise SpecError(text, parts[0].position, message, (example,), length=len(parts[0]))
    if provider == "usdt":
        last = _last(text, parts, 3)
        marker = Part(":".join(part.text for part in parts[1:]), parts[1].position) if len(parts) == 3 else last
        return KernelSpec(text, Provider.USDT, _required(text, parts[0]), marker, name)
    spec = KernelSpec(text, Provider.UPROBE, _required(text, parts[0]), _last(text, parts, 2), name)
    if name == "entry" or "%" in spec.function.text:
        spec = _suffixed(spec)
    return spec


def _four(text: str, head: Part, rest: list[Part]) -> KernelSpec:
    """Read ``kernel:MODULE:FUNCTION:NAME`` and ``syscall::NAME:entry``, or the forms without the name."""
    provider = Provider(head.text)
    if len(rest) == 1:
        nearest = (f"{head.text}::{rest[0].text}:entry",)
        message = f"four parts are wanted ({head.text}:module:function:name); leave a part empty rather than out"
        raise SpecError(text, rest[0].position, message, nearest, length=len(rest[0]))
    if len(rest) > 3:
        raise SpecError(
            text, rest[3].position, "more than four parts (kernel:module:function:name)", length=len(rest[3])
        )
    module, function = rest[0], _required(text, rest[1])
    spec = KernelSpec(text, provider, module, function, "entry")
    if provider is Provider.SYSCALL and module:
        raise spec.error(module, "system calls have no module; leave it empty")
    if len(rest) == 2:
        spec = _suffixed(spec)
    elif rest[2].text not in {"", "entry"}:
        spec = _named(spec, rest[2])
    if spec.name in {"offset", *EACH} and provider is Provider.SYSCALL:
        raise spec.error(spec.function, "a system call has an entry and a return, no offsets")
    return spec


def _named(spec: KernelSpec, name: Part) -> KernelSpec:
    if name.text == "return":
        return KernelSpec(spec.text, spec.provider, spec.module, spec.function, "return")
    if name.text in EACH or name.text == _EVERY:
        each = cast("Name", "insn" if name.text == _EVERY else name.text)
        return KernelSpec(spec.text, spec.provider, spec.module, spec.function, each)
    if _HEX.fullmatch(name.text):
        return KernelSpec(spec.text, spec.provider, spec.module, spec.function, "offset", int(name.text, 16))
    message = f"no such name {name.text!r}: entry, return, insn, block, call or a hexadecimal offset"
    raise spec.error(name, message, ("entry", "return", "block"))


def _suffixed(spec: KernelSpec) -> KernelSpec:
    """Read ``vfs_read%return`` and ``vfs_read+0x1c``."""
    part = spec.function
    body, percent, suffix = part.text.partition("%")
    if percent:
        if suffix not in {"entry", "return"}:
            at = Part(suffix, part.position + len(body) + 1)
            raise spec.error(at, "after '%' stands entry or return", ("entry", "return"))
        if spec.mechanism is not None:
            raise spec.error(part, "the provider says already which end is meant")
        name = cast("Name", suffix)
        return KernelSpec(spec.text, spec.provider, spec.module, Part(body, part.position), name, 0, spec.mechanism)
    body, plus, digits = part.text.partition("+")
    if not plus:
        return spec
    if not _NUMBER.fullmatch(digits):
        at = Part(digits, part.position + len(body) + 1)
        raise spec.error(at, f"{digits!r} is not an offset (write 0x1c or 28)")
    offset = int(digits, 16 if digits[:2] in {"0x", "0X"} else 10)
    function = Part(body, part.position)
    return KernelSpec(spec.text, spec.provider, spec.module, function, "offset", offset, spec.mechanism)
