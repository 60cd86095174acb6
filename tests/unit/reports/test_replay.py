"""Lines of a recording that are not of calls."""

from dataclasses import fields

import numpy as np

from anyprobe.data.calls.recorded import Thread
from anyprobe.data.calls.recording import Recording
from anyprobe.data.calls.timeline import Calls, Gap
from anyprobe.reports.replay import lines


def test_how_many_events_are_lost_is_said_where_it_is_known():
    calls = Calls(*(np.empty(0, np.int64) for _ in fields(Calls)))
    gaps = [Gap(time, 0, lost) for time, lost in enumerate((1, 1200, 0))]
    said = list(lines(Recording("run.aprobe", [Thread(7, 8, "a")]), calls, gaps, 0))
    assert [line.partition("---")[2] for line in said] == [
        " 1 event lost before this ---",
        " 1,200 events lost before this ---",
        " events may be lost before this ---",
    ]
