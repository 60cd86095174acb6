"""Plans whose bytes are claimed, as the engine claims those of the plans that it carries out."""


def claimed_plan(planner, function, wants):
    """Plan, and claim what the plan writes and borrows."""
    plan = planner.plan(function, wants)
    for splice in plan.splices:
        planner.claims.claim(splice)
    return plan
