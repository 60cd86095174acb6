"""A controller in a child process, which a fault plan may end at one of its calls."""

import os
import signal
from collections.abc import Callable

from anyprobe.target.system.gateway import FaultPlan


def dies(plan: FaultPlan | None, act: Callable[[], object]) -> bool:
    """Do something in a child; return whether it was killed on the way, and see that nothing else went wrong."""
    controller = os.fork()
    if controller == 0:
        try:
            act()
        except BaseException as error:
            os.write(2, f"{plan}: {error!r}\n".encode())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(controller, 0)
    assert status in (0, signal.SIGKILL), (plan, status)
    return status == signal.SIGKILL
