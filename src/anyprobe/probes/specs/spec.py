"""Probe specs: text to parts, in any of the forms and dialects, with a caret where it cannot be read."""

import re
from collections.abc import Iterable
from dataclasses import replace

from anyprobe.core.errors import SpecError, UsageError
from anyprobe.probes.specs.dialects import BPFTRACE, bpftrace, kprobe_event
from anyprobe.probes.specs.dtrace import EACH, dtrace
from anyprobe.probes.specs.parts import EVENT_LINE, Part, Spec, split

__all__ = ["Part", "Spec", "awaits_module", "check_functions", "check_texts", "parse", "parsed"]

_ARROW = re.compile(r"\s*→\s*[^%+\s]+")


def parse(text: str) -> Spec:
    """Read a spec in any of the forms; raise ``SpecError`` with a caret where it cannot be read."""
    stripped = text.strip()
    if not stripped:
        raise SpecError(text, 0, "the spec is empty", ("libc:malloc", "pid:libc:malloc:entry"))
    _refuse_odd_characters(text)
    lead = len(text) - len(text.lstrip())
    if EVENT_LINE.match(stripped):
        return kprobe_event(text, lead)
    parts = [_without_arrow(part) for part in split(text, lead, lead + len(stripped))]
    for part in parts:
        blank = re.search(r"\s", part.text)
        if blank and not part.quoted and not _may_have_blanks(part.text):
            message = "a blank within a spec; write each spec on its own, and a name with blanks in double quotes"
            raise SpecError(text, part.position + blank.start(), message)
    head = "" if parts[0].quoted else parts[0].text
    if _may_be_usdt(text):
        from anyprobe.probes.specs.usdt import is_usdt, usdt

        if is_usdt(parts):
            return usdt(text, parts)
    if len(parts) > 1 and head in BPFTRACE:
        return bpftrace(text, parts)
    return dtrace(text, parts)


def awaits_module(spec: Spec, error: SpecError) -> bool:
    """Return whether a spec that means nothing for some reason names a module, or a provider, that may be loaded yet.

    Of a module that is there the functions are known. A pattern may mean further ones; ``*`` by itself names none.
    """
    part = spec.awaited
    wanted = part.text
    is_pattern = not part.quoted and any(sign in wanted for sign in "*?[") and bool(wanted.strip("*"))
    return bool(wanted) and (is_pattern or error.position == part.position)


def check_texts(specs: Iterable[object]) -> None:
    """Complain where a spec is no text: of a decorator without its parentheses it is the function itself."""
    for spec in specs:
        if not isinstance(spec, str | Spec):
            what = "a function is no spec" if callable(spec) else f"{spec!r} is no spec"
            raise UsageError(f"{what}: write a text, as @session.entry('libc:malloc')")


def parsed(specs: "Iterable[str | Spec]") -> tuple[Spec, ...]:
    """Return the values of specs that a user has given as texts, or that are read already."""
    given = tuple(specs)
    check_texts(given)
    return tuple(parse(each) if isinstance(each, str) else each for each in given)


def _may_be_usdt(text: str) -> bool:
    return "usdt" in text or "sdt_" in text


def check_functions(specs: Iterable[Spec]) -> None:
    """Complain where a spec names instructions, and a function is wanted."""
    for spec in specs:
        if spec.is_marker:
            raise spec.name_error("a marker is one place, and functions are timed; name the function that it is in")
        if not spec.is_absolute and spec.name in {"offset", "line", "any", *EACH}:
            raise spec.name_error("functions are timed, from their entry to their return; leave this away")


def _refuse_odd_characters(text: str) -> None:
    if text.isprintable():
        return
    for at, character in enumerate(text):
        if not character.isprintable() and not "\udc80" <= character <= "\udcff":  # a byte that is not UTF-8
            message = f"an unprintable character (U+{ord(character):04X}); in double quotes it may be written as \\xNN"
            raise SpecError(text, at, message)


def _may_have_blanks(part: str) -> bool:
    """Return whether a part is a demangled name, in which blanks are usual: ``f(unsigned int) const``."""
    return any(each in part for each in ("(", "<", "{", "operator"))


def _without_arrow(part: Part) -> Part:
    """Return a part without what results show after an arrow: which implementation was chosen."""
    return part if part.quoted or "→" not in part.text else replace(part, text=_ARROW.sub("", part.text))
