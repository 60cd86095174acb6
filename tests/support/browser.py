"""Pages in a browser without a window."""

import subprocess


def opened_in_a_browser(page, link=""):
    """Return the document of a page once its scripts have run in a browser; ``link``: the end of its address."""
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1032,800",
               f"--user-data-dir={page.parent / 'browser'}", "--dump-dom", f"{page.as_uri()}{link}"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout
