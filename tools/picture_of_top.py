"""Write docs/top.svg: the screen of ``anyprobe top`` in 80 columns after ten seconds of a busy Python."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path

from anyprobe.cli import main
from anyprobe.cli.top import session
from anyprobe.cli.top.screen import TopScreen

PROGRAM = "import json\nwhile True: json.loads(json.dumps({str(i): [i] * 5 for i in range(100)}))"
SPECS = ("a.out:PyDict_*", "a.out:PyList_*", "a.out:PyLong_*", "a.out:PyUnicode_*", "libc:malloc", "libc:free")
PICTURE = Path(__file__).parent.parent / "docs" / "top.svg"


async def draw(screen: TopScreen) -> None:
    """Let the screen be for a while, and write what it shows then."""
    async with screen.run_test(size=(80, 24)) as pilot:
        while len(screen.top.series) < 20:
            await pilot.pause(0.1)
        await pilot.press("c", "down")
        picture = re.sub(r"@font-face \{.*?\}\n", "", screen.export_screenshot(), flags=re.DOTALL)  # from a network
        PICTURE.write_text(picture)
        await pilot.press("q")


def show(top: session.Top, screen: TopScreen) -> None:  # noqa: ARG001 - the method's signature
    """Draw instead of showing."""
    asyncio.run(draw(screen))


session.Top.show = show  # type: ignore[method-assign]
session.require_terminal = str  # what asks for a terminal asks for nothing
with subprocess.Popen(["/usr/bin/python3", "-c", PROGRAM]) as busy:
    try:
        status = main(["top", *SPECS, "-p", str(busy.pid), "--every", "0.5"])
    finally:
        busy.kill()
sys.exit(status)
