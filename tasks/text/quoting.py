"""Texts of strangers made fit to be shown: nothing in them may act on a page, a table or a reader's eye."""

import re
import unicodedata

MAX_EXCERPT_CHARACTERS = 400
MAX_EXCERPT_LINES = 12
MAX_CELL_CHARACTERS = 80

# Control, format (bidirectional overrides, zero width), lone surrogates, unassigned, private, line separators.
_INVISIBLE = {"Cc", "Cf", "Cs", "Cn", "Co", "Zl", "Zp"}
# Joiners shape Persian, Hindi and emoji: they are part of the word.
_JOINERS = {"\u200c", "\u200d"}
_MARKS = re.compile(
    r"([\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]{4})[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]+"
)
_BACKTICKS = re.compile(r"`+")
_MARKDOWN = re.compile(r"([\\`*_\[\]<>|#~$!&])")


def visible(text: str) -> str:
    """`text` with every character that cannot be seen, or that reorders others, written as ⟨U+XXXX⟩.

    Line feeds and tabs stay; stacks of more than four combining marks, which run over the lines above and
    below, are cut to four.
    """
    text = _MARKS.sub(r"\1", text.replace("\r\n", "\n"))
    return "".join(_shown(character) for character in text)


def _shown(character: str) -> str:
    if character in "\n\t" or character in _JOINERS or unicodedata.category(character) not in _INVISIBLE:
        return character
    return f"⟨U+{ord(character):04X}⟩"


def excerpt(text: str, limit: int = MAX_EXCERPT_CHARACTERS) -> str:
    """At most `limit` characters and 12 lines of `text`, made visible; the whole length is told where it was cut."""
    part = "\n".join(text[:limit].split("\n")[:MAX_EXCERPT_LINES])
    return visible(part) if part == text else f"{visible(part)} … ({len(text):,} characters in all)"


def one_line(text: str, limit: int = MAX_CELL_CHARACTERS) -> str:
    """An excerpt for a table's cell: line feeds and tabs become signs."""
    return excerpt(text, limit).replace("\n", "⏎").replace("\t", "⇥")


def markdown_text(text: str) -> str:
    """Our own words, with every sign that Markdown would read escaped."""
    return _MARKDOWN.sub(r"\\\1", text.replace("\n", " "))


def markdown_code(text: str) -> str:
    """A stranger's text as a code span that also holds inside a table.

    In a code span nothing is read: no HTML, entity, link, mention or emphasis. Its fence is longer than any run
    of backticks in the text, and pipes carry the backslash that tables take away
    (https://github.github.com/gfm/#tables-extension-, example 200).
    """
    text = text.replace("\n", " ")
    fence = "`" * (_longest_run(text) + 1)
    pad = " " if text.startswith("`") or text.endswith("`") or not text.strip() else ""
    return f"{fence}{pad}{text or ' '}{pad}{fence}".replace("|", "\\|")


def markdown_block(text: str) -> str:
    """A stranger's text as a fenced block whose fence is longer than any run of backticks in it."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return f"{fence}text\n{text}\n{fence}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in _BACKTICKS.findall(text)), default=0)
