"""The benchmarks: raw figures and ratios against other tools in one run.

``python bench/run.py [--quick] [ROW...]``, a row by its group: shell, start, attach, entry, timing, returns, truth,
disarmed, arming, analysis, blocks, python, cover, coverage, data, handlers, break, record, locks, kprobes, usdt,
following, server, kernel, splices.
"""

import argparse
import compileall
import os
import platform
import time
import timeit
from pathlib import Path

from measure import HERE, compiled, wait_idle
from rows import Report


def groups() -> dict[str, object]:
    """Return the groups of rows by name."""
    import archive_rows
    import blocks
    import break_rows
    import cover_rows
    import coverage_rows
    import data_rows
    import following_rows
    import handler_rows
    import kernel_rows
    import kprobe_rows
    import latency
    import lock_rows
    import per_call
    import record_rows
    import return_rows
    import server_rows
    import splice_rows
    import start_rows
    import truth_rows
    import usdt_rows
    import wholesale

    return {
        "shell": lambda report, _: latency.shell_rows(report),
        "start": lambda report, _: start_rows.start_rows(report),
        "attach": lambda report, _: latency.attach_rows(report),
        "entry": per_call.entry_rows,
        "timing": per_call.timing_row,
        "returns": return_rows.return_rows,
        "truth": truth_rows.truth_rows,
        "disarmed": per_call.disarmed_row,
        "arming": lambda report, _: wholesale.arming_rows(report),
        "analysis": blocks.analysis_rows,
        "blocks": blocks.block_rows,
        "python": lambda report, _: wholesale.python_rows(report),
        "cover": cover_rows.cover_rows,
        "coverage": coverage_rows.coverage_rows,
        "data": data_rows.data_rows,
        "handlers": handler_rows.handler_rows,
        "break": break_rows.break_rows,
        "archives": archive_rows.archive_rows,
        "record": record_rows.record_rows,
        "locks": lock_rows.lock_rows,
        "kprobes": kprobe_rows.kprobe_rows,
        "usdt": usdt_rows.usdt_rows,
        "following": following_rows.following_rows,
        "server": server_rows.server_rows,
        "kernel": kernel_rows.kernel_rows,
        "splices": splice_rows.splice_rows,
    }


def machine() -> str:
    """Return one line about where this runs."""
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(":")[2].strip()
    return f"{os.cpu_count()} x {model}, Linux {platform.release()}, libc {platform.libc_ver()[1]}"


def interpreter() -> str:
    """Return one line about what runs this: the seconds of analysis and arming follow its speed."""
    turn = min(timeit.repeat("total += number & 7", "total = 0; number = 5", number=1_000_000, repeat=5))
    return f"Python {platform.python_version()}: {1e3 * turn:.0f} ms for a million turns of a loop"


def main() -> None:
    """Run the groups that were asked for, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the calls: figures for a look, not for a claim"
    )
    parser.add_argument("rows", nargs="*", help="groups of rows; all if none is named")
    arguments = parser.parse_args()
    compiled(HERE / "target.c")
    compileall.compile_dir(HERE.parent / "src", quiet=1)  # as after a first run, whatever the environment says
    print(machine())
    print(interpreter())
    if not wait_idle():
        print("this machine is busy with something else: the figures are worth less")
    report = Report()
    report.heading()
    begin = time.monotonic()
    for name, run in groups().items():
        if not arguments.rows or name in arguments.rows:
            try:
                run(report, 0.1 if arguments.quick else 1.0)  # type: ignore[operator]
            except Exception as error:
                report.add(name, "failed", "", False, f"{type(error).__name__}: {error}")
    print(f"{report.summary()}; {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()
