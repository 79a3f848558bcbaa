"""Mojibake is undone, and nothing else is touched."""

import json

import ftfy
import pytest
from ftfy.badness import is_bad

from tasks.text.repair import _SUSPICIOUS, repair

CASES = ["in-the-wild", "synthetic", "negative", "known-failures"]


def test_mojibake_is_undone():
    assert repair("The peopleâ\x80\x94the will") == "The people—the will"


def test_only_the_broken_line_changes():
    good = "Η ¨ανατροφή¨ δυστυχώς από τους προπονητές"
    assert repair(f"{good}\nvoilÃ\xa0 le travail\n{good}") == f"{good}\nvoilà le travail\n{good}"


@pytest.mark.parametrize(
    "text", ["plain", "中文，没有问题。“好”", "Café — “déjà vu” œuvre", "Привет, мир!", "line\x85end"]
)
def test_clean_text_comes_back_as_it_is(text):
    assert repair(text) == text


def test_negative_cases_stay_unchanged(shared_data):
    cases = json.loads(shared_data("messy/unicode/ftfy/negative.json").read_text(encoding="utf-8"))
    assert [case["label"] for case in cases if repair(case["original"]) != case["original"]] == []


def test_real_mojibake_becomes_what_it_was(shared_data):
    for name in ("in-the-wild", "synthetic"):
        cases = json.loads(shared_data(f"messy/unicode/ftfy/{name}.json").read_text(encoding="utf-8"))
        wrong = [
            case["label"]
            for case in cases
            if repair(case["original"]) != case.get("fixed-encoding", case["fixed"])
            and "\ufffd" not in case.get("fixed-encoding", case["fixed"])
        ]
        assert wrong == []


@pytest.mark.parametrize("name", CASES)
def test_the_quick_look_misses_nothing_that_ftfy_would_change(shared_data, name):
    cases = json.loads(shared_data(f"messy/unicode/ftfy/{name}.json").read_text(encoding="utf-8"))
    for case in cases:
        text = case["original"].replace("\x85", "")
        if is_bad(text) and ftfy.fix_encoding(text) != text:
            assert _SUSPICIOUS.search(text), case["label"]
