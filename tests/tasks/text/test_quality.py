"""Each rule on both sides of its limit, in scripts with and without spaces."""

import pyarrow as pa
import pytest

from tasks.params.clean import CleanParams
from tasks.text.measures import measure
from tasks.text.quality import RULES, reason_to_drop

PARAMS = CleanParams()
ENGLISH = "The quick brown fox jumps over the lazy dog and runs away into the deep dark forest. "
CHINESE = (
    "天地玄黄宇宙洪荒日月盈昃辰宿列张寒来暑往秋收冬藏闰余成岁律吕调阳云腾致雨露结为霜金生丽水玉出昆冈"
    "剑号巨阙珠称夜光果珍李柰菜重芥姜海咸河淡鳞潜羽翔龙师火帝鸟官人皇始制文字乃服衣裳推位让国"
)
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。" * 3
THAI = "ภาษาไทยเป็นภาษาที่มีระดับเสียงของคำแน่นอนหรือวรรณยุกต์เช่นเดียวกับภาษาจีนและออกเสียงแยกคำต่อคำ"


def reason(text: str, params: CleanParams = PARAMS) -> str | None:
    return reason_to_drop(text, measure(pa.array([text], pa.large_string()))[0], params)


@pytest.mark.parametrize("text", [ENGLISH, CHINESE, JAPANESE, THAI, CHINESE * 100, ENGLISH * 100])
def test_prose_stays_in_every_script(text):
    assert reason(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x" * 79, "too_short"),
        ("word " * 400_001, "too_long"),
        (ENGLISH * 2 + "\ufffd" * 2, "broken_characters"),
        ("0123456789 | 0.12 | -7 |\n" * 10 + "total", "few_letters"),
        (
            "\n".join(["Home | About us | Contact and imprint"] * 5 + ["One line of text that is new."]),
            "repeated_lines",
        ),
        ("var a=function(b,c){return b+c};" * 1000, "endless_lines"),
    ],
)
def test_each_rule_drops_what_it_is_for(text, expected):
    assert reason(text) == expected


def test_every_rule_is_tried_above():
    assert len(RULES) == 6


def test_length_counts_characters_and_not_bytes_or_words():
    assert reason("好" * 79) == "too_short"
    assert reason(CHINESE[:80]) is None


def test_the_first_occurrence_of_a_line_is_not_repetition():
    line = "a line of some length here, to be said twice"
    assert reason(f"{line}\n{line}") is None


def test_a_long_paragraph_is_no_minified_code():
    assert reason(ENGLISH.strip() * 200) is None


def test_a_chinese_chapter_on_one_line_stays():
    assert reason(CHINESE * 200) is None
