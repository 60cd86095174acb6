"""The guest's kernel, analysed from its live text: what its optimiser of kprobes does is what was foretold."""

import contextlib
import os
import random
import time
from pathlib import Path

import pytest

from anyprobe.binary.kernel.addresses import BIAS
from anyprobe.binary.kernel.optimizing import Optimized
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.kernel.code import RunningCode, running
from anyprobe.probes.providers.kernel.explaining import explain
from anyprobe.probes.providers.kernel.places.sites import KernelNames
from anyprobe.probes.providers.kernel.places.specs import parse
from anyprobe.target.kernel import symbols, tracefs
from anyprobe.target.kernel.kcore import LiveMemory

pytestmark = pytest.mark.timeout(900)
KPROBES = Path("/sys/kernel/debug/kprobes/list")
GROUP = "anyprobe_test"
SECONDS = 90
SEED = 26


@pytest.fixture(scope="module")
def code():
    return running(symbols.running())


@pytest.fixture
def events():
    """Return the folder of tracefs; events of ours are gone afterwards."""
    root = Path(tracefs.root())
    yield root
    enable = root / "events" / GROUP / "enable"
    if enable.exists():
        enable.write_text("0")
        with contextlib.suppress(OSError):  # all at once: the kernel waits for each that is removed by itself
            define(root, f"-:{GROUP}/")
    if enable.exists():
        for name in sorted(each.name for each in enable.parent.iterdir() if each.is_dir()):
            define(root, f"-:{GROUP}/{name}")


def define(events, line):
    """Add or remove an event; the file cannot be sought in, as Python's own files would."""
    descriptor = os.open(events / "kprobe_events", os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


def random_places(code, count):
    """Return addresses of instructions, at most one in each function."""
    kernel = code.module("vmlinux")
    chosen = random.Random(SEED)
    starts = kernel.image.functions.starts.tolist()
    chosen.shuffle(starts)
    found = []
    for start in starts:
        function = kernel.code.function_at(start)
        if isinstance(function, Refusal) or not function.addresses:
            continue
        at = chosen.choice(function.addresses)
        if function.is_site(at):
            found.append((function, at))
        if len(found) == count:
            return found
    return found


def traced_in(code, function):
    optimizer = code.optimizer(code.module("vmlinux"))
    return optimizer.traced_in(optimizer.function_around(function.start))


def foretold(code, at, restrictions):
    """Return what the kernel should say of a kprobe: refused, FTRACE, OPTIMIZED or nothing, and why."""
    optimizer = code.optimizer(code.module("vmlinux"))
    area = optimizer.function_around(at)
    if restrictions.blacklisted(at + BIAS, [code.source.names.name_at(area.start)]):
        return "refused", "blacklisted"
    refusal = optimizer.forbids(at)
    if refusal is not None:
        return "refused", str(refusal)
    verdict = optimizer.look_at(at)
    if isinstance(verdict, Optimized):
        return "OPTIMIZED", ""
    return "FTRACE" if verdict.reason is Reason.FTRACE_SITE else "", str(verdict)


def listed():
    """Return what the kernel says of each kprobe, by address."""
    found = {}
    for line in KPROBES.read_text().splitlines():
        words = line.split()
        flags = [word.strip("[]") for word in words[3:] if word.startswith("[") and word[1:2].isupper()]
        found[int(words[0], 16)] = next((flag for flag in flags if flag in {"FTRACE", "OPTIMIZED"}), "")
    return found


def compare(code, events, count):
    """Set kprobes at random places; return where the kernel does otherwise than foretold, with what was said."""
    restrictions = tracefs.Restrictions()
    wanted, differing = {}, []
    places = random_places(code, count)
    said = {at: foretold(code, at, restrictions) for _, at in places}
    for number, (function, at) in enumerate(places):
        told, why = said[at]
        try:
            define(events, f"p:{GROUP}/p{number} {at + BIAS:#x}")
        except OSError as failure:
            if told != "refused":
                differing.append((hex(at), f"told {told or 'not optimized'} ({why})", f"refused: {failure}"))
            continue
        if told == "refused":
            differing.append((hex(at), f"told refused ({why})", "taken"))
        elif told == "FTRACE":  # the kernel steps over endbr64
            wanted[traced_in(code, function)] = told, why
        else:
            wanted[at] = told, why
    (events / "events" / GROUP / "enable").write_text("1")
    end = time.monotonic() + SECONDS
    while True:
        now = listed()
        wrong = {at: (told, why) for at, (told, why) in wanted.items() if now.get(at + BIAS) != told}
        if not wrong or time.monotonic() > end:
            break
        time.sleep(0.2)
    differing += [
        (hex(at), f"told {told or 'not optimized'} ({why})", f"is {now.get(at + BIAS)}")
        for at, (told, why) in wrong.items()
    ]
    return len(wanted), differing


@pytest.mark.thorough
def test_the_optimiser_does_what_was_foretold_at_random_places(code, events):
    count, differing = compare(code, events, 15)
    assert count > 5
    assert not differing, "\n".join(map(str, differing))


@pytest.mark.thorough
def test_the_optimiser_does_what_was_foretold_at_a_thousand_random_places(code, events):
    count, differing = compare(code, events, 1000)
    assert count > 600
    assert not differing, "\n".join(map(str, differing))


def test_an_explanation_shows_live_code_and_what_reaches_it(code):
    names = KernelNames()
    start = names.symbols.named("vfs_read")[0].address
    function = code.module("vmlinux").code.function_at(start - BIAS)
    inner = function.addresses[4] - function.start
    explanation = explain(parse(f"kernel::vfs_read:{inner:#x}"), names, code)
    assert explanation.address == start + inner
    marked = {line.address: line.marks for line in explanation.disassembly if line.marks}
    assert marked[start + inner][0] == "IA"
    assert dict(explanation.verdicts)["kprobe"] == "chosen"
    assert any("optimiser" in note for note in explanation.notes)
    live = b"".join(line.bytes for line in explanation.disassembly)
    first = explanation.disassembly[0].address
    assert live == code.source.memory.read(first - BIAS, len(live))


def test_entries_are_reached_by_the_function_tracer_s_mechanisms(code):
    verdicts = dict(explain(parse("kernel::vfs_read"), KernelNames(), code).verdicts)
    assert list(verdicts.values()).count("chosen") == 1
    assert verdicts.keys() == {"fentry", "kprobe.multi", "kprobe"}


@pytest.mark.thorough
def test_modules_are_read_where_the_kernel_has_put_them(code):
    names = KernelNames()
    module = next(each.module for each in names.symbols.matching("v9fs_*") if each.module != "vmlinux")
    image = code.module(module).image
    listed_functions = {each.address for each in names.symbols.matching("*") if each.module == module}
    starts = {each + BIAS for each in image.functions.starts.tolist()}
    assert starts <= listed_functions
    assert len(starts) > len(listed_functions) // 2
    complete = [
        found.complete is None
        for start in image.functions.starts.tolist()
        if not isinstance(found := code.module(module).code.function_at(start), Refusal)
    ]
    assert sum(complete) >= 0.99 * len(complete)


@pytest.mark.thorough
def test_kprobes_that_are_set_are_not_seen(code, events):
    names = KernelNames()
    start = names.symbols.named("vfs_write")[0].address
    function = code.module("vmlinux").code.function_at(start - BIAS)
    optimizer = code.optimizer(code.module("vmlinux"))
    verdicts = {at: optimizer.look_at(at) for at in function.addresses if optimizer.forbids(at) is None}
    jump = next(at for at, verdict in verdicts.items() if isinstance(verdict, Optimized))
    trap = next(
        at for at, verdict in verdicts.items()
        if not isinstance(verdict, Optimized) and verdict.reason is not Reason.FTRACE_SITE and at > jump + 16
    )  # fmt: skip
    before = code.source.memory.read(function.start, function.end - function.start)
    for number, at in enumerate((jump, trap)):
        define(events, f"p:{GROUP}/q{number} {at + BIAS:#x}")
    (events / "events" / GROUP / "enable").write_text("1")
    end = time.monotonic() + SECONDS
    with LiveMemory() as live:
        # the kernel's list says OPTIMIZED as soon as the jump is going to be written
        while live.read(jump + BIAS, 1) != b"\xe9":
            assert time.monotonic() < end, listed().get(jump + BIAS)
            time.sleep(0.2)
        assert live.read(trap + BIAS, 1) == b"\xcc"
        again = RunningCode(names.symbols, live)
        assert again.source.memory.read(function.start, len(before)) == before
        explanation = explain(parse(f"kernel::vfs_write:{jump - function.start:#x}"), names, again)
    assert any("kprobes are set in this function" in note for note in explanation.notes)


@pytest.mark.thorough
def test_the_control_flow_of_nearly_all_functions_is_known(code):
    kernel = code.module("vmlinux")
    kernel.code.survey()
    found = [kernel.code.function_at(start) for start in kernel.image.functions.starts.tolist()]
    unknown = [each for each in found if isinstance(each, Refusal) or each.complete is not None]
    assert len(unknown) <= len(found) // 1000
