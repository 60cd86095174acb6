"""Coverage that is added up: what one run does not know, another may."""

import json

import pytest

from anyprobe.data.findings.coverage import Coverage, CoveredFunction, CoveredModule, Tally, most


def module(build_id="aa", blocks=(3, 0, None), lines=(3, None), path="/bin/x"):
    function = CoveredFunction("work", 0x100, dict(zip((0, 8, 20), blocks, strict=True)), "x.c", 7)
    return CoveredModule("x", path, build_id, (function,), {"x.c": dict(zip((7, 9), lines, strict=True))})


def test_hits_of_two_runs_are_added_and_what_only_one_knows_is_known_if_it_has_run():
    both = Coverage((module(),)) + Coverage((module(blocks=(2, None, 0), lines=(0, 4)),))
    (found,) = both.modules
    assert found.functions[0].blocks == {0: 5, 8: None, 20: None}
    assert both.files == {"x.c": {7: 3, 9: 4}}
    assert found.blocks == Tally(1, 3, 2)
    assert (found.blocks.share, Tally().share) == (1 / 3, None)


def test_the_same_file_elsewhere_is_the_same_and_another_build_is_not():
    found = (Coverage((module(),)) + Coverage((module(path="/tmp/x"), module(build_id="bb")))).modules
    assert [each.functions[0].hits for each in found] == [6, 3]
    assert [each.build_id for each in found] == ["aa", "bb"]


def test_functions_that_only_one_run_has_seen_are_kept_in_their_order():
    early = CoveredFunction("early", 0x40, {0: 1})
    one, other = module(), CoveredModule("x", "/bin/x", "aa", (early,))
    (found,) = (Coverage((one,)) + Coverage((other,))).modules
    assert [each.name for each in found.functions] == ["early", "work"]
    assert found.entered == Tally(2, 2, 0)


@pytest.mark.parametrize(
    ("hits", "line"), [((0, 3, None), 3), ((0, None), None), ((0, 0), 0), ((None,), None), ((), 0)]
)
def test_a_line_has_the_hits_of_what_has_run_most_of_it(hits, line):
    assert most(hits) == line


def test_a_document_has_null_where_nothing_is_known():
    document = Coverage((module(),)).as_json()
    assert document["files"] == [{"file": "x.c", "lines": {"7": 3, "9": None}}]
    assert document["modules"][0]["blocks"] == {"covered": 1, "total": 3, "unknown": 1}


def test_a_document_is_read_as_what_it_was_written_from():
    found = Coverage((module(), module(build_id=None)))
    assert Coverage.from_json(json.loads(json.dumps(found.as_json()))) == found


def test_what_ran_beyond_another_run():
    here, there = (
        Coverage((module(blocks=(3, 2, 1), lines=(3, 1)),)),
        Coverage((module(blocks=(1, None, 0), lines=(1, 0)),)),
    )
    (found,) = here.beyond(there).modules
    assert (found.functions[0].blocks, found.files) == ({8: 2, 20: 1}, {"x.c": {9: 1}})
    assert here.beyond(here) == Coverage()
    assert here.beyond(Coverage()).modules[0].functions[0].blocks == {0: 3, 8: 2, 20: 1}
