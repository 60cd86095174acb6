"""What the oracle found, summed up."""

from collections import Counter

from anyprobe.isa.decode import decode_one

PREFIXED_BRANCH = "a branch with an operand size prefix depends on the processor's make"
REFUSALS = (
    "far branches and software interrupts show the program where they ran",
    PREFIXED_BRANCH,
    "its operand is relative to eip",
    "its operand is relative to esp",
    "calls its own stack pointer",
    "its operand may lie where it pushes the return address",
    "its displacement cannot grow by eight",
)
"""What has no displaced form, by the words with which it is refused; everything else runs."""


def differences(verdicts):
    return [f"{code}: {detail}" for code, (verdict, detail) in verdicts.items() if verdict == "different"]


def refused_without_reason(verdicts):
    refused = {code: detail for code, (verdict, detail) in verdicts.items() if verdict == "refused"}
    return {code: detail for code, detail in refused.items() if not detail.endswith(REFUSALS)}


def report(name, verdicts):
    """Return lines with all numbers, refusals by reason, and what could not run by mnemonic."""
    outcomes = Counter(verdict for verdict, _ in verdicts.values())
    yield f"{name}: {len(verdicts)} forms: " + ", ".join(f"{count} {verdict}" for verdict, count in outcomes.items())
    reasons = Counter(detail.split(": ")[-1] for verdict, detail in verdicts.values() if verdict == "refused")
    yield from (f"  refused: {count} {reason}" for reason, count in reasons.items())
    for wanted in ("always faulted", "not on this processor", "not run"):
        texts = (
            decode_one(bytes.fromhex(code), 0).text for code, (verdict, _) in verdicts.items() if verdict == wanted
        )
        names = sorted({text.split()[0] for text in texts})
        yield f"  {wanted}: {' '.join(names)}"
    yield from (f"  different: {line}" for line in differences(verdicts))
