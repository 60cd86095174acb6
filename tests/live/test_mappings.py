"""Programs that have nearly as many mappings as the kernel allows: what they may still make is shared with them."""

import anyprobe
from support.image import Image


def test_half_of_the_mappings_that_are_left_stay_the_programs(run_target):
    """Punned jumps want a hundred pages here, and sixty mappings are left."""
    target = run_target("many_mappings.c", "60")
    before = Image.of(target.pid)
    with anyprobe.attach(target.pid) as session:
        session.count("libc:*str*%insn")
        target.go(3)  # it makes fourteen more, and checks that it can
        snapshot = session.snapshot()
        assert sum(site.hits for site in snapshot.sites) > 100
        assert 0 < sum(site.strategy == "punned" for site in snapshot.sites) < 200
        assert 0 < len(snapshot.refused) < len(snapshot.sites) / 100
    before.assert_restored(target.pid)
    target.go(1)
    target.finish()
