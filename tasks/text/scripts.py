"""What a code point is: letter, white space or other, and of which script; as one table for the kernels."""

import functools
import unicodedata

import numpy as np
import numpy.typing as npt

# Blocks of letters (Unicode 15 Blocks.txt), merged per script; only letters and marks inside them count.
_RANGES: tuple[tuple[int, int, str], ...] = (
    (0x0041, 0x024F, "latin"),
    (0x1E00, 0x1EFF, "latin"),
    (0xFF21, 0xFF5A, "latin"),
    (0x0370, 0x03FF, "greek"),
    (0x1F00, 0x1FFF, "greek"),
    (0x0400, 0x052F, "cyrillic"),
    (0x0530, 0x058F, "armenian"),
    (0x0590, 0x05FF, "hebrew"),
    (0x0600, 0x06FF, "arabic"),
    (0x0750, 0x077F, "arabic"),
    (0xFB50, 0xFDFF, "arabic"),
    (0xFE70, 0xFEFE, "arabic"),
    (0x0900, 0x097F, "devanagari"),
    (0x0980, 0x09FF, "bengali"),
    (0x0A00, 0x0A7F, "gurmukhi"),
    (0x0A80, 0x0AFF, "gujarati"),
    (0x0B80, 0x0BFF, "tamil"),
    (0x0C00, 0x0C7F, "telugu"),
    (0x0C80, 0x0CFF, "kannada"),
    (0x0D00, 0x0D7F, "malayalam"),
    (0x0E00, 0x0E7F, "thai"),
    (0x0E80, 0x0EFF, "lao"),
    (0x0F00, 0x0FFF, "tibetan"),
    (0x1000, 0x109F, "myanmar"),
    (0x10A0, 0x10FF, "georgian"),
    (0x1200, 0x139F, "ethiopic"),
    (0x1780, 0x17FF, "khmer"),
    (0x1100, 0x11FF, "hangul"),
    (0x3130, 0x318F, "hangul"),
    (0xAC00, 0xD7A3, "hangul"),
    (0x3005, 0x3007, "han"),
    (0x3400, 0x4DBF, "han"),
    (0x4E00, 0x9FFF, "han"),
    (0xF900, 0xFAFF, "han"),
    (0x20000, 0x323AF, "han"),
    (0x3040, 0x30FF, "japanese"),
    (0x31F0, 0x31FF, "japanese"),
    (0xFF66, 0xFF9D, "japanese"),
)

SCRIPTS: tuple[str, ...] = ("other", *dict.fromkeys(name for _, _, name in _RANGES))
"""Names by index; `other` stands for letters outside of the ranges above."""

SPACELESS = frozenset({"han", "japanese", "thai", "lao", "tibetan", "myanmar", "khmer"})
"""Scripts written without spaces between words: nothing may count words by spaces there."""

TABLE_SIZE = 0x33480
"""Code points that the table covers: beyond lie no letters (Unicode 15)."""

SCRIPT_MASK = 0x1F
WHITE_SPACE = 0x20
LETTER = 0x40
WORD = 0x80


@functools.cache
def code_point_table() -> npt.NDArray[np.uint8]:
    """One byte a code point: index of the script, and the flags WHITE_SPACE, LETTER (or mark) and WORD.

    WORD is what words are made of: letters, marks, numbers, the underscore, as in a regular expression's `\\w`.
    Marks count as letters: a third of Thai or Devanagari text is marks.
    """
    assert len(SCRIPTS) - 1 <= SCRIPT_MASK
    table = np.zeros(TABLE_SIZE, np.uint8)
    for code_point in range(TABLE_SIZE):
        kind = unicodedata.category(chr(code_point))[0]
        if kind in "LM":
            table[code_point] = LETTER | WORD
        elif kind == "N" or code_point == 0x5F:
            table[code_point] = WORD
        elif chr(code_point).isspace():
            table[code_point] = WHITE_SPACE
    for first, last, name in _RANGES:
        table[first : last + 1] |= np.where(table[first : last + 1] & LETTER, SCRIPTS.index(name), 0).astype(
            np.uint8
        )
    table.flags.writeable = False
    return table


@functools.cache
def spaceless_scripts() -> npt.NDArray[np.bool_]:
    """Whether the script of each index is written without spaces."""
    return np.array([name in SPACELESS for name in SCRIPTS])


def dominant_scripts(letters: npt.NDArray[np.int64]) -> list[str]:
    """The script of most letters of each text (a row each: letters per script); `none` without letters.

    Kana make a text Japanese from a twentieth of its Han letters on: most letters of Japanese prose are kana,
    but those of headlines and names are not.
    """
    counts = letters.copy()
    han, japanese = SCRIPTS.index("han"), SCRIPTS.index("japanese")
    kana = (counts[:, japanese] > 0) & (counts[:, japanese] * 20 >= counts[:, han])
    counts[kana, japanese] += counts[kana, han]
    counts[kana, han] = 0
    best = np.where(counts.sum(axis=1) > 0, counts.argmax(axis=1), -1)
    return [SCRIPTS[index] if index >= 0 else "none" for index in best.tolist()]
