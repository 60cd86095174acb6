"""Coverage as Cobertura's XML (coverage-04.dtd), which GitLab, Jenkins and others show."""

import posixpath
import time
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TextIO

from anyprobe.core.printable import printable
from anyprobe.data.findings.coverage import Hits, Tally
from anyprobe.exporters.base import Measurement, Needs

_DOCTYPE = '<!DOCTYPE coverage SYSTEM "http://cobertura.sourceforge.net/xml/coverage-04.dtd">'


class Cobertura:
    """Writes one document; a folder of sources is a package. Lines of which nothing is known are left out."""

    name = "cobertura"
    needs = Needs.COVERAGE
    holds_warnings = False
    may_repeat = False

    def write(self, found: Measurement, stream: TextIO) -> None:
        """Write the lines of each file."""
        coverage = found.together.coverage
        if coverage is None:
            return
        files = coverage.files
        root = ET.Element("coverage", _rates(hits for lines in files.values() for hits in lines.values()))
        root.set("version", "anyprobe")
        root.set("timestamp", str(int(time.time())))
        ET.SubElement(ET.SubElement(root, "sources"), "source").text = "/"
        folders: defaultdict[str, dict[str, Mapping[int, Hits]]] = defaultdict(dict)
        for path, lines in files.items():
            folders[posixpath.dirname(path)][path] = lines
        packages = ET.SubElement(root, "packages")
        for folder, inside in folders.items():
            package = ET.SubElement(
                packages, "package", _rates(hits for lines in inside.values() for hits in lines.values())
            )
            package.set("name", printable(folder).strip("/").replace("/", "."))
            classes = ET.SubElement(package, "classes")
            for path, covered in inside.items():
                one = ET.SubElement(classes, "class", _rates(covered.values()))
                one.set("name", printable(posixpath.basename(path)))
                one.set("filename", printable(path).lstrip("/"))
                ET.SubElement(one, "methods")
                rows = ET.SubElement(one, "lines")
                for line, hits in covered.items():
                    if hits is not None:
                        ET.SubElement(rows, "line", number=str(line), hits=str(hits), branch="false")
        since = f"<!-- covered since {coverage.since} -->"  # the format has no place for it
        stream.write(f'<?xml version="1.0" ?>\n{_DOCTYPE}\n{since}\n{ET.tostring(root, encoding="unicode")}\n')
        stream.flush()


def _rates(lines: Iterable[Hits]) -> dict[str, str]:
    """Return the attributes that tell how many of some lines have run."""
    tally = Tally.of(lines)
    return {
        "line-rate": f"{tally.covered / tally.known if tally.known else 0:.4f}",
        "branch-rate": "0",
        "lines-covered": str(tally.covered),
        "lines-valid": str(tally.known),
        "branches-covered": "0",
        "branches-valid": "0",
        "complexity": "0",
    }


EXPORTER = Cobertura()
