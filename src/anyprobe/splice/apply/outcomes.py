"""What becomes of edits: settled, given up with a reason, or taken back."""

from collections.abc import Sequence

from anyprobe.core.refusal import Reason, Refusal
from anyprobe.splice.apply.staleness import additions, gone, lose
from anyprobe.splice.edits import Edit, hook_of
from anyprobe.splice.emitted import FunctionChange
from anyprobe.splice.plan.splices import Want
from anyprobe.target.system.procfs import Mapping


def refuse(want: Want, why: Refusal) -> None:
    """Note why a want is not served, unless another reason is known."""
    hook = hook_of(want)
    if hook is not None and hook.refusal is None:
        hook.refusal = why


def spread(refused: Sequence[tuple[Want, Refusal]], wants: Sequence[Want]) -> dict[Want, Refusal]:
    """Return the refused wants and those of the same groups."""
    found = dict(refused)
    groups = {}
    for want, why in refused:
        hook = hook_of(want)
        if hook is not None and hook.group is not None:
            groups[id(hook.group)] = why
    for want in wants if groups else ():
        hook = hook_of(want)
        if want not in found and hook is not None and id(hook.group) in groups:
            why = groups[id(hook.group)]
            detail = f"the exit or entry at {why.address:#x} is refused: {why.reason.value}: {why.detail}"
            found[want] = Refusal(Reason.EXIT_REFUSED, want.address, detail)
    return found


def give_up(edit: Edit, why: Refusal) -> None:
    """Leave a function as it is: refuse what was to be added, claim the old splices' bytes again."""
    abandon(edit, why)
    edit.module.losses += why.reason is Reason.GONE
    for want in edit.added:
        refuse(want, why)


def abandon(edit: Edit, why: Refusal | None = None) -> None:
    """Forget a function's plan; its bytes are claimed as before."""
    for want in edit.state.wants if edit.yields else ():  # what it was to lose stays after all
        if (hook := hook_of(want)) is not None:
            hook.refusal = None
    edit.abandon(why)


def without_gone(edits: Sequence[Edit], mappings: Sequence[Mapping]) -> Sequence[Edit]:
    """Give up what would add to modules that are gone; return the others."""
    lost = additions(edits, mappings)
    for edit in lost:
        give_up(edit, gone(edit))
    return [edit for edit in edits if edit not in lost] if lost else edits


def settle(edit: Edit, change: FunctionChange, refusal: Refusal | None, arming: str = "") -> None:
    """Take note of what became of a function: its change is made, or refused; ``arming``: how it is made."""
    if refusal is not None:
        give_up(edit, refusal)
        if refusal.reason is Reason.GONE:
            lose(edit.module, edit.state, refusal)
        return
    state, planned = edit.state, edit.planned
    edit.made()
    for want in set(state.wants).difference(planned.wants) if edit.yields else edit.removed:
        if (hook := hook_of(want)) is not None:
            hook.splice = None
    edit.module.settle(state, list(planned.wants), [*planned.staying, *change.added])
    for splice in change.added:
        for want in () if splice.is_springboard else splice.planned.wants:
            if (hook := hook_of(want)) is not None:
                hook.splice, hook.refusal, hook.strategy = splice, None, splice.planned.strategy.value
                hook.arming = arming
