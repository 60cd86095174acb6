"""How often each instruction of ``targets/instruction_classes.c`` runs, by construction."""

import re
import subprocess

REPEATED = {
    "callee": [5],
    "jumps_no_track": [4, 4, 3, 3, 3, 3, 1, 1, 1, 1, 2, 2],
    "jumps_table": [3, 3, 3, 1, 1, 1, 1, 1, 1],
    "counts_down": [1, 1, 5, 5, 1],
    "loops_equal": [1, 1, 4, 4, 4, 1],
    "loops_not_equal": [1, 1, 4, 4, 4, 1],
    "counts_ecx": [1, 1, 3, 3, 1],
    "asks_rcx": [3, 3, 3, 2, 3, 1, 3],
    "conditional": [4, 4, 4, 3, 2, 3, 4, 4, 4],
}
"""How often each instruction of a function runs where that is not once: the last number goes on."""


def listing(program):
    """Return the offset and text of each instruction of each function, as objdump sees them."""
    command = ["objdump", "-d", "--no-show-raw-insn", "-M", "intel", str(program)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found, start = {}, 0
    for line in output.splitlines():
        if head := re.match(r"^([0-9a-f]+) <(.*)>:$", line):
            start, lines = int(head[1], 16), found.setdefault(head[2], {})
        elif insn := re.match(r"^\s+([0-9a-f]+):\s+(.*)$", line):
            lines[int(insn[1], 16) - start] = insn[2]
    return found


def expected(function, offsets):
    """Return how often each instruction runs when a function is tallied once."""
    times = REPEATED.get(function, [1])
    return dict(zip(offsets, times + times[-1:] * len(offsets), strict=False))
