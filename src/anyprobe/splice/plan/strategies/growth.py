"""The splice before a site, whose patch carries on up to the wanted instruction."""

from anyprobe.core.refusal import Refusal
from anyprobe.splice.plan.drafts import SpliceDraft
from anyprobe.splice.plan.site import Site
from anyprobe.splice.plan.splices import Strategy
from anyprobe.splice.plan.strategies.jump import jump


class Growth:
    """Lets the patch of the splice in front carry on: nothing can enter between."""

    kind = None

    def try_at(self, site: Site) -> SpliceDraft | Refusal:
        """Return the splice in front, which displaces more now."""
        last = site.last
        assert last is not None
        insns = site.run[site.run.index(last.insns[0]) : site.index + 1]
        refusal = site.context.forbidden(insns)
        if refusal is not None:
            return refusal
        last.insns = insns
        return last


class Absorption:
    """Replaces the retargeted branch in front by a jump in its place whose patch carries on."""

    kind = Strategy.JUMP

    def try_at(self, site: Site) -> SpliceDraft | Refusal:
        """Return the jump, which serves what the branch did; the branch is out of the plan."""
        last, claims = site.last, site.context.claims
        assert last is not None
        claims.release(last)
        found = jump(site.context, site.function, site.run, site.run.index(last.insns[0]), site.index)
        if isinstance(found, Refusal):
            claims.claim(last)
            return found
        found.wants = last.wants
        site.plan.splices.remove(last)
        return found
