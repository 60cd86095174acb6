"""Changes of the kernel's text, written together, or refused each by its name."""

from collections.abc import Mapping, Sequence
from typing import Final

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.kernel.splices.joints import Change, Joints
from anyprobe.target.kernel.driver.device import TRIES, BatchRefused, Driver
from anyprobe.target.kernel.driver.layout import MEANINGS, Verdict

_REASONS: Final = {
    Verdict.NOT_TEXT: Reason.NOT_CODE,
    Verdict.NOT_BOUNDARY: Reason.NOT_A_BOUNDARY,
    Verdict.CALL_INSIDE: Reason.RETURN_ADDRESS,
    Verdict.OLD_BYTES: Reason.FOREIGN_BYTES,
    Verdict.OVERLAP: Reason.OVERLAP,
    Verdict.BUSY: Reason.TASK_INSIDE,
    Verdict.FORBIDDEN: Reason.NO_INSTRUMENTATION,
    Verdict.STATIC_KEY: Reason.STATIC_KEY,
    Verdict.STATIC_CALL: Reason.STATIC_CALL,
    Verdict.FTRACE: Reason.FTRACE_SITE,
    Verdict.ALTERNATIVE: Reason.ALTERNATIVE,
    Verdict.KPROBE: Reason.KPROBE,
    Verdict.BUG: Reason.BUG,
    Verdict.LANDING_PAD: Reason.LANDING_PAD,
}


def write(
    driver: Driver, changes: Sequence[Change], joints: Joints | None, tries: int = TRIES
) -> Mapping[int, Refusal]:
    """Write all, or return which ones cannot be written, by address; nothing is written then.

    ``joints``: is told that they are in force.
    """
    writes = [each.write for each in changes]
    try:
        driver.apply(writes, [fixup for each in changes for fixup in each.fixups], tries=tries)
    except BatchRefused as refusal:
        if refusal.verdict is Verdict.BUSY and refusal.write is None:
            return {each.address: Refusal(Reason.TASK_INSIDE, each.address, str(refusal)) for each in writes}
        if refusal.write is None:
            raise
        return {
            address: Refusal(_REASONS.get(each, Reason.KERNEL_REFUSES), address, MEANINGS.get(each, str(refusal)))
            for address, each in refusal.verdicts.items()
        }
    if joints is not None:
        for change in changes:
            joints.commit(change)
    return {}
