"""Whether a document is HTML, and its text: code keeps its lines, a table's row stays a row, scripts and styles go."""

import re

# A document says so itself, behind white space and comments; `<p>` somewhere in Markdown says nothing.
_DOCUMENT = re.compile(
    r"\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype\s+html|html|head|body)\b", re.I | re.S
)
_FRAGMENT = re.compile(
    r"\s*<(p|div|table|ul|ol|dl|article|section|main|h[1-6]|blockquote|pre|span)\b[^<>]*>", re.I
)
_FRAGMENT_END = re.compile(
    r"</(?:p|div|table|ul|ol|dl|article|section|main|h[1-6]|blockquote|pre|span)>\s*\Z", re.I
)
_NEVER_HTML = frozenset({"md", "markdown"})

# Unclosed inline elements are opened again in every following block (WHATWG parsing, 13.2.4.3): their product
# is the size of the tree. `<b a=1><p>` to `<b a=20000><p>`, 200 kB, would need 200 million nodes.
_INLINE = re.compile(r"<(/?)(?:a|b|big|code|em|font|i|nobr|s|small|strike|strong|tt|u)\b", re.I)
_BLOCK = re.compile(r"<(?:p|div|li|td|th|h[1-6]|dd|dt|blockquote|pre|section|article|table|ul|ol)\b", re.I)
_MAX_TREE = 2_000_000
_SMALL = 2_000


def is_html(text: str, form: str) -> bool:
    """Whether `text` of an object of format `form` is HTML.

    Format `html` decides; else the text must start as a document does, or be a fragment in block tags from its first
    character to its last. Markdown with some HTML inside stays Markdown.
    """
    if form == "html":
        return True
    if form in _NEVER_HTML or "<" not in text:
        return False
    head = text[:4096]
    if _DOCUMENT.match(head):
        return True
    return bool(_FRAGMENT.match(head)) and bool(_FRAGMENT_END.search(text[-64:]))


def html_to_text(html: str) -> str | None:
    """The visible text, entities decoded once; None where unclosed tags would make the tree explode.

    200,000 nested elements take 0.3 s, a text node of 50 MB 0.8 s.
    """
    from resiliparse.extract.html2text import extract_plain_text

    if html.count("<") > _SMALL and _tree_size(html) > _MAX_TREE:
        return None
    text: str = extract_plain_text(html, preserve_formatting=True, list_bullets=True, alt_texts=False)
    return text


def _tree_size(html: str) -> int:
    marks = [match.group(1) for match in _INLINE.finditer(html)]
    unclosed = len(marks) - 2 * marks.count("/")
    return max(0, unclosed) * sum(1 for _ in _BLOCK.finditer(html))
