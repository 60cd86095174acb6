"""Print which share of entries, exits and instructions of some files jumps can reach, and why not the rest.

    .venv/bin/python tools/coverage.py [--sample N] [--list N] [--only flow|ends|alone|once] FILE...

First the functions whose control flow is known (``tools/control_flow.py`` says more). Then three plans of each file, as
a session would make them if the file were mapped alone, with nothing changed anywhere: every entry and exit together,
every instruction by itself (or N of them, the same for the same N), every instruction together. Strategies are those
that need no demand: never a trap.
"""

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from control_flow import ControlFlow

from anyprobe.binary.flow.cfg import CodeMap, FunctionCode
from anyprobe.binary.flow.exits import Exit
from anyprobe.binary.images.image import Image
from anyprobe.core.refusal import Reason, Refusal
from anyprobe.probes.providers.function.probe import exit_want
from anyprobe.splice.edits import FunctionState, Module
from anyprobe.splice.memory.space import AddressSpace
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.context import PlanContext
from anyprobe.splice.plan.planner import Planner
from anyprobe.splice.plan.splices import FunctionPlan, Want, WantKind
from anyprobe.splice.plan.springboards import PunPlaces, Springboards
from anyprobe.target.system.procfs import Mapping

_PROGRAM_AT, _LIBRARY_AT = 0x5555_5555_4000, 0x7F55_5540_0000
"""Where Linux would place a program and a library, more or less."""


_SIDE_BY_SIDE = 100
"""Functions that are planned together where not all are."""


@dataclass
class Tally:
    """How many wants are served by which strategy, and what is refused."""

    served: Counter[str] = field(default_factory=Counter)
    refused: list[tuple[FunctionCode, Want, Refusal]] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def wanted(self) -> int:
        """The number of wants."""
        return self.served.total() + len(self.refused)

    @property
    def share(self) -> float:
        """The share of wants that are served, in per cent."""
        return 100 * self.served.total() / max(self.wanted, 1)

    def reasons(self) -> Counter[str]:
        """Return how often each reason occurs."""
        return Counter(why.reason.value for _, _, why in self.refused)

    def complete(self) -> "Tally":
        """Return the part of it in functions whose control flow is known."""
        return Tally(self.served, [each for each in self.refused if _is_known(each[0])], self.seconds)

    def add(self, function: FunctionCode, plan: FunctionPlan, code_map: CodeMap) -> None:
        """Count what a plan of one function serves; a want that several splices serve counts once."""
        by_want = {want.origin or want: splice for splice in plan.splices for want in splice.wants}
        kinds = Counter(s.strategy.value for want, s in by_want.items() if want.kind is not WantKind.LOOP)
        self.served.update(kinds)
        self.refused += [(code_map.containing(want.address) or function, want, why) for want, why in plan.refused]


class Survey:
    """One file, its functions, and an address space with nothing else in it."""

    def __init__(self, path: str) -> None:
        """Find the functions."""
        self.image = Image.open(path)
        self.map = CodeMap(self.image.text(), self.image.cold_parts)
        found = [self.map.function_at(start) for start in self.image.text().function_starts.tolist()]
        self.pieces = [function for function in found if isinstance(function, FunctionCode)]
        """All code, by function and part."""
        parts = self.image.unnamed_parts
        self.functions = [function for function in self.pieces if function.start not in parts]
        """What a glob means: without the parts that have no name."""
        self._begin()

    def _begin(self) -> None:
        """Start with nothing spliced."""
        image = self.image
        self.bias = (_PROGRAM_AT if image.is_program else _LIBRARY_AT) if image.is_pie else 0
        loads = image.elf.loads
        mappings = [
            Mapping(
                each.vaddr + self.bias, each.vaddr + each.memsz + self.bias, "r-xp", 0, "", 1, image.path, deleted=False
            )
            for each in loads
        ]
        if image.is_program:
            mappings.append(
                Mapping(mappings[-1].end, mappings[-1].end + (1 << 20), "r-xp", 0, "", 1, "[heap]", deleted=False)
            )
        self.springboards = Springboards(AddressSpace(mappings))
        places = PunPlaces(self.springboards, self.bias)
        self.claims = Claims(places=places)
        text = image.text()
        self.planner = Planner(
            PlanContext(self.map, self.claims, places.reachable, plain_jumps_only=text.is_go, parking=text.parking)
        )

    @property
    def mappings(self) -> int:
        """The number of pages of springboards: each is a mapping of the program."""
        return len(self.springboards._pages)  # noqa: SLF001 - a figure that nobody else asks for

    @cached_property
    def instruction_count(self) -> int:
        """The number of instructions."""
        return sum(len(function.addresses) for function in self.pieces)

    def flow(self) -> ControlFlow:
        """Follow the indirect jumps of all code, parts of functions included."""
        return ControlFlow.of(self.pieces)

    def ends(self) -> Tally:
        """Plan every entry and every exit, together; exits of which not all are known count as refused."""
        tally = self._together(self.functions, self._ends_of, ends=True)
        for function in self.functions:
            why = function.exits.complete
            if why is not None and why.reason is not Reason.PART_OF_FUNCTION:
                tally.refused += [(function, exit_want(each), why) for each in function.exits.found]
        return tally

    @staticmethod
    def _ends_of(function: FunctionCode) -> list[Want]:
        return [Want(function.entry, WantKind.ENTRY), *map(exit_want, Survey._exits_of(function))]

    @staticmethod
    def _exits_of(function: FunctionCode) -> Sequence[Exit]:
        return function.exits.found if function.exits.complete is None else ()

    def at_once(self, most: int | None = None) -> Tally:
        """Plan every instruction, together; or those of functions side by side, from several places, with ``most``."""
        total = self.instruction_count
        step = max(1, round(total / (most or total)))
        blocks = [self.pieces[at : at + _SIDE_BY_SIDE] for at in range(0, len(self.pieces), _SIDE_BY_SIDE * step)]
        return self._together(
            [function for block in blocks for function in block],
            lambda function: [Want(address, WantKind.OFFSET) for address in function.addresses],
        )

    def _together(
        self, functions: list[FunctionCode], wants_of: Callable[[FunctionCode], list[Want]], *, ends: bool = False
    ) -> Tally:
        self._begin()
        tally, begin = Tally(), time.process_time()
        for members in self._groups(functions, ends=ends):
            wants = [want for function in members for want in wants_of(function)]
            plan = self.planner.plan(members[0], wants)
            tally.add(members[0], plan, self.map)
            for splice in plan.splices:
                self.claims.claim(splice)
        tally.seconds = time.process_time() - begin
        return tally

    def _groups(self, functions: list[FunctionCode], *, ends: bool) -> Iterator[list[FunctionCode]]:
        """Yield functions by what is planned together, for their ends or for their instructions."""
        module = Module("", self.map, 0, 0, 0)
        groups: dict[FunctionState, list[FunctionCode]] = {}
        for function in functions:
            exits = self._exits_of(function) if ends else ()
            module.state_of(function, [each.address for each in exits])
        for function in functions:
            groups.setdefault(module.state_of(function), []).append(function)
        yield from groups.values()

    def alone(self, sample: int | None = None) -> Tally:
        """Plan instructions one by one, each with nothing else spliced; all of them or ``sample``."""
        self._begin()
        tally, begin = Tally(), time.process_time()
        for function, address in self.instructions(sample):
            plan = self.planner.plan(function, [Want(address, WantKind.OFFSET)])
            tally.add(function, plan, self.map)
        tally.seconds = time.process_time() - begin
        return tally

    def instructions(self, sample: int | None = None) -> Iterator[tuple[FunctionCode, int]]:
        """Yield all instructions, or ``sample`` of them: the same ones for the same number."""
        total = self.instruction_count
        chosen = None if sample is None or sample >= total else set(random.Random(sample).sample(range(total), sample))
        number = 0
        for function in self.pieces:
            for address in function.addresses:
                if chosen is None or number in chosen:
                    yield function, address
                number += 1

    def name_of(self, function: FunctionCode) -> str:
        """Return a function's name, or its address."""
        known = self.image.functions.at(function.start)
        return known.name if known is not None else f"{function.start:#x}"


def _is_known(function: FunctionCode) -> bool:
    why = function.exits.complete
    return function.complete is None and (why is None or why.reason is Reason.PART_OF_FUNCTION)


def _row(file: str, what: str, tally: Tally) -> str:
    shares = (f"{name} {100 * count / tally.wanted:.2f}" for name, count in tally.served.most_common())
    return f"| {file} | {what} | {tally.wanted:,} | {tally.share:.3f} | {', '.join(shares)} | {tally.seconds:.0f} |"


def _print_flow(survey: Survey, file: str, most: int) -> None:
    began = time.process_time()
    flow = survey.flow()
    seconds = time.process_time() - began
    print(f"| {file} | flow | {len(flow.functions):,} | {flow.share:.3f} | | {seconds:.0f} |", flush=True)
    for reason, count in flow.reasons().most_common():
        print(f"    {count:7,}  {reason}")
    for function, why in flow.refused[:most]:
        print(f"      {survey.name_of(function)}: {why.address:#x} {why.detail}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Plan the files and print the table."""
    parser = argparse.ArgumentParser(description="Print which share of some files can be reached.")
    parser.add_argument("--sample", type=int, help="plan only so many instructions alone; all if absent")
    parser.add_argument("--list", type=int, default=0, help="list so many refusals of each plan")
    parser.add_argument("--only", choices=("flow", "ends", "alone", "once"), action="append")
    parser.add_argument("files", nargs="+")
    options = parser.parse_args(arguments)
    print("| file | what | functions, sites | known, reached, % | by | CPU seconds |")
    print("|---|---|---:|---:|---|---:|")
    for path in options.files:
        survey = Survey(path)
        plans: dict[str, Callable[[], Tally]] = {
            "ends": survey.ends,
            "alone": lambda survey=survey: survey.alone(options.sample),
            "once": survey.at_once,
        }
        chosen = options.only or ["flow", *plans]
        if "flow" in chosen:
            _print_flow(survey, Path(path).name, options.list)
        for what in (each for each in chosen if each in plans):
            tally = plans[what]()
            print(_row(Path(path).name, what, tally), flush=True)
            _print_refused(survey, tally, options.list)


def _print_refused(survey: Survey, tally: Tally, most: int) -> None:
    for reason, count in tally.reasons().most_common():
        print(f"    {count:7,}  {reason}")
    for function, want, why in random.Random(1).sample(tally.refused, min(most, len(tally.refused))):
        print(f"      {survey.name_of(function)}: {want.kind} {want.address:#x}: {why.reason}: {why.detail}")


if __name__ == "__main__":
    main()
