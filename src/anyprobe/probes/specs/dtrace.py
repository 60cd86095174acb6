"""DTrace's four-part form and its short forms."""

import fnmatch
import re

from anyprobe.core.errors import SpecError
from anyprobe.probes.specs.parts import PID, PROVIDERS, Part, Spec

KERNEL = ("kernel", "kprobe", "kretprobe", "fentry", "fexit", "tracepoint", "syscall", "rawtracepoint")
HEX_OR_DECIMAL = re.compile(r"0[xX][0-9a-fA-F]+|[0-9]+")
EACH = frozenset({"insn", "block", "run", "call", "store", "taken", "undecided"})
"""Names that mean many instructions of a function: all, first ones of blocks, calls, stores, jumps that are taken."""
_NAMES = ("entry", "return", "insn", "block", "run", "call", "store", "taken", "undecided")
_HEX = re.compile(r"(?:0[xX])?[0-9a-fA-F]+")
_SOURCE = re.compile(r"[\w./+-]+\.(?:c|cc|cpp|cxx|c\+\+|C|h|hh|hpp|hxx|inc|rs|go|S|s|f90|m)")


def dtrace(text: str, parts: list[Part]) -> Spec:
    """Read DTrace's four parts or one of the short forms."""
    if _is_line(parts):
        return _source_line(text, parts)
    head = "" if parts[0].quoted else parts[0].text
    if len(parts) == 4:
        return _four(text, parts)
    if len(parts) > 4:
        extra = parts[4]
        raise SpecError(text, extra.position, "more than four parts (provider:module:function:name)", length=len(extra))
    if len(parts) == 3:
        return _three(text, parts)
    if len(parts) == 2:
        if head in PROVIDERS or PID.match(head):
            _refuse_kernel(text, parts[0])
            raise SpecError(
                text,
                parts[1].position,
                "a provider needs four parts (provider:module:function:name)",
                (f"{head}::{parts[1].text}:entry",),
                length=len(parts[1]),
            )
        return with_suffix(text, parts[0], parts[1])
    return with_suffix(text, Part("", parts[0].position), parts[0])


def _three(text: str, parts: list[Part]) -> Spec:
    """Read ``module:function:name``; with a provider in front one part is missing."""
    head = parts[0]
    if not head.quoted and (head.text in PROVIDERS or PID.match(head.text)):
        _refuse_kernel(text, head)
        raise SpecError(
            text,
            parts[2].position,
            "three of four parts (provider:module:function:name); leave a part empty rather than out",
            (_completed(head.text, parts[1].text, parts[2].text),),
            length=len(parts[2]),
        )
    return named(text, None, head, parts[1], parts[2])


def _completed(head: str, second: str, third: str) -> str:
    """Return what three parts after a provider probably mean."""
    return f"{head}::{second}:{third}" if third in _NAMES else f"{head}:{second}:{third}:entry"


def _four(text: str, parts: list[Part]) -> Spec:
    """Read the canonical form."""
    head, module, function, name = parts
    _refuse_kernel(text, head)
    pid = PID.match(head.text)
    if head.text and pid is None and not _is_pattern_of_pid(head):
        known = tuple(each for each in PROVIDERS if each[:1] == head.text[:1]) or ("pid",)
        raise SpecError(text, head.position, f"no provider {head.text!r}", known, length=len(head))
    number = int(pid[1]) if pid and pid[1].isdecimal() else None
    if number == 0:
        raise SpecError(text, head.position, "process 0 is the kernel's own and has no functions", length=len(head))
    return named(text, number, module, function, name)


def _is_pattern_of_pid(head: Part) -> bool:
    """Return whether the provider is a glob that means processes, as DTrace's ``p*d$target``."""
    pattern = head.text.removesuffix("$target")
    return not head.quoted and any(sign in pattern for sign in "*?[") and fnmatch.fnmatchcase("pid", pattern)


def _refuse_kernel(text: str, head: Part) -> None:
    if head.text in KERNEL:
        raise SpecError(text, head.position, "this is in the kernel: anyprobe.kernel()", length=len(head))


def named(text: str, pid: int | None, module: Part, function: Part, name: Part) -> Spec:
    """Read the name part: entry, return, insn, block, call, or a hexadecimal offset."""
    _check_glob(text, module)
    _check_glob(text, function)
    spec = Spec(
        text, "pid", module, function, "entry", name_position=name.position, name_length=max(len(name), 1), pid=pid
    )
    is_dash = function.text == "-" and not function.quoted
    is_pattern = any(sign in name.text for sign in "*?[")
    if is_dash and is_pattern:
        raise SpecError(text, name.position, "'-' has one instruction at a time; write its offset", length=len(name))
    if is_pattern and _may_match(name.text):
        return spec._replace(name="any", pattern=name.text)
    if name.text in ("", "entry") and is_dash:
        raise SpecError(
            text, function.position, "'-' stands for offsets in the module; the name must be a hexadecimal offset"
        )
    if name.text in ("", "entry"):
        return spec
    if name.text in _NAMES:
        if is_dash:
            raise SpecError(text, name.position, f"'-' has no {name.text}; name the function", length=len(name))
        return spec._replace(name=name.text)
    if _HEX.fullmatch(name.text):
        return spec._replace(name="offset", offset=_offset(text, name.position, name.text, 16))
    raise _bad_name(text, name)


def _may_match(pattern: str) -> bool:
    """Return whether a glob may match one of the names that instructions have: entry, return, or an offset."""
    if any(fnmatch.fnmatchcase(each, pattern) for each in ("entry", "return")):
        return True
    return re.fullmatch(r"(?:0x)?[0-9a-f*?\[\]!-]+", pattern) is not None


def _bad_name(text: str, name: Part) -> SpecError:
    import difflib

    near = tuple(difflib.get_close_matches(name.text, _NAMES, 2, 0.4)) or _NAMES
    return SpecError(
        text,
        name.position,
        f"no such name {name.text!r}: entry, return, insn, block, call or a hexadecimal offset",
        near,
        length=len(name),
    )


def _offset(text: str, position: int, digits: str, base: int) -> int:
    value = int(digits, base)
    if value >= 1 << 63:
        raise SpecError(text, position, "the offset is larger than any address space", length=len(digits))
    return value


def with_suffix(text: str, module: Part, function: Part) -> Spec:
    """Read the short forms: ``malloc``, ``malloc%return``, ``malloc+0x1c``."""
    if function.quoted:
        return _behind_quotes(text, module, function)
    body, percent, suffix = _at_percent(function.text)
    if percent:
        name = Part(suffix, function.position + len(body) + 1)
        short = Part(body, function.position)
        if not suffix:
            raise SpecError(text, name.position - 1, "a name (entry or return) is missing after '%'", ("return",))
        _require_function(text, short)
        return named(text, None, module, short, name)
    plus = _plus_at(function.text)
    if plus < 0:
        _require_function(text, function)
        return named(text, None, module, function, Part("", function.position))
    short = Part(function.text[:plus], function.position)
    digits = Part(function.text[plus + 1 :], function.position + plus + 1)
    _require_function(text, short)
    return _at_offset(text, module, short, digits)


def _at_percent(name: str) -> tuple[str, str, str]:
    """Cut ``%return`` off; the percent signs of ``operator%`` and ``operator%=`` are not one."""
    body, percent, suffix = name.rpartition("%")
    if percent and (suffix[:1] in ("", "=", "(", "<") or ")" in suffix) and re.search(r"operator\s*$", body):
        return "", "", name
    return body, percent, suffix


def _behind_quotes(text: str, module: Part, function: Part) -> Spec:
    """Read what stands after a function's name in quotes."""
    rest = Part(function.tail[1:], function.tail_position + 1)
    if not function.tail:
        return named(text, None, module, function, Part("", function.position))
    if function.tail[0] == "%":
        if not rest:
            raise SpecError(text, rest.position - 1, "a name (entry or return) is missing after '%'", ("return",))
        return named(text, None, module, function, rest)
    return _at_offset(text, module, function, rest)


def _at_offset(text: str, module: Part, short: Part, digits: Part) -> Spec:
    """Return the spec of an instruction of a function by its offset."""
    if not digits:
        raise SpecError(text, digits.position - 1, "an offset is missing after '+'", (short.text + "+0x10",))
    if not HEX_OR_DECIMAL.fullmatch(digits.text):
        raise SpecError(
            text, digits.position, f"{digits.text!r} is not an offset (write 0x1c or 28)", length=len(digits)
        )
    spec = named(text, None, module, short, Part("entry", short.position))
    return spec._replace(
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
    if name[at + 1 : at + 2].isspace():
        return -1  # dyn Any + Send
    if re.search(r"operator\s*\+?$", name[:at]):
        return -1
    return at if name.rfind(")") < at or name[at + 1 : at + 2].isdigit() else -1


def _require_function(text: str, function: Part) -> None:
    if not function:
        position = min(function.position, max(len(text) - 1, 0))
        raise SpecError(text, position, "the function is missing", ("libc:malloc", "libc:*"))


def _check_glob(text: str, part: Part) -> None:
    """Refuse a bracket expression that is never closed, which a glob would take literally."""
    if part.quoted or re.search(r"operator\s*\[\]|\[clone ", part.text):
        return
    at = part.text.find("[")
    if at >= 0 and "]" not in part.text[at + 1 :]:
        raise SpecError(text, part.position + at, "this '[' is never closed")


def _is_line(parts: list[Part]) -> bool:
    """Return whether the last parts are a source file and a line; a number after a function's name is hexadecimal."""
    if not 2 <= len(parts) <= 4 or parts[-2].quoted or not _SOURCE.fullmatch(parts[-2].text):
        return False
    if len(parts) == 2:
        return not parts[1].text.startswith("0x")
    return parts[-1].text.isdecimal()


def _source_line(text: str, parts: list[Part]) -> Spec:
    """Read ``file.c:120``, alone, after a module, or after provider and module."""
    *before, file, name = parts
    if len(before) == 1 and not before[0].quoted and (before[0].text in PROVIDERS or PID.match(before[0].text)):
        before = [before[0], Part("", file.position)]
    if len(before) == 2:
        whole = _four(text, [*before, file, Part("", name.position)])
        module, pid = whole.module, whole.pid
    else:
        module, pid = before[0] if before else Part("", file.position), None
    if not name.text.isdigit() or int(name.text) == 0:
        raise SpecError(text, name.position, "a line number is expected after a source file", length=len(name))
    return Spec(
        text, "pid", module, file, "line", name_position=name.position, name_length=len(name), pid=pid,
        line=int(name.text),
    )  # fmt: skip
