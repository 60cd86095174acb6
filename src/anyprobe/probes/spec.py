"""The grammar of probe specs: text to its parts, with the position of each for the caret of an error."""

import re
from dataclasses import dataclass, replace
from typing import NoReturn

from anyprobe.core.errors import SpecError

PROVIDERS = ("pid", "usdt", "kernel", "kprobe", "fentry", "tracepoint", "syscall")
_KERNEL = ("kernel", "kprobe", "kretprobe", "fentry", "fexit", "tracepoint", "syscall", "rawtracepoint")
_LATER = {"insn": "each instruction", "block": "each basic block", "call": "each call"}
_BPFTRACE = {"uprobe": "entry", "u": "entry", "uretprobe": "return", "ur": "return"}
_NAMES = ("entry", "return", *_LATER)
_HEX = re.compile(r"(?:0[xX])?[0-9a-fA-F]+")
_HEX_OR_DECIMAL = re.compile(r"0[xX][0-9a-fA-F]+|[0-9]+")
_KPROBE_EVENT = re.compile(r"^(?P<kind>[pr])(?P<active>\d*)(?P<event>:\S*)?\s+(?P<place>\S+)(?P<arguments>.*)$")
_LINE = re.compile(r"^(?P<file>[\w./+-]+\.(?:c|cc|cpp|cxx|C|h|hh|hpp|rs|go|S|s|f90|m)):(?P<line>\S*)$")
_PID = re.compile(r"^pid(\d*)$")


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a spec: its text and where it stands in the original."""

    text: str
    position: int

    def __len__(self) -> int:
        """Return the length of the text."""
        return len(self.text)

    def __bool__(self) -> bool:
        """Return whether there is any text."""
        return bool(self.text)


@dataclass(frozen=True, slots=True)
class Spec:
    """A probe spec, read. ``offset`` is set instead of a name where an instruction is meant."""

    text: str
    provider: str
    module: Part
    function: Part
    name: str
    """``entry``, ``return``, ``offset``, or the name of a USDT probe."""
    offset: int | None = None
    name_position: int = 0
    name_length: int = 1
    pid: int | None = None
    """The process that ``pid1234`` selects."""
    line: int | None = None
    """The line of ``file.c:120``; the file is in ``module``."""

    @property
    def is_absolute(self) -> bool:
        """Whether the offset counts from the module's start: the function part is ``-``."""
        return self.function.text == "-" and self.offset is not None

    def canonical(self, module: str, function: str, offset: int | None = None) -> str:
        """Return the four-part form for one module and function that the spec matched."""
        offset = self.offset if offset is None else offset
        return f"{self.provider}:{module}:{function}:{self.name if offset is None else f'{offset:#x}'}"

    def error(self, part: Part, message: str, nearest: tuple[str, ...] = ()) -> SpecError:
        """Return an error with the caret under a part."""
        return SpecError(self.text, part.position, message, nearest, length=len(part))

    def name_error(self, message: str, nearest: tuple[str, ...] = ()) -> SpecError:
        """Return an error with the caret under the name or offset."""
        return SpecError(self.text, self.name_position, message, nearest, length=self.name_length)


def parse(text: str) -> Spec:
    """Read a spec in any of the forms; raise ``SpecError`` with a caret where it cannot be read."""
    stripped = text.strip()
    if not stripped:
        raise SpecError(text, 0, "the spec is empty", ("libc:malloc", "pid:libc:malloc:entry"))
    _refuse_odd_characters(text)
    lead = len(text) - len(text.lstrip())
    if re.match(r"[pr]\d*(?::\S*)?\s+\S", stripped):
        return _kprobe_event(text, lead)
    parts = _split(text, lead, lead + len(stripped))
    for part in parts:
        blank = re.search(r"\s", part.text)
        if blank and not _may_have_blanks(part.text):
            raise SpecError(text, part.position + blank.start(), "a blank within a spec; write each spec on its own")
    head = parts[0].text
    if len(parts) > 1 and (head in _BPFTRACE or (head == "usdt" and _looks_like_path(parts[1].text))):
        return _bpftrace(text, parts)
    return _dtrace(text, parts)


def _refuse_odd_characters(text: str) -> None:
    for at, character in enumerate(text):
        if not character.isprintable():
            raise SpecError(text, at, f"an unprintable character (U+{ord(character):04X})")


def _may_have_blanks(part: str) -> bool:
    """Return whether a part is a demangled name, in which blanks are usual: ``f(unsigned int) const``."""
    return any(character in part for character in "(<") or part.startswith("operator")


def _looks_like_path(part: str) -> bool:
    return "/" in part and not re.fullmatch(r"[^/]+/[^/]+", part)


def _split(text: str, start: int, end: int) -> list[Part]:
    """Split at single colons; ``::`` belongs to a demangled name if words join it, and inside brackets nothing splits.

    ``pid:libc::return`` and ``::malloc:`` are empty parts, ``ns::f`` is a name: only between a word and a word does
    ``::`` bind, and never where the parts before it are too few for a module (``pid::f``).
    """
    parts: list[Part] = []
    at = begin = start
    depth = 0
    while at < end:
        character = text[at]
        if character in "([{<":
            depth += character != "<" or not text[begin:at].endswith("operator")
        elif character in ")]}>" and depth:
            depth -= 1
        elif character == ":" and depth == 0:
            if _is_scope(text, begin, at, end, len(parts)):
                at += 2
                continue
            parts.append(Part(text[begin:at], begin))
            begin = at + 1
        at += 1
    if depth:
        unclosed = _first_unclosed(text, begin, end)
        raise SpecError(text, unclosed, f"this {text[unclosed]!r} is never closed")
    parts.append(Part(text[begin:end], begin))
    return parts


def _first_unclosed(text: str, begin: int, end: int) -> int:
    """Return where the outermost bracket that is never closed stands."""
    stack: list[int] = []
    for at in range(begin, end):
        if text[at] in "([{<":
            stack.append(at)
        elif text[at] in ")]}>" and stack:
            stack.pop()
    return stack[0] if stack else begin


def _is_scope(text: str, begin: int, at: int, end: int, before: int) -> bool:
    """Return whether the colon at ``at`` begins the ``::`` of a demangled name."""
    if text[at : at + 2] != "::" or text[at : at + 3] == ":::":
        return False
    left, right = text[begin:at], text[at + 2 : at + 3] if at + 2 < end else ""
    if not left or not (left[-1].isalnum() or left[-1] in "_>)}]*?") or not right:
        return False
    if not (right.isalpha() or right in "_~<{(*?$"):
        return False
    if before == 0 and (left in PROVIDERS or _PID.match(left)):
        return False  # pid::malloc:entry: an empty module
    following = text[at + 2 : end]
    if re.fullmatch(r"(?:entry|return|insn|block|call)", following):
        return False  # pid:libc::return: an empty function
    return not (before == 1 and _is_provider(text) and following.count(":") - 2 * following.count("::") == 1)


def _is_provider(text: str) -> bool:
    head = text.strip().partition(":")[0]
    return head in PROVIDERS or _PID.match(head) is not None


def _dtrace(text: str, parts: list[Part]) -> Spec:
    """Read DTrace's four parts or one of the short forms."""
    line = _LINE.match(text.strip())
    if line and len(parts) == 2 and not parts[1].text.startswith("0x"):
        return _source_line(text, parts)
    head = parts[0].text
    if len(parts) == 4:
        return _four(text, parts)
    if len(parts) > 4:
        extra = parts[4]
        raise SpecError(text, extra.position, "more than four parts (provider:module:function:name)", length=len(extra))
    if len(parts) == 3:
        return _three(text, parts)
    if len(parts) == 2:
        if head in PROVIDERS or _PID.match(head):
            _refuse_kernel(text, parts[0])
            raise SpecError(
                text,
                parts[1].position,
                "a provider needs four parts (provider:module:function:name)",
                (f"{head}::{parts[1].text}:entry",),
                length=len(parts[1]),
            )
        return _with_suffix(text, "pid", None, parts[0], parts[1])
    return _with_suffix(text, "pid", None, Part("", parts[0].position), parts[0])


def _three(text: str, parts: list[Part]) -> Spec:
    """Read ``module:function:name``; with a provider in front one part is missing."""
    head = parts[0]
    if head.text in PROVIDERS or _PID.match(head.text):
        _refuse_kernel(text, head)
        raise SpecError(
            text,
            parts[2].position,
            "three of four parts (provider:module:function:name); leave a part empty rather than out",
            (f"{head.text}:{parts[1].text}:{parts[2].text}:entry",),
            length=len(parts[2]),
        )
    return _named(text, "pid", None, head, parts[1], parts[2])


def _four(text: str, parts: list[Part]) -> Spec:
    """Read the canonical form."""
    head, module, function, name = parts
    _refuse_kernel(text, head)
    pid = _PID.match(head.text)
    if head.text == "usdt":
        raise _later(text, head, "USDT probes")
    if head.text and pid is None:
        known = tuple(each for each in PROVIDERS if each[:1] == head.text[:1]) or ("pid",)
        raise SpecError(text, head.position, f"no provider {head.text!r}", known, length=len(head))
    number = int(pid[1]) if pid and pid[1] else None
    return _named(text, "pid", number, module, function, name)


def _refuse_kernel(text: str, head: Part) -> None:
    if head.text in _KERNEL:
        raise _later(text, head, "probes in the kernel")


def _later(text: str, part: Part, what: str) -> SpecError:
    return SpecError(text, part.position, f"{what} are not supported yet", length=len(part))


def _named(text: str, provider: str, pid: int | None, module: Part, function: Part, name: Part) -> Spec:
    """Read the name part: entry, return, or a hexadecimal offset."""
    _check_glob(text, module)
    _check_glob(text, function)
    spec = Spec(
        text, provider, module, function, "entry", name_position=name.position, name_length=max(len(name), 1), pid=pid
    )
    if name.text in ("", "entry", "*") and function.text == "-":
        raise SpecError(
            text, function.position, "'-' stands for offsets in the module; the name must be a hexadecimal offset"
        )
    if name.text in ("", "entry"):
        return spec
    if name.text == "return":
        if function.text == "-":
            raise SpecError(text, name.position, "'-' has no returns; name the function", length=len(name))
        return replace(spec, name="return")
    if name.text in _LATER:
        raise SpecError(
            text,
            name.position,
            f"{name.text!r} ({_LATER[name.text]}) is not supported yet",
            ("entry", "return"),
            length=len(name),
        )
    if _HEX.fullmatch(name.text):
        return replace(spec, name="offset", offset=_offset(text, name.position, name.text, 16))
    _raise_bad_name(text, name)


def _raise_bad_name(text: str, name: Part) -> NoReturn:
    import difflib

    near = tuple(difflib.get_close_matches(name.text, _NAMES[:2], 2, 0.4)) or _NAMES[:2]
    raise SpecError(
        text,
        name.position,
        f"no such name {name.text!r}: entry, return or a hexadecimal offset",
        near,
        length=len(name),
    )


def _offset(text: str, position: int, digits: str, base: int) -> int:
    value = int(digits, base)
    if value >= 1 << 63:
        raise SpecError(text, position, "the offset is larger than any address space", length=len(digits))
    return value


def _with_suffix(text: str, provider: str, pid: int | None, module: Part, function: Part) -> Spec:
    """Read the short forms: ``malloc``, ``malloc%return``, ``malloc+0x1c``."""
    body, percent, suffix = function.text.rpartition("%")
    if percent:
        name = Part(suffix, function.position + len(body) + 1)
        short = Part(body, function.position)
        if not suffix:
            raise SpecError(text, name.position - 1, "a name (entry or return) is missing behind '%'", ("return",))
        _require_function(text, short)
        return _named(text, provider, pid, module, short, name)
    plus = _plus_at(function.text)
    if plus < 0:
        _require_function(text, function)
        return _named(text, provider, pid, module, function, Part("", function.position))
    short = Part(function.text[:plus], function.position)
    digits = Part(function.text[plus + 1 :], function.position + plus + 1)
    _require_function(text, short)
    if not digits:
        raise SpecError(text, digits.position - 1, "an offset is missing behind '+'", (short.text + "+0x10",))
    if not _HEX_OR_DECIMAL.fullmatch(digits.text):
        raise SpecError(
            text, digits.position, f"{digits.text!r} is not an offset (write 0x1c or 28)", length=len(digits)
        )
    spec = _named(text, provider, pid, module, short, Part("entry", function.position))
    return replace(
        spec,
        name="offset",
        offset=_offset(text, digits.position, digits.text, 0 if digits.text[:2] in ("0x", "0X") else 10),
        name_position=digits.position,
        name_length=len(digits),
    )


def _plus_at(name: str) -> int:
    """Return where ``+OFFSET`` begins; the plus signs of ``operator+`` and ``module+0x1234`` are not one."""
    if re.search(r"operator\s*\+{1,2}=?$", name) or "+" not in name:
        return -1
    at = name.rfind("+")
    if re.search(r"operator\s*\+?$", name[:at]):
        return -1
    return at if name.rfind(")") < at or name[at + 1 : at + 2].isdigit() else -1


def _require_function(text: str, function: Part) -> None:
    if not function:
        position = min(function.position, max(len(text) - 1, 0))
        raise SpecError(text, position, "the function is missing", ("libc:malloc", "libc:*"))


def _check_glob(text: str, part: Part) -> None:
    """Refuse a bracket expression that is never closed, which a glob would take literally."""
    if re.search(r"operator\s*\[\]", part.text):
        return
    at = part.text.find("[")
    if at >= 0 and "]" not in part.text[at + 1 :]:
        raise SpecError(text, part.position + at, "this '[' is never closed")


def _source_line(text: str, parts: list[Part]) -> Spec:
    """Read ``file.c:120``."""
    name = parts[1]
    if not name.text.isdigit() or int(name.text) == 0:
        raise SpecError(text, name.position, "a line number is expected behind a source file", length=len(name))
    return Spec(
        text,
        "pid",
        parts[0],
        Part("", name.position),
        "line",
        name_position=name.position,
        name_length=len(name),
        line=int(name.text),
    )


def _bpftrace(text: str, parts: list[Part]) -> Spec:
    """Read ``uprobe:PATH:SYMBOL[+OFFSET]``, ``uretprobe:...``, ``usdt:PATH:PROVIDER:NAME``."""
    head = parts[0]
    if head.text == "usdt":
        raise _later(text, head, "USDT probes")
    if len(parts) == 2:
        raise SpecError(text, parts[1].position, f"{head.text} needs a path and a symbol", length=len(parts[1]))
    if len(parts) > 3:
        # uprobe:PATH:cpp:SYMBOL: bpftrace's way to say that the symbol is demangled
        if len(parts) == 4 and parts[2].text == "cpp":
            parts = [head, parts[1], parts[3]]
        else:
            raise SpecError(text, parts[3].position, f"{head.text} has a path and a symbol only", length=len(parts[3]))
    module, symbol = parts[1], parts[2]
    if not module:
        raise SpecError(text, module.position, "the path is missing", ("uprobe:/bin/bash:readline",))
    quoted = symbol.text.strip('"')
    symbol = Part(quoted, symbol.position + (symbol.text[:1] == '"'))
    if _HEX_OR_DECIMAL.fullmatch(symbol.text):
        spec = _named(text, "pid", None, module, Part("-", symbol.position), Part("0x0", symbol.position))
        spec = replace(spec, offset=int(symbol.text, 0), name_length=len(symbol))
    else:
        spec = _with_suffix(text, "pid", None, module, symbol)
    if _BPFTRACE[head.text] == "return":
        if spec.offset is not None:
            raise spec.name_error("a return probe has no offset")
        return replace(spec, name="return")
    return spec


def _kprobe_event(text: str, lead: int) -> Spec:
    """Read a line as one writes it to ``kprobe_events`` or ``uprobe_events``; fetch arguments are left aside."""
    line = _KPROBE_EVENT.match(text[lead:].rstrip())
    if line is None:
        raise SpecError(text, lead, "not a kprobe_events line (p[:GROUP/EVENT] SYMBOL[+OFFSET] ...)")
    event = line["event"]
    if event is not None and not re.fullmatch(r":(?:[A-Za-z_]\w*/)?[A-Za-z_]?\w*", event):
        raise SpecError(text, lead + line.start("event") + 1, "not an event name (GROUP/EVENT)", length=len(event) - 1)
    place = Part(line["place"], lead + line.start("place"))
    name = "return" if line["kind"] == "r" else "entry"
    before, colon, after = place.text.rpartition(":")
    if not colon:
        module, symbol = Part("", place.position), place
    else:
        module, symbol = Part(before, place.position), Part(after, place.position + len(before) + 1)
    returning = symbol.text.endswith("%return")
    symbol = Part(symbol.text.removesuffix("%return"), symbol.position)
    name = "return" if returning else name
    if colon and re.fullmatch(r"0[xX][0-9a-fA-F]+", symbol.text):
        offset = Part(symbol.text, symbol.position)
        spec = _named(text, "pid", None, module, Part("-", symbol.position), offset)
    else:
        spec = _with_suffix(text, "pid", None, module, symbol)
    if name == "return":
        if spec.offset:
            raise spec.name_error("a return probe has no offset")
        return replace(spec, name="return", offset=None)
    return spec
