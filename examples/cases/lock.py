"""The case of docs/case-studies/lock.md: a cache that does not scale, what ``anyprobe locks`` says, and the change."""

import subprocess
import sys
import tempfile
from pathlib import Path

SOURCE = Path(__file__).with_name("lock.c")
ANYPROBE = [sys.executable, "-m", "anyprobe"]
THREADS = ("1", "2", "4", "8")


def shown(*words: str) -> None:
    """Run a command, and show it as a shell would."""
    names = (
        "anyprobe" if word == sys.executable else Path(word).name for word in words if word not in {"-m", "anyprobe"}
    )
    print("$", *names, flush=True)
    subprocess.run(words, check=True, stderr=subprocess.STDOUT)
    print(flush=True)


def main() -> None:
    """Measure before, look, and measure after."""
    with tempfile.TemporaryDirectory() as folder:
        before, after = f"{folder}/before", f"{folder}/after"
        for program, options in ((before, ()), (after, ("-DOUTSIDE",))):
            subprocess.run(["gcc", "-O2", "-g", "-pthread", *options, str(SOURCE), "-o", program], check=True)
        for threads in THREADS:
            shown(before, threads)
        shown(*ANYPROBE, "locks", "--", before, "8")
        shown(*ANYPROBE, "offcpu", "--top", "4", "--", before, "8")
        for threads in THREADS:
            shown(after, threads)
        shown(*ANYPROBE, "locks", "--top", "3", "--", after, "8")


if __name__ == "__main__":
    main()
