"""One form for every text: NFC, `\\n`, no control characters, no trailing spaces; code stays as it is."""

import re
import unicodedata
from collections.abc import Iterator

# Control characters and invisible marks that carry no text: C0 but \t \n \f, DEL, C1 but U+0085, zero-width space,
# BOM, interlinear annotation. Form feed, U+0085 and U+2028 are text; ZWJ and ZWNJ shape letters and emoji.
_INVISIBLE = re.compile("[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u200b\ufeff\ufff9-\ufffb]")
_ASCII_INVISIBLE = dict.fromkeys((*range(0x09), *range(0x0E, 0x20), 0x7F))
_BLANK = " \t\xa0\u3000"
_TRAILING = (" \n", "\t\n", "\xa0\n", "\u3000\n")
_MANY_BLANK_LINES = re.compile("\n{4,}")
_FENCE = re.compile(r"[ \t>]*(?P<marks>`{3,}|~{3,})(?P<info>[^\n]*)")


def normalize(text: str) -> str:
    """The normal form of a text.

    At most two blank lines follow one another (Python puts two between functions), trailing white space and blank
    lines around the text go. Between Markdown fences every line stays byte for byte.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if "\x0b" in text:
        text = text.replace("\x0b", "\n")  # the line break of word processors
    if text.isascii():
        text = text.translate(_ASCII_INVISIBLE)
    else:
        if _INVISIBLE.search(text):
            text = _INVISIBLE.sub("", text)
        if not unicodedata.is_normalized("NFC", text):
            text = unicodedata.normalize("NFC", text)
    if "```" in text or "~~~" in text:
        text = "\n".join(_trim_outside_fences(text.split("\n")))
    else:
        if any(ending in text for ending in _TRAILING):
            text = "\n".join([line.rstrip(_BLANK) for line in text.split("\n")])
        if "\n\n\n\n" in text:
            text = _MANY_BLANK_LINES.sub("\n\n\n", text)
    return _trim_ends(text)


def _trim_outside_fences(lines: list[str]) -> Iterator[str]:
    fence = ""
    blank = 0
    for line in lines:
        match = _FENCE.match(line)
        if fence:
            yield line
            closes = match and match["marks"].startswith(fence) and not match["info"].strip()
            fence = "" if closes else fence
            blank = 0
            continue
        if match and not (match["marks"][0] == "`" and "`" in match["info"]):
            fence = match["marks"]
            yield line
            continue
        line = line.rstrip(_BLANK)
        blank = blank + 1 if not line else 0
        if blank <= 2:
            yield line


def _trim_ends(text: str) -> str:
    """Without blank lines at both ends; the first line keeps its indentation."""
    text = text.rstrip()
    start = len(text) - len(text.lstrip())
    return text[text.rfind("\n", 0, start) + 1 :]
