"""Running anyprobe with a fault put in: ``python -m anyprobe.testing --fault kill-before:17 -- ARGUMENTS``.

Only this module reads faults from outside; production code never does.
"""

import os
import sys

from anyprobe.target.system.gateway import FaultPlan, faults

_USAGE = "usage: python -m anyprobe.testing [--fault KIND:N[:ERRNO]] [--count-calls] [--log-calls] -- ARGUMENTS"
FAULT_VARIABLE = "ANYPROBE_FAULT"


def main(arguments: list[str]) -> int:
    """Run the command line with a fault; return its exit status."""
    fault, count, log = os.environ.get(FAULT_VARIABLE, ""), False, False
    while arguments and arguments[0] != "--":
        option = arguments.pop(0)
        if option == "--fault" and arguments:
            fault = arguments.pop(0)
        elif option == "--count-calls":
            count = True
        elif option == "--log-calls":
            log = True
        else:
            sys.stderr.write(_USAGE + "\n")
            return 2
    faults.install(FaultPlan.parse(fault) if fault else None, log=log)
    status = 0
    try:
        status = _run(arguments[1:])
    finally:
        calls, lines = faults.calls, faults.log or []
        faults.clear()
        for number, line in enumerate(lines, 1):
            sys.stderr.write(f"{number} {line}\n")
        if count:
            sys.stderr.write(f"gateway-calls {calls} fault-reached {int(faults.reached)}\n")
    return status


def _run(arguments: list[str]) -> int:
    from anyprobe import cli

    try:
        return cli.main(arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
