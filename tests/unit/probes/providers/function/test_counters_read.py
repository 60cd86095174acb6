"""What the words of counters mean."""

import pytest

from anyprobe.probes.providers.function.reading import at_least_none


@pytest.mark.parametrize(("word", "hits"), [(0, 0), (7, 7), (1 << 62, 1 << 62), ((1 << 64) - 1, 0), ((1 << 64) - 8, 0)])
def test_what_a_handler_has_taken_back_and_not_counted_again_is_no_hit(word, hits):
    assert at_least_none(word) == hits
