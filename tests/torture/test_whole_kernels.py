"""All functions of the kernels that guests are made of, analysed from their files."""

import os
import random
import time
from collections import Counter
from pathlib import Path

import pytest

from anyprobe.binary.flow.blocks import block_starts
from anyprobe.binary.flow.cfg import CodeMap
from anyprobe.binary.kernel.source import KernelSource
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.splice.kernel import planning
from anyprobe.splice.kernel.patches import PatchMaker, count
from anyprobe.splice.kernel.places import entry_of
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.splices import Clobbers, Want, WantKind

GUESTS = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "anyprobe" / "guests"
COLD, KEPT = 25, 4
"""Seconds of a processor, three times what it takes: so slow may it be elsewhere."""


def analysed(path):
    """Return the code of a kernel, with everything found that sessions keep, and what that took."""
    begun = time.process_time()
    kernel = KernelSource.of_file(str(path)).kernel
    code = CodeMap(kernel.text(), kernel.cold_parts)
    code.survey()
    return kernel, code, time.process_time() - begun


@pytest.mark.parametrize("name", ["6.1", "6.12"])
def test_the_control_flow_of_nearly_all_functions_is_known(name, tmp_path, monkeypatch):
    path = GUESTS / name / "vmlinux"
    if not path.exists():
        pytest.skip(f"{path} is missing: make guest")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    kernel, code, seconds = analysed(path)
    assert seconds < COLD
    found = [code.function_at(start) for start in kernel.functions.starts.tolist()]
    assert len(found) > 40_000
    unknown = [each for each in found if isinstance(each, Refusal) or each.complete is not None]
    assert len(unknown) <= len(found) // 1000
    *_, again = analysed(path)
    assert again < KEPT


THE_KERNELS_OWN = frozenset({
    Reason.LANDING_PAD, Reason.FTRACE_SITE, Reason.STATIC_KEY, Reason.STATIC_CALL, Reason.ALTERNATIVE, Reason.BUG,
})  # fmt: skip
"""Why the kernel's tables forbid a place, whatever is planned."""


@pytest.mark.parametrize("name", ["6.1", "6.12"])
def test_nearly_all_places_that_the_kernel_permits_can_be_spliced(name):
    path = GUESTS / name / "vmlinux"
    if not path.exists():
        pytest.skip(f"{path} is missing: make guest")
    source = KernelSource.of_file(str(path))
    kernel = source.kernel
    code = CodeMap(kernel.text(), kernel.cold_parts)
    chosen = random.Random(1).sample(kernel.functions.starts.tolist(), 500)
    functions = [each for each in map(code.function_at, chosen) if not isinstance(each, Refusal)]
    faulting = frozenset(kernel.tables.fixups[:, 0].tolist())
    maker = PatchMaker(lambda low, high: source.memory.read(low, high - low), faulting, lambda _: Clobbers())

    def refused(groups):
        found = Counter()
        for group in groups:
            wants = [Want(at, WantKind.OFFSET, tag=at) for at in group]
            splices, why = planning.plan(code, wants, Claims())
            reasons = {want.tag: refusal.reason for want, refusal in why}
            for splice in splices:
                made = maker.make(splice, 0xFFFF_FFFF_C000_0000, lambda _: (count(0x1F000),))
                if isinstance(made, Refusal):
                    reasons |= dict.fromkeys((want.tag for want in splice.wants), made.reason)
            found.update(reasons.values())
        return found

    def blocks(function):
        entry = entry_of(code, function, kernel.settled)
        starts = block_starts(code, function)
        return starts if isinstance(entry, Refusal) else (entry, *(each for each in starts if each > entry))

    together = [blocks(each) for each in functions]
    why, total = refused(together), sum(map(len, together))
    print(f"{name}: {total} blocks at once, refused {why}")
    assert sum(why.values()) <= 0.03 * total
    alone = [[at] for each in functions for at in each.sites_among(insn.address for insn in each.insns)]
    why = refused(alone)
    permitted = len(alone) - sum(number for reason, number in why.items() if reason in THE_KERNELS_OWN)
    print(f"{name}: {permitted} instructions alone, refused {why}")
    assert sum(number for reason, number in why.items() if reason not in THE_KERNELS_OWN) <= 0.01 * permitted
