"""Texts of strangers inside Markdown and under the eye, checked with a Markdown parser of its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tasks.text.quoting import excerpt, markdown_block, markdown_code, markdown_text, one_line, visible

PARSER = MarkdownIt("commonmark").enable(["table", "strikethrough"])
PIECES = [
    "`",
    "``",
    "|",
    "\\",
    "\n",
    "<b>",
    "](x)",
    "![",
    "*",
    "_",
    "# ",
    "~~~",
    "a",
    " ",
    "&lt;",
    "\u202e",
    "http://x.y",
]
HOSTILE = st.lists(st.sampled_from(PIECES), max_size=12).map("".join)


def types_inside(markdown: str) -> list[str]:
    """Kinds of all tokens, of blocks and of what is inside them."""
    return [token.type for block in PARSER.parse(markdown) for token in (block, *(block.children or []))]


def cells_of_second_row(markdown: str) -> list[Token]:
    return [token for token in PARSER.parse(markdown) if token.type == "inline"][2:]


@given(HOSTILE)
def test_a_code_cell_stays_one_cell_of_one_code_span(text: str) -> None:
    first, second = cells_of_second_row(
        f"| a | b |\n| --- | --- |\n| {markdown_code(one_line(text))} | end |\n"
    )
    assert [child.type for child in first.children or []] == ["code_inline"]
    assert second.content == "end"


@pytest.mark.parametrize(
    "text", ["a|b", "`", "``x`", "a\\|b", "\\", "<b>x</b>", "[x](y)", "*x*", "&lt;", "@everyone"]
)
def test_a_code_cell_shows_the_text_itself(text: str) -> None:
    first, _ = cells_of_second_row(f"| a | b |\n| --- | --- |\n| {markdown_code(text)} | end |\n")
    assert (first.children or [])[0].content == text


@given(HOSTILE)
def test_a_block_holds_the_text_and_nothing_leaves_it(text: str) -> None:
    tokens = PARSER.parse(f"{markdown_block(text)}\n\nafter\n")
    assert [token.type for token in tokens] == ["fence", "paragraph_open", "inline", "paragraph_close"]
    assert tokens[0].content == f"{text}\n"


@given(HOSTILE)
def test_escaped_words_are_words_only(text: str) -> None:
    allowed = {"paragraph_open", "inline", "paragraph_close", "text", "text_special"}
    assert set(types_inside(f"x {markdown_text(text)}")) <= allowed


def test_what_cannot_be_seen_is_spelt_out() -> None:
    assert visible("a\x00b\u202ec\u200bd\ud800e\u2028f\U000e0041") == (
        "a⟨U+0000⟩b⟨U+202E⟩c⟨U+200B⟩d⟨U+D800⟩e⟨U+2028⟩f⟨U+E0041⟩"
    )


@pytest.mark.parametrize("text", ["می\u200cخواهم", "क्\u200dष", "👩\u200d💻", "数据，“引号”", "é\tx\ny"])
def test_writing_of_any_script_is_left_alone(text: str) -> None:
    assert visible(text) == text


def test_stacks_of_marks_are_cut_to_four() -> None:
    assert visible("Z" + "\u0301" * 500 + "a") == "Z" + "\u0301" * 4 + "a"


def test_an_excerpt_is_cut_in_length_and_in_lines_and_says_so() -> None:
    assert excerpt("x" * 400) == "x" * 400
    assert excerpt("x" * 10_000) == "x" * 400 + " … (10,000 characters in all)"
    assert excerpt("\n" * 300).count("\n") < 13


def test_one_line_has_no_line_feeds() -> None:
    assert one_line("a\nb\tc\r\nd") == "a⏎b⇥c⏎d"
