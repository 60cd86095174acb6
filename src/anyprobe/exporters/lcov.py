"""Coverage as tracefiles of LCOV (geninfo(1)), which genhtml, editors and CI services read."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TextIO

from anyprobe.core.printable import printable
from anyprobe.data.findings.coverage import Branch, CoveredFunction, Tally
from anyprobe.exporters.base import Measurement, Needs


class Lcov:
    """Writes a record for each source file. Lines of which nothing is known are left out: the format cannot say it."""

    name = "lcov"
    needs = Needs.COVERAGE
    holds_warnings = False
    may_repeat = False

    def write(self, found: Measurement, stream: TextIO) -> None:
        """Write the functions and the lines of each file."""
        coverage = found.together.coverage
        if coverage is None:
            return
        functions: defaultdict[str, list[CoveredFunction]] = defaultdict(list)
        for module in coverage.modules:
            for function in module.functions:
                functions[function.file].append(function)
        branches = coverage.branches
        for path, lines in coverage.files.items():
            tally = Tally.of(lines.values())
            own = [each for each in functions[path] if each.hits is not None]
            stream.write(f"TN:since_{coverage.since}\nSF:{printable(path)}\n")
            stream.writelines(f"FN:{each.line},{printable(each.name)}\n" for each in own)
            stream.writelines(f"FNDA:{each.hits},{printable(each.name)}\n" for each in own)
            stream.write(f"FNF:{len(own)}\nFNH:{sum(bool(each.hits) for each in own)}\n")
            stream.writelines(_branches(branches.get(path, {})))
            stream.writelines(f"DA:{line},{hits}\n" for line, hits in lines.items() if hits is not None)
            stream.write(f"LF:{tally.known}\nLH:{tally.covered}\nend_of_record\n")
        stream.flush()


def _branches(lines: Mapping[int, Sequence[Branch]]) -> Iterator[str]:
    """Yield the two ways of each conditional jump of a file, and how many there are; ``-``: none was come to."""
    known = [
        (line, number, each.taken, each.not_taken)
        for line, found in sorted(lines.items())
        for number, each in enumerate(found)
        if each.taken is not None and each.not_taken is not None
    ]
    for line, number, *ways in known:
        for way, hits in enumerate(ways):
            yield f"BRDA:{line},{number},{way},{hits if any(ways) else '-'}\n"
    if known:
        yield f"BRF:{2 * len(known)}\nBRH:{sum(bool(hits) for _, _, *ways in known for hits in ways)}\n"


EXPORTER = Lcov()
