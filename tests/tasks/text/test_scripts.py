"""The dominant script of a text, and its numbers of characters."""

import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.text.measures import measure


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ("Hello, world", "latin"),
        ("Привет, мир", "cyrillic"),
        ("你好，世界 hi", "han"),
        ("これは日本語の文章です", "japanese"),
        ("東京都知事選挙の結果", "japanese"),
        ("안녕하세요", "hangul"),
        ("สวัสดี", "thai"),
        ("नमस्ते", "devanagari"),
        ("مرحبا", "arabic"),
        ("12345 + 67 = 😀", "none"),
        ("", "none"),
    ],
)
def test_the_script_of_most_letters_wins(text, script):
    assert measure(pa.array([text], pa.large_string()))[0].script == script


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"]))))
def test_counts_equal_those_of_python(texts):
    for text, found in zip(texts, measure(pa.array(texts, pa.large_string())), strict=True):
        letters = sum(
            unicodedata.category(character)[0] in "LM" and ord(character) < 0x33480 for character in text
        )
        assert (found.characters, found.letters) == (len(text), letters)
        assert found.white_space == sum(map(str.isspace, text))
        assert found.replacements == text.count("\ufffd")


def test_a_slice_of_an_array_is_measured_by_itself():
    assert measure(pa.array(["skip", "ab", "中"], pa.large_string())[1:])[1].script == "han"
