"""A program's functions planned as sessions plan them one after the other, with what is kept of that."""

from types import SimpleNamespace

from anyprobe.binary.flow.cfg import CodeMap, FunctionCode
from anyprobe.binary.images.image import Image
from anyprobe.probes.coverage.covering import RUNS
from anyprobe.probes.providers.function.probe import instructions_of
from anyprobe.splice.memory.space import AddressSpace
from anyprobe.splice.plan.claims import Claims
from anyprobe.splice.plan.context import PlanContext
from anyprobe.splice.plan.entry_plans import EntryPlans
from anyprobe.splice.plan.planner import Planner
from anyprobe.splice.plan.splices import Want, WantKind
from anyprobe.splice.plan.springboards import PunPlaces, Springboards
from anyprobe.splice.plan.together import all_of

BIAS = 0x5555_5555_4000
OTHER_BIAS = 0x5581_2345_6000


class Planned:
    """One session's plans of a program, mapped at ``bias``; ``fresh`` are the functions whose plans were made anew."""

    def __init__(self, path, *, bias=BIAS, faults=False):
        image = Image.open(str(path))
        self.code, self.bias, self.faults = CodeMap(image.text()), bias, faults
        self.plans = EntryPlans(self.code.text, image.build_id)
        self.claims, self.fresh, self.made, self._seen = Claims(), [], {}, set()
        starts = self.code.text.function_starts.tolist()
        taken = SimpleNamespace(start=starts[0] + bias & -4096, end=self.code.text.function_ends.max() + bias, path="")
        self.claims.places = PunPlaces(Springboards(AddressSpace([taken])), bias)

    def functions(self, step=1, first=0):
        """Yield every so many functions."""
        for start in self.code.text.function_starts.tolist()[first::step]:
            function = self.code.function_at(start)
            if isinstance(function, FunctionCode):
                yield function

    def wants(self, function, kinds):
        """Return what is wanted of a function and of those that are planned together with it."""
        wants = []
        for each in all_of(self.code, function):
            if WantKind.ENTRY in kinds:
                wants.append(Want(each.entry, WantKind.ENTRY))
            if WantKind.OFFSET in kinds:
                wants += [Want(at, WantKind.OFFSET) for at in instructions_of(each, RUNS[1:])]
            exits = each.exits
            if WantKind.EXIT in kinds and exits.complete is None:
                wants += [Want(at.address, WantKind.EXIT, at.conditional, inside=at.inside) for at in exits.found]
        return wants

    def plan(self, function, kinds, *, kept=True, vital=frozenset()):
        """Plan a function, if it was not planned yet with others, and claim the plan's bytes."""
        first = all_of(self.code, function)[0]
        if first.start in self._seen:
            return
        self._seen.add(first.start)
        wants = self.wants(function, kinds)
        context = PlanContext(
            self.code, self.claims, self.claims.places.reachable, faults_handled=self.faults, bias=self.bias
        )

        def make(context):
            self.fresh.append(first.start)
            return Planner(context).plan(first, wants, vital)

        plans = self.plans.blocks if WantKind.OFFSET in kinds else self.plans.others
        plan = plans.plan(context, first, wants, vital, make) if kept else make(context)
        for splice in plan.splices:
            self.claims.claim(splice)
        self.made[first.start] = shape(plan, wants)

    def plan_all(self, kinds, *, step=1, first=0, kept=True):
        """Plan every so many functions."""
        for function in self.functions(step, first):
            self.plan(function, kinds, kept=kept)
        return self


def shape(plan, wants):
    """Return all that a plan says, as values that are equal where plans are."""
    numbers = {id(want): number for number, want in enumerate(wants)}
    splices = {id(splice): number for number, splice in enumerate(plan.splices)}

    def of_want(want):
        if id(want) in numbers:
            return numbers[id(want)]
        origin = None if want.origin is None else numbers[id(want.origin)]
        block = [(insn.address, insn.raw) for insn in want.block]
        return (
            want.address, want.kind, want.conditional, want.tag, want.inside, block, want.first, want.internal, origin,
            want.after,
        )  # fmt: skip

    def of_splice(splice):
        return (
            splice.strategy, splice.head, [(insn.address, insn.raw) for insn in splice.insns],
            [of_want(want) for want in splice.wants], splice.written, splice.write_at, splice.borrowed, splice.pun,
            splice.springboard, splice.dead_springboard, [splices[id(each)] for each in splice.leans_on],
            splice.hosts_until, splice.ambiguous,
        )  # fmt: skip

    refused = [(numbers[id(want)], why) for want, why in plan.refused]
    return [of_splice(splice) for splice in plan.splices], refused, [each.start for each in plan.scope]
