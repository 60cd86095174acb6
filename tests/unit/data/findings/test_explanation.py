"""An explanation in one sentence."""

import pytest

from anyprobe.data.findings.explanation import Explanation

NOTHING = {
    "spec": "pid:a:f:entry", "module": "a", "function": "f", "address": 0, "function_start": 0, "disassembly": (),
    "live_registers": (), "dead_registers": (), "dead_vectors": (), "flags_live": False,
}  # fmt: skip
TIMED = (
    "would be timed at its entry, placed by a 2-byte jump to a springboard nearby, and at its only exit, "
    "about 30 ns a call"
)


@pytest.mark.parametrize(
    ("parts", "sentence"),
    [
        ({"verdicts": (("retarget", "too-short: no"), ("jump", "chosen"))},
         "would be placed by a 5-byte jump, about 1 ns a hit"),
        ({"verdicts": (("punned", "chosen"),)},
         "would be placed by a 5-byte jump that shares bytes with what follows, about 1 ns a hit"),
        ({"verdicts": (("trap", "chosen"),)}, "would be placed by a trap, of one byte, about 1 µs a hit"),
        ({"verdicts": (("jump", "chosen"),), "refused": "no-exit: the function never returns"},
         "refused: the function never returns (no-exit)"),
        ({"verdicts": (("jump", "too-short: no"),)}, "refused: no strategy will do"),
        ({"verdicts": (("jump", "chosen"),), "sites": ((0, "jump"), (4, "lone-ret: it is"), (5, "short"))},
         "would be placed by a 5-byte jump, about 1 ns a hit, 1 of all 3 sites are refused"),
        ({"verdicts": (("short", "chosen"),), "sites": ((0, "short"), (9, "jump")), "timed": True},
         TIMED),
        ({"verdicts": (("short", "chosen"),), "sites": ((0, "short"), (9, "jump")), "timed": True,
          "by_goroutine": True},
         TIMED.replace("30 ns", "25 ns")),
        ({"verdicts": (("short", "chosen"),), "sites": ((0, "short"),), "timed": True, "in_callers": True},
         TIMED.replace("at its only exit", "where its callers go on")),
    ],
)  # fmt: skip
def test_the_sentence(parts, sentence):
    assert Explanation(**NOTHING, **parts).summary == sentence
