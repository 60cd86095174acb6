"""Planners for tests, and plans whose bytes are claimed as the engine claims those that it carries out."""

from anyprobe.splice.plan.context import PlanContext
from anyprobe.splice.plan.planner import Planner, plan_live
from anyprobe.splice.plan.site import Site


def planner_for(*arguments, **settings):
    """Return a planner with a context of its own."""
    return Planner(PlanContext(*arguments, **settings))


class LivePlanner:
    """Plans for changes that are made while the program runs."""

    def __init__(self, context):
        self.context = context

    def plan(self, function, wants):
        return plan_live(self.context, function, wants)


def claimed_plan(planner, function, wants):
    """Plan, and claim what the plan writes and borrows."""
    plan = planner.plan(function, wants)
    for splice in plan.splices:
        planner.context.claims.claim(splice)
    return plan


def first_site(context, address, count=1):
    """Return the site of an instruction at the beginning of a line of so many, with nothing planned yet."""
    function = context.code.function_at(address)
    return Site(context, function, function.lines.around(address, address)[:count], 0, 0, address)
