"""Rules that a text must pass, in their order, each a pure function; none of them counts words between spaces."""

from collections.abc import Callable

from tasks.params.clean import CleanParams
from tasks.text.measures import Measures
from tasks.text.scripts import SPACELESS

_MIN_WHITE_SPACE_SHARE = 0.1
"""Prose of spaced scripts has 0.13 to 0.2 white space, minified code and packed data under 0.05."""


def too_short(text: str, measures: Measures, params: CleanParams) -> bool:
    """Fewer characters than `min_characters`."""
    return measures.characters < params.min_characters


def too_long(text: str, measures: Measures, params: CleanParams) -> bool:
    """More characters than `max_characters`."""
    return measures.characters > params.max_characters


def broken_characters(text: str, measures: Measures, params: CleanParams) -> bool:
    """Too many U+FFFD: the bytes were lost before they came here, and nothing brings them back."""
    return measures.replacements > params.max_replacement_share * measures.characters


def few_letters(text: str, measures: Measures, params: CleanParams) -> bool:
    """Too few letters: tables of numbers, rulers, dumps.

    After Gopher's "80 % of words contain an alphabetic character" (arXiv:2112.11446, A.1.1), counted in characters,
    so that it works without spaces.
    """
    return measures.letters < params.min_letter_share * (measures.characters - measures.white_space)


def repeated_lines(text: str, measures: Measures, params: CleanParams) -> bool:
    """Too many characters in lines that stood before (Gopher, arXiv:2112.11446, table A1: duplicate line fraction).

    Like there the first occurrence does not count.
    """
    lines = [line for line in text.split("\n") if line]
    if len(set(lines)) == len(lines):
        return False
    total = sum(map(len, lines))
    return total - sum(map(len, set(lines))) > params.max_repeated_line_share * total


def endless_lines(text: str, measures: Measures, params: CleanParams) -> bool:
    """Long lines almost without white space: minified code, base64, packed data (StarCoder, arXiv:2305.06161, 3.2).

    Not asked of scripts without spaces, nor of prose whose paragraphs are one line each.
    """
    if measures.script in SPACELESS or measures.white_space >= _MIN_WHITE_SPACE_SHARE * measures.characters:
        return False
    return measures.characters > params.max_mean_line_characters * (text.count("\n") + 1)


RULES: tuple[Callable[[str, Measures, CleanParams], bool], ...] = (
    too_short,
    too_long,
    broken_characters,
    few_letters,
    repeated_lines,
    endless_lines,
)
"""In their order; the reason of a drop is the name of the first rule that holds."""


def reason_to_drop(text: str, measures: Measures, params: CleanParams) -> str | None:
    """Name of the first rule that drops the text, None where it stays."""
    for rule in RULES:
        if rule(text, measures, params):
            return rule.__name__
    return None
