"""The kernel's switches, on files."""

from contextlib import suppress

import pytest

from anyprobe.core.errors import TargetError
from anyprobe.target.kernel.switches import Switch


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize("on", [True, False])
def test_held_gives_back_what_was_found(tmp_path, before, on):
    (tmp_path / "switch").write_text(f"{before:d}\n")
    switch = Switch(str(tmp_path / "switch"), "it", "nothing")
    with suppress(KeyboardInterrupt), switch.held(on=on) as found:
        assert (found, switch.read()) == (before, on)
        raise KeyboardInterrupt
    assert switch.read() == before


def test_what_is_not_there(tmp_path):
    switch = Switch(str(tmp_path / "none" / "switch"), "it", "mount it")
    assert switch.read() is None
    with pytest.raises(TargetError, match="mount it"):
        switch.write(on=True)
