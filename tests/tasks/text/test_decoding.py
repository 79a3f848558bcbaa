"""Encodings: found where they can be known, and never guessed."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest

from tasks.text.decoding import Utf8Transcoder, detect_encoding
from tasks.text.sample_documents import foreign_texts

FRENCH = foreign_texts()["french"]
CHINESE = foreign_texts()["chinese"]
RUSSIAN = "Каждая запись, которую нельзя прочитать, откладывается с указанием причины, файла и строки. " * 3


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (FRENCH[0], "latin-1"),
        (FRENCH[2], "cp1252"),
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "koi8-r"),
        (CHINESE[0], "gbk"),
        (CHINESE[1], "gb18030"),
        (CHINESE[2], "utf-8"),
        (FRENCH[1], "utf-16"),
        (CHINESE[0], "utf-16"),
        (FRENCH[1], "utf-32"),
        (FRENCH[1], "utf-8-sig"),
    ],
)
def test_an_encoding_that_can_be_known_gives_the_text_back(text: str, encoding: str) -> None:
    content = text.encode(encoding)
    found = detect_encoding(content, whole=True)
    assert found is not None
    assert content.decode(found) == text


@pytest.mark.parametrize(
    "content", ["café au lait".encode("latin-1"), b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" * 9, b"\xff\xd8\xff" * 20]
)
def test_what_is_too_short_or_no_text_is_not_guessed(content: bytes) -> None:
    assert detect_encoding(content, whole=True) is None


def test_utf16_without_its_mark_is_not_taken_for_utf8() -> None:
    assert detect_encoding("plain words".encode("utf-16-le"), whole=True) is None


def test_a_character_cut_at_the_end_of_the_sample_is_no_fault() -> None:
    content = ("词" * 100).encode()[:-1]
    assert detect_encoding(content, whole=False) == "utf-8"
    assert detect_encoding(content, whole=True) != "utf-8"


def test_a_few_broken_lines_leave_a_file_utf8() -> None:
    lines = ["naïve façade".encode()] * 20 + ["naïve façade".encode("latin-1")]
    assert detect_encoding(b"\n".join([*lines, b""]), whole=True) == "utf-8"


def test_a_page_is_read_in_the_encoding_that_it_declares() -> None:
    page = '<html><head><meta charset="iso-8859-1"></head><body>Voilà</body></html>'.encode("latin-1")
    assert detect_encoding(page, whole=True, is_html=True) == "cp1252"
    assert detect_encoding(page, whole=True) is None


def test_a_declaration_that_does_not_fit_is_not_believed() -> None:
    page = b'<meta charset="euc-kr">' + CHINESE[0].encode("gbk") + b"\xff"
    assert detect_encoding(page, whole=True, is_html=True) != "euc_kr"


def test_real_files_come_out_byte_for_byte_or_not_at_all(shared_data: Callable[[str], Path]) -> None:
    folder = shared_data("messy/encodings/cjkencodings")
    outcomes = {}
    for truth in folder.glob("*-utf8.txt"):
        name = truth.name.removesuffix("-utf8.txt")
        content = (folder / f"{name}.txt").read_bytes()
        encoding = detect_encoding(content, whole=True)
        outcomes[name] = None if encoding is None else content.decode(encoding) == truth.read_bytes().decode()
    assert outcomes.pop("big5hkscs") is None, "23 bytes are too short to know"
    # Seven-bit encodings are ASCII on the wire: left as they are.
    for name in ("hz", "iso2022_jp", "iso2022_kr"):
        outcomes.pop(name)
    assert {name for name, same in outcomes.items() if same is None} <= {"cp949", "johab"}
    assert all(same for same in outcomes.values() if same is not None)
    assert len(outcomes) == 11


def test_utf16_becomes_utf8_piece_by_piece() -> None:
    text = "line one\nzwei ☃ 😀\n" * 20_000
    stream = io.BufferedReader(Utf8Transcoder(io.BytesIO(text.encode("utf-16")), "utf-16"))
    assert stream.read().decode() == text
