"""Coverage as one HTML page: files, the worst first, and their source with how often each line has run."""

from importlib.resources import files
from typing import Any, TextIO

from anyprobe.core.printable import printable
from anyprobe.data.findings.coverage import ATTACH, START, Coverage, Tally
from anyprobe.exporters.base import Measurement, Needs
from anyprobe.exporters.json_document import in_page

_SINCE = {
    START: "the program's start",
    ATTACH: "attach: of a program that ran already, what ran before is not known",
}


class CoveredSource:
    """Writes one page; sources that are not on this machine are shown by the numbers of their lines."""

    name = "html"
    needs = Needs.COVERAGE
    holds_warnings = False
    may_repeat = False

    def write(self, found: Measurement, stream: TextIO) -> None:
        """Write the page."""
        page = files("anyprobe.exporters").joinpath("pages/coverage.html").read_text(encoding="utf-8")
        shown = found.together
        coverage = shown.coverage or Coverage()
        data = {
            "title": printable(shown.target.exe or "anyprobe"),
            "facts": f"What has run in {shown.duration_s:.2f} s since {_SINCE[coverage.since]}.",
            **_data(coverage),
        }
        stream.write(page.replace("@COVERAGE@", in_page(data)))
        stream.flush()


def _data(coverage: Coverage) -> dict[str, Any]:
    return {
        "counted": coverage.counted,
        "modules": [
            {
                "name": printable(each.name),
                "without": printable(each.without_lines),
                **{name: _tally(of) for name, of in (("functions", each.entered), ("blocks", each.blocks))},
                "lines": _tally(each.lines),
            }
            for each in coverage.modules
        ],
        "files": [
            {"path": printable(path), "lines": lines, "source": source_of(path)}
            for path, lines in coverage.files.items()
        ],
    }


def _tally(tally: Tally) -> list[int]:
    return [tally.covered, tally.total, tally.unknown]


def source_of(path: str) -> list[str]:
    """Return the lines of a source file; none where it is not on this machine, or cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return [printable(line.rstrip("\n"), "\t") for line in file]
    except OSError:
        return []


EXPORTER = CoveredSource()
