"""What is taken for too much, from made-up hits."""

from types import SimpleNamespace

import pytest

from anyprobe.probes.providers.function import overhead
from anyprobe.probes.providers.function.overhead import OverheadWatch, Unit, disarmed, units_of
from anyprobe.splice.codegen.patch import ActionKind
from anyprobe.splice.regions.banks import Hook, TimingGroup
from anyprobe.splice.regions.code_region import GoroutineBank, NearBank

SECOND = 1e9


class Hooked:
    """A place, a function with one instruction, that has cost what it is told."""

    def __init__(self, name, spent=0.0, *, armed=True, kind=ActionKind.COUNT, site="entry", counter=None):
        self.spent, self.offset, self.counter = spent, 0, counter or self
        self.hook = SimpleNamespace(kind=kind, armed=armed, strategy="jump", bank="slots")
        self.site = SimpleNamespace(object=SimpleNamespace(name="m"), name=name, kind=site, marker=None)
        self.state = SimpleNamespace(root=self)


@pytest.fixture
def watch(monkeypatch):
    def costs(self, unit, values):
        return [(place.counter, place.spent, SECOND / 100) for place in unit.places]

    monkeypatch.setattr(OverheadWatch, "costs", costs)
    return OverheadWatch(_since=100.0)


class Specified:
    """A probe."""

    def __init__(self, *places, timed=()):
        self.spec, self.places, self.timed = " ".join(f"a.out:{place.site.name}" for place in places), places, timed


def probe_of(*places, timed=()):
    return Specified(*places, timed=timed)


def names(found):
    return [each.unit.name for each in found]


def test_the_dearest_go_first_until_the_rest_stays_below_the_limit(watch):
    glob = probe_of(Hooked("a", 4), Hooked("b", 1), Hooked("c", 9))
    other = probe_of(Hooked("d", 2.5))
    found = watch.look([glob, other], 5, now=101.0)
    assert names(found) == ["m:c", "m:a"]
    assert [each.percent for each in found] == pytest.approx([9, 4])
    assert watch.total == pytest.approx(16.5)


def test_the_limit_is_for_all_together(watch):
    probes = [probe_of(Hooked(name, 2)) for name in "abcd"]
    assert len(watch.look(probes, 5, now=101.0)) == 2
    assert OverheadWatch(_since=100.0).look(probes, 8, now=101.0) == []


def test_each_look_sees_what_came_since_the_last(watch):
    place = Hooked("a", 1)
    probe = probe_of(place)
    assert watch.look([probe], 5, now=101.0) == []
    place.spent += 20
    assert names(watch.look([probe], 5, now=102.0)) == ["a.out:a"]
    assert watch.look([probe], 5, now=103.0) == []


def test_a_counter_that_a_library_takes_over_costs_what_came_since_the_last_look(watch):
    before = Hooked("a", 50)
    watch.look([probe_of(before)], 5, now=101.0)
    again = Hooked("a", 53, counter=before)
    assert watch.look([probe_of(again)], 5, now=102.0) == []
    assert watch.total == pytest.approx(3)
    again.spent += 20
    assert names(watch.look([probe_of(again)], 5, now=103.0)) == ["a.out:a"]


def test_what_is_out_already_is_left_alone(watch):
    assert watch.look([probe_of(Hooked("a", 99, armed=False))], 5, now=101.0) == []


def test_instructions_go_one_by_one_and_handlers_of_a_function_together():
    begin, end = (Hooked(name, kind=ActionKind.HANDLER) for name in ("f", "f%return"))
    end.state.root = begin
    one, other = Hooked("g:insn", site="insn"), Hooked("g:insn", site="insn")
    first, last = Hooked("h:return", site="return"), Hooked("h:return", site="return")
    last.site = other.site = first.site
    other.site = one.site
    units = units_of([probe_of(begin), probe_of(end), probe_of(one, other), probe_of(first, last)])
    assert [unit.places for unit in units] == [[begin, end], [one], [other], [first, last]]


def test_what_was_removed_is_said_in_one_sentence(watch):
    probe = probe_of(*(Hooked(f"f{number}", 10 - number) for number in range(8)))
    excess = watch.look([probe], 0.5, now=101.0)

    def disarm(probes, places):
        assert probes == [probe]
        for place in places[:-1]:
            place.hook.armed = False

    probes, text = disarmed(excess, watch.total, 0.5, disarm)
    assert probes == [probe]
    assert text.startswith("m:f0 (about 10 %), m:f1 (about 9 %), m:f2")
    assert " more were removed: all probes together cost about 52 % of one CPU" in text


class Values:
    def hits(self, hook):
        return 1000

    def reader(self, bank):
        return SimpleNamespace(record=lambda offset: SimpleNamespace(count=10, tail=20, learning=0, missed=30))


def spent_ns(watch, unit):
    return sum(hits * price for _, hits, price in watch.costs(unit, Values()))


def place(strategy="jump", bank="slots"):
    return SimpleNamespace(hook=Hook(ActionKind.COUNT, bank=bank, strategy=strategy))


@pytest.mark.parametrize(
    ("strategy", "bank", "cost"),
    [
        ("jump", "slots", overhead.COUNT_NS),
        ("jump", NearBank(None, None, None), overhead.ATOMIC_COUNT_NS),
        ("trap", "slots", overhead.COUNT_NS + overhead.TRAP_NS),
    ],
)
def test_what_a_hit_costs_depends_on_how_it_is_counted(strategy, bank, cost):
    assert spent_ns(OverheadWatch(), Unit("f", places=[place(strategy, bank)])) == 1000 * cost


def test_what_is_not_placed_costs_nothing():
    assert spent_ns(OverheadWatch(), Unit("f", places=[place(bank=None)])) == 0


@pytest.mark.parametrize(
    ("bank", "price"),
    [("slots", 7), (GoroutineBank(None, None, None, 0, 0, 0), overhead.GO_TIMING_NS)],
    ids=["by thread", "by goroutine"],
)
def test_calls_are_timed_at_one_price(bank, price):
    timed = SimpleNamespace(group=TimingGroup(bank, 8), refusal=None, places=[place(), place()])
    assert spent_ns(OverheadWatch(timing_ns=7), Unit("f", timed=timed)) == 60 * price
