"""Results are made once, when they are asked for."""

import threading

from anyprobe.binary.analysis.manager import Analyses


class Length:
    made = 0

    def __init__(self, words):
        type(self).made += 1
        self.value = len(words)


def first(words):
    return words[0]


def test_a_result_is_made_once():
    Length.made = 0
    analyses = Analyses(["a", "b"])
    assert analyses.get(Length) is analyses.get(Length)
    assert (analyses.get(Length).value, Length.made) == (2, 1)


def test_each_analysis_has_its_own_result():
    analyses = Analyses(["a", "b"])
    assert (analyses.get(first), analyses.get(Length).value) == ("a", 2)


def test_none_is_a_result_too():
    asked = []

    def says_nothing(words):
        asked.append(words)

    analyses = Analyses(["a"])
    assert analyses.get(says_nothing) is analyses.get(says_nothing) is None
    assert len(asked) == 1


def test_an_analysis_of_a_function_is_told_both():
    assert (
        Analyses("module", "function").get(lambda module, function: f"{function} of {module}") == "function of module"
    )


def test_several_threads_that_ask_have_one_result():
    begun, go_on, made = threading.Event(), threading.Event(), []

    def slow(words):
        made.append(words)
        begun.set()
        go_on.wait(180)
        return object()

    analyses, found = Analyses("ab", lock=threading.RLock()), []
    threads = [threading.Thread(target=lambda: found.append(analyses.get(slow))) for _ in range(4)]
    threads[0].start()
    begun.wait(180)
    for each in threads[1:]:
        each.start()
    go_on.set()
    for each in threads:
        each.join(180)
    assert (len(found), len(set(map(id, found))), made) == (4, 1, ["ab"])
