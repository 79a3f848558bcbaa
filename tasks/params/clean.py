"""Section `clean` of params.yaml."""

from pydantic import Field

from tasks.params.base import Section


class CleanParams(Section):
    """Which texts are kept, and in what form."""

    fix_mojibake: bool = True
    """Undo text that was decoded with the wrong encoding (ftfy), line by line, where nothing is lost by it."""
    strip_html: bool = True
    """Turn documents that are HTML into text; code and tables keep their lines."""
    min_characters: int = Field(default=80, ge=0)
    """Shorter texts are dropped; a character counts the same in every script."""
    max_characters: int = Field(default=2_000_000, gt=0)
    """Longer texts are dropped (they are dumps, not documents)."""
    min_letter_share: float = Field(default=0.35, ge=0, le=1)
    """Least share of letters and marks (of any script) among the characters that are not white space."""
    max_repeated_line_share: float = Field(default=0.5, ge=0, le=1)
    """Largest share of characters in lines that stood before (Gopher, arXiv:2112.11446, table A1)."""
    max_replacement_share: float = Field(default=0.005, ge=0, le=1)
    """Largest share of U+FFFD: more means that bytes were lost before they came here."""
    max_mean_line_characters: int = Field(default=5_000, gt=0)
    """Longer lines, nearly without white space, are minified code or data; never asked of scripts without spaces."""
