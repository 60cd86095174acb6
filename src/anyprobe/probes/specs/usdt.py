"""Specs of USDT markers: ``usdt:module/provider:name``, and as bpftrace and perf write them."""

import re

from anyprobe.core.errors import SpecError
from anyprobe.probes.specs.parts import Part, Spec

_PERF = re.compile(r"%?sdt_(?=.)")
_PATH = re.compile(r"[./~]|[^/]+/[^/]+/|.*//")
_HINTS = ("usdt:postgresql:query__start", "usdt:*")


def is_usdt(parts: list[Part]) -> bool:
    """Return whether a spec is about markers, by its first part."""
    head = parts[0]
    return not head.quoted and len(parts) > 1 and (head.text == "usdt" or _is_perf(parts))


def _is_perf(parts: list[Part]) -> bool:
    return len(parts) == 2 and _PERF.match(parts[0].text) is not None


def usdt(text: str, parts: list[Part]) -> Spec:
    """Read any of the forms; see docs/usdt.md."""
    head, *rest = parts
    if _is_perf(parts):
        provider = _PERF.sub("", head.text)
        return _spec(text, Part("", head.position), Part(provider, head.position + len(head) - len(provider)), rest[0])
    if len(rest) == 1 and not rest[0]:
        raise SpecError(text, max(rest[0].position - 1, 0), "the marker is missing", _HINTS)
    if len(rest) > 3:
        extra = rest[3]
        raise SpecError(text, extra.position, "more than usdt:module:provider:name", length=max(len(extra), 1))
    name = rest[-1]
    if len(rest) == 1:
        return _spec(text, Part("", name.position), Part("", name.position), name)
    where = rest[0]
    module, slash, provider = where.text.partition("/")
    both = bool(slash) and not where.quoted and not _PATH.match(where.text)
    if both:
        pair = Part(module, where.position), Part(provider, where.position + len(module) + 1)
        return _spec(text, *pair, name, rest[1] if len(rest) == 3 else None)
    if len(rest) == 3:
        return _spec(text, where, rest[1], name)
    nothing = Part("", where.position)
    return _spec(text, where, nothing, name) if slash else _spec(text, nothing, where, name)


def _spec(text: str, module: Part, provider: Part, name: Part, within: Part | None = None) -> Spec:
    for part in (module, provider, name, within):
        if part is not None and part.tail:
            raise SpecError(text, part.tail_position, "a marker has neither offset nor return", length=len(part.tail))
    for suffix in ("%return", ":return"):
        if name.text.endswith(suffix):
            raise SpecError(text, name.position + len(name) - len(suffix), "a marker is one place; it has no return")
    return Spec(
        text, "usdt", module, name, "usdt", name_position=name.position, name_length=max(len(name), 1),
        group=provider, within=within,
    )  # fmt: skip
