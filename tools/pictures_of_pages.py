"""Make docs/flame.png and docs/report.png: pages about a busy redis-server, as a browser without a window draws them.

Run ``.venv/bin/python tools/pictures_of_pages.py [FOLDER]`` after ``make setup``, with redis-server, redis-benchmark
and chromium. With a folder all pictures are written there instead, for a look: wide and narrow, light and dark.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples"))

from demo import answers, free_port, running, wait_until  # noqa: E402 - found by the path above

ANYPROBE = str(ROOT / ".venv/bin/anyprobe")
TIMED = ("processCommand", "call", "setCommand", "getCommand", "dictFind", "lookupKey", "readQueryFromClient")
PAGES = {
    "flame": ("profile", "-n", "redis-server", "--for", "3", "--format", "flame"),
    "report": ("time", "--tree", *TIMED, "-n", "redis-server", "--for", "6", "--every", "0.5"),
}
SIZES = {"flame": (1000, 620), "report": (1000, 1150)}
NARROW = 480


def main() -> int:
    """Measure, and draw each page."""
    looked_at = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        server = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", name]
        load = ["redis-benchmark", "-q", "-p", str(port), "-t", "get,set,incr", "-n", "100000000", "-c", "20"]
        with running(server, stdout=subprocess.DEVNULL):
            wait_until(lambda: answers(port), "redis-server to answer")
            with running(load, stdout=subprocess.DEVNULL):
                time.sleep(0.5)
                pages = {each: measured(each, folder) for each in PAGES}
        for each, page in pages.items():
            width, height = SIZES[each]
            if looked_at is None:
                drawn(page, ROOT / "docs" / f"{each}.png", width, height)
                continue
            looked_at.mkdir(exist_ok=True)
            for dark in (False, True):
                for wide in (width, NARROW):
                    shade = "dark" if dark else "light"
                    drawn(page, looked_at / f"{each}-{wide}-{shade}.png", wide, height, dark=dark)
    return 0


def measured(name: str, folder: Path) -> Path:
    """Run the command of a page, and return its file."""
    page = folder / f"{name}.html"
    command = [ANYPROBE, *PAGES[name], "--quiet"]
    if name == "report":
        kept = str(folder / "run.aprobe")
        subprocess.run([*command, "-o", kept], check=True)
        command = [ANYPROBE, "report", kept]
    subprocess.run([*command, "-o", str(page)], check=True)
    return page


def drawn(page: Path, picture: Path, width: int, height: int, *, dark: bool = False) -> None:
    """Draw a page."""
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"]
    look = [f"--window-size={width},{height}", f"--screenshot={picture}", f"--user-data-dir={page.parent / 'browser'}"]
    scheme = [f"--blink-settings=preferredColorScheme={0 if dark else 1}"]
    subprocess.run([*browser, *look, *scheme, page.as_uri()], check=True, stderr=subprocess.DEVNULL)
    print(f"{picture}: {picture.stat().st_size:,} bytes")


if __name__ == "__main__":
    raise SystemExit(main())
