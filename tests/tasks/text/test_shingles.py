"""Content hashes and shingles against plain Python."""

import re
import unicodedata

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.text.shingles import contents, fold, shingle_sets


def strings(*texts: str) -> pa.Array:
    return fold(pa.array(texts, pa.large_string()))


def similarity(first: str, second: str, ngram: int = 5) -> float:
    one, other = map(set, shingle_sets(strings(first, second), ngram).to_pylist())
    return len(one & other) / len(one | other)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Hello  World\n", "hello world"),
        ("CAFÉ", "cafe\u0301"),
        ("Straße", "STRASSE"),
        ("ｆｕｌｌ　ｗｉｄｔｈ", "full width"),
        ("a\u2028b\xa0c", "a b c"),
    ],
)
def test_case_width_and_white_space_make_no_other_content(first, second):
    found = contents(strings(first, second))
    assert (found.high[0], found.low[0], found.size[0]) == (found.high[1], found.low[1], found.size[1])


@given(
    st.lists(st.text(alphabet=st.sampled_from("aAb .\n\u3000é中文"), max_size=12), min_size=2, max_size=30)
)
def test_contents_are_equal_exactly_when_the_normalised_texts_are(texts):
    plain = [" ".join(unicodedata.normalize("NFKC", text).casefold().split()) for text in texts]
    found = contents(strings(*texts))
    assert found.size.tolist() == [len(text) for text in plain]
    keys = list(zip(found.high.tolist(), found.low.tolist(), strict=True))
    for first, key in zip(plain, keys, strict=True):
        for second, other in zip(plain, keys, strict=True):
            assert (first == second) == (key == other)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"], max_codepoint=0x2FFF)))
def test_words_are_those_of_a_regular_expression(text):
    found = contents(strings(text)).tokens[0]
    folded = unicodedata.normalize("NFKC", text).casefold()
    if not re.search(
        "[\u0e00-\u109f\u1780-\u17ff\u2e80-\u2fff\u3000-\U0010ffff]", folded
    ):  # scripts without spaces
        marks = "".join(
            "a" if unicodedata.category(character)[0] == "M" else character for character in folded
        )
        assert found == len(re.findall(r"\w+", marks))


def test_characters_are_the_tokens_of_scripts_without_spaces():
    assert contents(strings("中文，字 abc", "ภาษา", "かな漢", "한국어 글")).tokens.tolist() == [4, 4, 3, 2]


def test_similarity_equals_that_of_python_sets():
    first = "one two three four five six seven eight nine ten"
    second = "one two three four five six seven eight nine eleven"
    assert similarity(first, second) == 5 / 7


def test_one_changed_chinese_character_costs_five_shingles():
    text = "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏"
    assert similarity(text, text.replace("昃", "仄")) == (20 - 5) / (20 + 5)


def test_a_text_shorter_than_the_ngram_has_no_shingle():
    assert shingle_sets(strings("good night", "", "a b c d e"), 5).to_pylist()[:2] == [[], []]
