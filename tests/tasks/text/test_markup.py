"""HTML to text: nothing visible is lost, code keeps its lines, and nothing hangs."""

import pytest

from tasks.text.markup import html_to_text, is_html

PAGE = (
    "<!DOCTYPE html><html><head><title>t</title><style>p {}</style><script>var a = 1;</script></head>"
    "<body>{}</body></html>"
)


def page(body: str) -> str:
    return PAGE.replace("{}</body>", f"{body}</body>")


@pytest.mark.parametrize(
    ("text", "form", "expected"),
    [
        ("<p>x", "html", True),
        (page("x"), "jsonl", True),
        ("<!-- a --><html><body>x", "txt", True),
        ("<p>one</p>\n<p>two</p>\n", "jsonl", True),
        ("# Title\n\n<div>x</div>", "md", False),
        ("<div>a README</div>\n\n# Title\n\ntext", "txt", False),
        ("4 is <5 and a <b or c> d", "txt", False),
        ("&lt;b&gt;", "txt", False),
        ("<T> is a type parameter: Vec<T>", "txt", False),
    ],
)
def test_only_documents_that_are_html_are_taken_for_it(text, form, expected):
    assert is_html(text, form) is expected


def test_a_less_than_sign_loses_nothing():
    assert html_to_text(page("<p>4 is <5 and more</p>")) == "4 is <5 and more"


def test_an_entity_is_decoded_once_and_not_stripped():
    assert html_to_text(page("<p>&lt;b&gt; and &amp;lt;i&amp;gt;</p>")) == "<b> and &lt;i&gt;"


def test_scripts_and_styles_go():
    assert html_to_text(page("<script>x()</script><p>seen</p><style>b {}</style>")) == "seen"


def test_code_keeps_indentation_and_lines():
    code = "def f(x):\n    if x:\n\n\n        return 1"
    assert code in (html_to_text(page(f"<p>a</p><pre><code>{code}\n</code></pre><p>b</p>")) or "")


def test_a_row_of_a_table_stays_a_row():
    text = (
        html_to_text(page("<table><tr><th>A</th><th>B</th></tr><tr><td>1</td><td>2</td></tr></table>")) or ""
    )
    assert [line.split() for line in text.split("\n")] == [["A", "B"], ["1", "2"]]


def test_chinese_gets_no_spaces_from_inline_tags():
    assert html_to_text(page("<p>中文<b>粗体</b>文字</p>")) == "中文粗体文字"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("html", "length"),
    [("<div>" * 200_000 + "end", 3), ("<p>" + "word " * 10_000_000, 49_999_999)],
    ids=["200,000 nested", "50 MB in one node"],
)
def test_hostile_documents_do_not_hang(html, length):
    assert len(html_to_text(html) or "") == length


@pytest.mark.timeout(60)
def test_tags_that_would_make_the_tree_explode_are_refused():
    assert html_to_text("<body>" + "".join(f"<b a={number}><p>" for number in range(20_000))) is None


def test_many_closed_tags_are_not_refused():
    assert html_to_text("<p><b>x</b></p>\n" * 20_000) is not None
