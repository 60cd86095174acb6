"""Run a command with what a plan says counted or timed from its first instruction on, and report; for ``gcc -wrapper``.

Arguments: a folder, with ``plan.json`` in it (the level, and specs by the command's name; others run as they are),
and the command.
"""

import json
import os
import sys
from collections import Counter
from pathlib import Path

import anyprobe
from support.filters import TIMED, check_timings, functions_run, place

PATIENCE = 3000
"""Seconds that a command may take, with those that it starts."""


def main(folder: Path, argv: list[str]) -> int:
    """Run the command, leave a report called after it, and return its exit status."""
    name = Path(argv[0]).name
    plan = json.loads((folder / "plan.json").read_text())
    level, specs = plan["level"], plan["specs"].get(name)
    if not specs:
        os.execvp(argv[0], argv)  # noqa: S606
    with anyprobe.run(argv, **TIMED.get(level, {})) as session:
        place(session, level, *specs)
        session.resume()
        status = session.wait(PATIENCE)
        snapshot = session.snapshot()
    if level in TIMED:
        check_timings(name, snapshot)
    report = {
        "sites": len(snapshot.sites),
        "armed": sum(site.armed for site in snapshot.sites),
        "hits": snapshot.hits,
        "missed": snapshot.nmissed,
        "refused": Counter(str(each.reason) for each in snapshot.refused),
        "functions": functions_run(snapshot),
    }
    (folder / f"{name}.json").write_text(json.dumps(report))
    return 1 if status is None else os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
