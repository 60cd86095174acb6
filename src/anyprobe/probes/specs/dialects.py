"""Spec dialects of other tools: bpftrace's, and lines as one writes them to ``kprobe_events``."""

import re

from anyprobe.core.errors import SpecError
from anyprobe.probes.specs.dtrace import HEX_OR_DECIMAL, named, with_suffix
from anyprobe.probes.specs.parts import Part, Spec

BPFTRACE = {"uprobe": "entry", "u": "entry", "uretprobe": "return", "ur": "return"}
_KPROBE_EVENT = re.compile(r"^(?P<kind>[pr])(?P<active>\d*)(?P<event>:\S*)?\s+(?P<place>\S+)(?P<arguments>.*)$")


def bpftrace(text: str, parts: list[Part]) -> Spec:
    """Read ``uprobe:PATH:SYMBOL[+OFFSET]`` and ``uretprobe:...``."""
    head = parts[0]
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
    if not symbol.quoted and HEX_OR_DECIMAL.fullmatch(symbol.text):
        spec = named(text, None, module, Part("-", symbol.position), Part("0x0", symbol.position))
        spec = spec._replace(offset=int(symbol.text, 0), name_length=len(symbol))
    else:
        spec = with_suffix(text, module, symbol)
    if BPFTRACE[head.text] == "return":
        if spec.offset is not None:
            raise spec.name_error("a return probe has no offset")
        return spec._replace(name="return")
    return spec


def kprobe_event(text: str, lead: int) -> Spec:
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
        spec = named(text, None, module, Part("-", symbol.position), offset)
    else:
        spec = with_suffix(text, module, symbol)
    if name == "return":
        if spec.offset:
            raise spec.name_error("a return probe has no offset")
        return spec._replace(name="return", offset=None)
    return spec
