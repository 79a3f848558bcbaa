"""Characters, letters and scripts of many texts at once, counted over Arrow's bytes."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tasks.text.compiled import compiled
from tasks.text.scripts import (
    LETTER,
    SCRIPT_MASK,
    SCRIPTS,
    TABLE_SIZE,
    WHITE_SPACE,
    code_point_table,
    dominant_scripts,
)

_CHARACTERS, _LETTERS, _WHITE_SPACE, _REPLACEMENTS, _FIRST_SCRIPT = range(5)
_LATIN = SCRIPTS.index("latin")


class Measures(NamedTuple):
    """What the quality rules ask of one text; all but `script` are numbers of code points."""

    characters: int
    letters: int
    white_space: int
    replacements: int
    script: str


def string_buffers(texts: pa.LargeStringArray) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Bytes and offsets (one more than texts) of an Arrow array, without a copy."""
    _, offsets, content = texts.buffers()
    window = slice(texts.offset, texts.offset + len(texts) + 1)
    empty = np.zeros(1, np.uint8)
    return (
        np.frombuffer(content, np.uint8) if content is not None and content.size else empty,
        np.frombuffer(offsets, np.int64)[window] if len(texts) else np.zeros(1, np.int64),
    )


def measure(texts: pa.LargeStringArray) -> list[Measures]:
    """Measures of each text (nulls are not allowed): about 0.4 GB a core-second."""
    content, offsets = string_buffers(texts)
    counts = np.zeros((len(texts), _FIRST_SCRIPT + len(SCRIPTS)), np.int64)
    _count(content, offsets, code_point_table(), counts)
    scripts = dominant_scripts(counts[:, _FIRST_SCRIPT:])
    return [
        Measures(characters, letters, white_space, replacements, script)
        for (characters, letters, white_space, replacements), script in zip(
            counts[:, :_FIRST_SCRIPT].tolist(), scripts, strict=True
        )
    ]


@compiled
def decode(content, at):  # type: ignore[no-untyped-def]  # numba infers the types
    """Code point that starts at byte `at` of valid UTF-8, and the number of its bytes."""
    byte = np.uint32(content[at])
    if byte < 0x80:
        return byte, 1
    if byte < 0xE0:
        return (byte & np.uint32(0x1F)) << np.uint32(6) | np.uint32(content[at + 1]) & np.uint32(0x3F), 2
    middle = np.uint32(content[at + 1]) & np.uint32(0x3F)
    third = np.uint32(content[at + 2]) & np.uint32(0x3F)
    if byte < 0xF0:
        return (byte & np.uint32(0x0F)) << np.uint32(12) | middle << np.uint32(6) | third, 3
    last = np.uint32(content[at + 3]) & np.uint32(0x3F)
    return (
        (byte & np.uint32(0x07)) << np.uint32(18) | middle << np.uint32(12) | third << np.uint32(6) | last,
        4,
    )


@compiled
def _count(content, offsets, table, counts):  # type: ignore[no-untyped-def]
    for text in range(len(offsets) - 1):
        characters = letters = white_space = latin = 0
        at = offsets[text]
        while at < offsets[text + 1]:
            characters += 1
            byte = content[at]
            if byte < 0x80:  # most text; counted in registers it takes half the time
                at += 1
                folded = byte | 0x20
                latin += (folded >= 0x61) & (folded <= 0x7A)
                white_space += (
                    (byte == 0x20) | ((byte >= 0x09) & (byte <= 0x0D)) | ((byte >= 0x1C) & (byte <= 0x1F))
                )
                continue
            code_point, size = decode(content, at)
            at += size
            if code_point == 0xFFFD:
                counts[text, _REPLACEMENTS] += 1
            if code_point >= TABLE_SIZE:
                continue
            flags = table[code_point]
            if flags & LETTER:
                letters += 1
                counts[text, _FIRST_SCRIPT + (flags & SCRIPT_MASK)] += 1
            elif flags & WHITE_SPACE:
                white_space += 1
        counts[text, _CHARACTERS] = characters
        counts[text, _LETTERS] = letters + latin
        counts[text, _WHITE_SPACE] = white_space
        counts[text, _FIRST_SCRIPT + _LATIN] += latin
