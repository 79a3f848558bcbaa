"""One form for every text, and code that stays as it is."""

import re
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.text.normalize import normalize


def test_line_ends_become_newlines():
    assert normalize("a\r\nb\rc\x0bd\ne") == "a\nb\nc\nd\ne"


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0c"])
def test_other_separators_are_text(separator):
    assert normalize(f"one{separator}two") == f"one{separator}two"


def test_control_characters_and_invisible_marks_go():
    assert normalize("\ufeffa\x00b\x1b[0m\u200bc\x7fd\x9fe\tf") == "ab[0mcde\tf"


def test_joiners_stay():
    family = "👩\u200d👩\u200d👧 and نمی\u200cخواهم"
    assert normalize(family) == family


def test_letters_are_composed():
    assert normalize("Cafe\u0301") == "Café"


def test_trailing_spaces_and_runs_of_blank_lines_go():
    assert normalize("\n \n  first \t\n\n\n\n\n\nsecond\u3000\n\n") == "  first\n\n\nsecond"


def test_two_blank_lines_between_functions_stay():
    code = "def f():\n    return 1\n\n\ndef g():\n\treturn 2"
    assert normalize(code) == code


def test_fenced_code_stays_byte_for_byte():
    fence = "```python\nx = 1  \n\n\n\n\n\n    y\t\n```"
    assert normalize(f"text  \n{fence}\nmore \n\n\n\n\nend") == f"text\n{fence}\nmore\n\n\nend"


def test_a_fence_is_closed_only_by_as_many_marks():
    text = "````md\n```\ninner  \n```\n\n\n\n\n````\nafter"
    assert normalize(text) == text


def test_inline_code_of_three_marks_opens_no_fence():
    assert normalize("```a``` b  \nc  ") == "```a``` b\nc"


@given(st.text(alphabet=st.sampled_from("ab \t\n\r\x0b\x0c\x85\u2028\u200b`~é\u0301中")))
def test_the_normal_form_is_its_own_normal_form(text):
    once = normalize(text)
    assert normalize(once) == once


@given(st.text())
def test_the_normal_form_is_composed(text):
    assert unicodedata.is_normalized("NFC", normalize(text))


def test_the_rust_book_keeps_its_fences_and_code(shared_data):
    folder: Path = shared_data("text/zh/rust-book-cn")
    files = sorted(folder.rglob("*.md"))
    code = re.compile(r"^```[^\n]*\n.*?^```", re.M | re.S)
    fences = 0
    for file in files:
        text = file.read_text(encoding="utf-8").replace("\r\n", "\n")
        cleaned = normalize(text)
        fences += sum(line.lstrip().startswith("```") for line in cleaned.split("\n"))
        assert code.findall(cleaned) == code.findall(unicodedata.normalize("NFC", text)), file
    assert (len(files), fences) == (89, 1660)
