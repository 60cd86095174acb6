"""A probe spec's parts, and how a text is cut into them."""

import re
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from anyprobe.core.errors import SpecError
from anyprobe.core.quoting import QUOTE, quoted, quoted_at, shown_module, unquoted

PROVIDERS = ("pid", "usdt", "kernel", "kprobe", "fentry", "tracepoint", "syscall")
_HEADS = frozenset((*PROVIDERS, "uprobe", "uretprobe", "u", "ur"))
PID = re.compile(r"^pid(\d*|\$target)$")
"""The process provider; ``$target`` is the process that is probed, as DTrace calls it."""
EVENT_LINE = re.compile(r"[pr]\d*(?::\S*)?\s+\S")
"""How a line for ``kprobe_events`` begins; nothing can be appended to one."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a spec: its text and where it stands in the original."""

    text: str
    position: int
    quoted: bool = False
    """Whether it stood in quotes: it is a name then, whatever it looks like."""
    tail: str = ""
    """What stands after the closing quote: ``%return`` or ``+0x1c``."""
    tail_position: int = 0

    def __len__(self) -> int:
        """Return the length of the text."""
        return len(self.text)

    def __bool__(self) -> bool:
        """Return whether there is any text."""
        return bool(self.text)


class Spec(NamedTuple):
    """A probe spec, read. ``offset`` is set instead of a name where an instruction is meant."""

    text: str
    provider: str
    module: Part
    function: Part
    name: str
    """``entry``, ``return``, ``insn``, ``block``, ``call``, ``offset``, ``any`` (see ``pattern``), ``line``
    (``function``: the file), or ``usdt`` (``function``: a marker's name)."""
    offset: int | None = None
    name_position: int = 0
    name_length: int = 1
    pid: int | None = None
    """The process that ``pid1234`` selects."""
    line: int | None = None
    """The line of ``file.c:120``; the file is in ``function``."""
    pattern: str = ""
    """A glob over ``entry``, ``return`` and offsets, where the name is one: ``name`` is ``any`` then, or ``insn`` for
    its part that is about offsets."""
    group: Part | None = None
    """The provider of a USDT marker; without a module it may also be the module's name."""
    within: Part | None = None
    """The function that a marker has to be in."""

    @property
    def is_absolute(self) -> bool:
        """Whether the offset counts from the module's start: the function part is ``-``."""
        return self.function.text == "-" and not self.function.quoted and self.offset is not None

    @property
    def awaited(self) -> Part:
        """What has to be loaded before it can mean anything: a module, or any with a provider of USDT markers."""
        return self.group if self.group and not self.module else self.module

    def canonical(self, module: str, function: str, offset: int | None = None) -> str:
        """Return the four-part form for one module and function that the spec matched."""
        offset = self.offset if offset is None else offset
        name = (self.pattern or self.name) if offset is None else f"{offset:#x}"
        return f"{self.provider}:{shown_module(module)}:{function}:{name}"

    @property
    def is_marker(self) -> bool:
        """Whether it means USDT markers."""
        return self.provider == "usdt"

    def end(self, name: 'Literal["entry", "return"]') -> "Spec":
        """Return the spec of one end of the same functions, written as this one is where that is possible.

        Raises ``SpecError`` where single instructions or markers are meant, which have no ends.
        """
        if self.name == name:
            return self
        whole = self._whole
        written = self.text.rstrip()
        if name == "entry" or EVENT_LINE.match(written.lstrip()):
            return in_full(whole.module, whole.function, name, pid=whole.pid)
        stands = whole.name_position
        if stands > whole.function.position and written[stands:] in {"entry", ""}:
            return whole._replace(text=written[:stands] + name, name=name, name_length=len(name))
        text = f"{written}%{name}"
        return whole._replace(text=text, name=name, name_position=len(written) + 1, name_length=len(name))

    @property
    def _whole(self) -> "Spec":
        """The functions that are meant: ``bare+0x1139`` is also what a function without a name is called."""
        if self.name in {"entry", "return"}:
            return self
        if self.is_marker:
            raise self.name_error("a marker is one place; it has no return")
        stands = self.name_position
        if self.name != "offset" or self.function.quoted or self.text[stands - 1 : stands] != "+":
            raise self.name_error("instructions have no return; name the function")
        called = f"{self.function.text}+{self.text[stands : stands + self.name_length]}"
        function = replace(self.function, text=called)
        return self._replace(function=function, name="entry", offset=None, name_position=function.position)

    def error(self, part: Part, message: str, nearest: tuple[str, ...] = ()) -> SpecError:
        """Return an error with the caret under a part."""
        return SpecError(self.text, part.position, message, nearest, length=len(part))

    def name_error(self, message: str, nearest: tuple[str, ...] = ()) -> SpecError:
        """Return an error with the caret under the name or offset."""
        return SpecError(self.text, self.name_position, message, nearest, length=self.name_length)


def module_part(name: str) -> Part:
    """Return the part of a spec that means a module of this name, and no other."""
    return Part(name, 0, quoted=shown_module(name) != name)


def in_full(module: Part, function: Part, name: str, *, offset: int | None = None, pid: int | None = None) -> Spec:
    """Return the spec of some functions, or of an instruction at an offset, in the four-part form."""
    text, parts = f"pid{pid or ''}:", []
    for part in (module, function):
        shown = quoted(part.text) if part.quoted else part.text
        after = len(text) + len(shown) if part.quoted else 0
        parts.append(Part(part.text, len(text) + part.quoted, part.quoted, tail_position=after))
        text += f"{shown}:"
    last = name if offset is None else f"{offset:#x}"
    spec = Spec(text + last, "pid", parts[0], parts[1], name, offset=offset, pid=pid)
    return spec._replace(name_position=len(text), name_length=len(last))


_IN_MEMORY = re.compile(r"/?memfd:[^:\s]+(?=:(?!(?:entry|return|insn|block|call|(?:0x)?[a-f]*[0-9][0-9a-f]*)$))").match
"""The name of a file that is in memory only, where a function comes after it."""
_DIVIDING = re.compile(r"""["([{<)\]}>:]""").search
"""What is not just a part of a name."""


def split(text: str, start: int, end: int, *, nested: bool = True) -> list[Part]:
    """Split at single colons; ``::`` belongs to a demangled name if words join it, and inside brackets nothing splits.

    ``pid:libc::return`` and ``::malloc:`` are empty parts, ``ns::f`` is a name: only between a word and a word does
    ``::`` bind, and never where the parts before it are too few for a module (``pid::f``). A part in double quotes is
    a name, and what stands between them is not looked at. ``memfd:name`` is one part where a function follows.

    A glob may match a bracket and leave the other one to ``*``: where brackets of a glob do not balance, they are
    ordinary characters, as they are with ``nested=False``.
    """
    parts: list[Part] = []
    at = begin = start
    depth = 0
    while (dividing := _DIVIDING(text, at, end)) is not None:
        at = dividing.start()
        character = text[at]
        if character == QUOTE and at == begin:
            part = _quoted_part(text, at, end)
            parts.append(part)
            at = begin = part.tail_position + len(part.tail) + 1
            if begin > end:
                return parts
            continue
        if text.startswith("[[]", at):  # a glob's way to say that a bracket opens
            at += 3
            continue
        if character in "([{<":
            depth += character != "<" or not text[begin:at].endswith(("operator", "operator<"))
        elif character in ")]}>" and depth:
            depth -= 1
        elif character == ":" and (depth == 0 or not nested):
            in_memory = _IN_MEMORY(text, begin, end)
            if in_memory:
                at = in_memory.end()
                parts.append(Part(text[begin:at], begin))
                at = begin = at + 1
                continue
            if _is_scope(text, begin, at, end, len(parts)):
                at += 2
                continue
            parts.append(Part(text[begin:at], begin))
            begin = at + 1
        at += 1
    if depth and nested:
        if any(sign in text[begin:end] for sign in "*?"):
            return split(text, start, end, nested=False)
        unclosed = _first_unclosed(text, begin, end)
        raise SpecError(text, unclosed, f"this {text[unclosed]!r} is never closed")
    parts.append(Part(text[begin:end], begin))
    return parts


def _quoted_part(text: str, at: int, end: int) -> Part:
    """Return the part in quotes that begins at an address, with what follows up to the next colon."""
    found = quoted_at(text, at)
    if found is None or found.end() > end:
        raise SpecError(text, at, "this quote is never closed")
    colon = text.find(":", found.end(), end)
    tail = text[found.end() : colon if colon >= 0 else end]
    if not found[1]:
        raise SpecError(text, at, "there is no name between the quotes", length=2)
    if tail and tail[0] not in "%+":
        raise SpecError(text, found.end(), "after a name in quotes stands a colon, %return or an offset")
    return Part(unquoted(found[1]), at + 1, quoted=True, tail=tail, tail_position=found.end())


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
    if not left or not (left[-1].isalnum() or left[-1] in "_>)}]*?'") or not right:
        return False
    if not (right.isalpha() or right in "_~<{(*?$'."):
        return False
    if before == 0 and (left in _HEADS or PID.match(left) or left.endswith("$target")):
        return False  # pid::malloc:entry: an empty module
    if before == 1 and not (text[:begin].strip(" :") in _HEADS or PID.match(text[:begin].strip(" :"))):
        return True  # a.out:Fn<int>::call
    # pid:libc::return has an empty function
    return not re.fullmatch(r"(?:entry|return|insn|block|call)", text[at + 2 : end])
