"""Which encoding an object is in: its mark, UTF-8, a declaration, or what no other can explain; never a guess."""

import codecs
import functools
import io
import re
import unicodedata
from typing import BinaryIO

SAMPLE_BYTES = 1 << 18
"""Bytes of an object that are looked at."""

# Longest marks first: UTF-32-LE begins with UTF-16-LE's.
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_DECLARED = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([A-Za-z0-9_:.-]{2,40})", re.I)
_MAX_NUL_SHARE = 0.01
_MIN_NON_ASCII = 24
_MIN_WESTERN_NON_ASCII = 10
_MIN_COMMON_SHARE = 0.85
_MIN_COHERENCE = 0.5

# The characters that every page of a language is full of. Chinese read as Korean, or Korean as Chinese, gives
# common characters of the other language, but not these.
_FREQUENT = {
    "chinese": "的一是不了在人有我他这個个们們中来來上大为為和国國地到以说說"
    "时時要就出会會可也你对對生能而子那得于於着著下自之年过過发發"
    "后後作里裡用",
    "japanese": "のにはをたがでてとしれさいもなるかっこすまらりあおくよけん",
    "korean": "이다는을의에가고한지도로기하서사인은를자어리라나과대아시",
}
_MIN_FREQUENT_SHARE = 0.08
# Families of the multi-byte encodings, the stricter member first: the first one that decodes speaks for its family.
_FAMILIES = (
    ("chinese", ("gb18030",)),
    ("chinese", ("big5", "big5hkscs")),
    ("japanese", ("cp932", "shift_jis_2004")),
    ("japanese", ("euc_jp", "euc_jis_2004")),
    ("korean", ("euc_kr", "cp949")),
    ("korean", ("johab",)),
)


def detect_encoding(sample: bytes, *, whole: bool, is_html: bool = False) -> str | None:
    """Encoding of the object that begins with `sample`, or None where that cannot be known.

    `whole`: the sample is all of it, so no character is cut at its end. ISO-2022 and HZ are ASCII on the wire
    and come back as UTF-8: text in them is left as it is.
    """
    for mark, encoding in _MARKS:
        if sample.startswith(mark):
            return encoding
    if sample.count(0) > _MAX_NUL_SHARE * len(sample):
        return None  # binary, or UTF-16 without its mark
    if _decodes(sample, "utf-8", whole):
        return "utf-8"
    if is_html and (declared := _declared(sample)) and _decodes(sample, declared, whole):
        return declared
    if _is_mostly_utf8(sample):
        return "utf-8"  # a few broken lines: refused one by one
    return _detect_multibyte(sample, whole) or _detect_western(sample)


def _declared(sample: bytes) -> str | None:
    match = _DECLARED.search(sample[:4096])
    if match is None:
        return None
    try:
        name = codecs.lookup(match[1].decode("ascii")).name
    except LookupError:
        return None
    # As browsers do: pages that call themselves Latin-1 or GB2312 are in the larger set.
    return {"iso8859-1": "cp1252", "ascii": "cp1252", "gb2312": "gb18030", "gbk": "gb18030"}.get(name, name)


def _decodes(sample: bytes, encoding: str, whole: bool) -> bool:
    try:
        codecs.getincrementaldecoder(encoding)().decode(sample, final=whole)
    except UnicodeDecodeError:
        return False
    return True


def _is_mostly_utf8(sample: bytes) -> bool:
    """Whether most of the lines that are not ASCII are UTF-8, so that the rest is damage."""
    good = bad = 0
    for line in sample.split(b"\n")[:-1]:
        if not line.isascii():
            valid = _decodes(line, "utf-8", whole=True)
            good, bad = good + valid, bad + (not valid)
    return good >= 2 and good > bad


def _detect_multibyte(sample: bytes, whole: bool) -> str | None:
    if sum(byte > 127 for byte in sample) < _MIN_NON_ASCII:
        return None
    found: dict[str, str] = {}
    for language, family in _FAMILIES:
        for encoding in family:
            if _decodes(sample, encoding, whole):
                text = codecs.getincrementaldecoder(encoding)().decode(sample)
                if _reads_like(text, language):
                    found[text] = encoding
                break
    return next(iter(found.values())) if len(found) == 1 else None


def _reads_like(text: str, language: str) -> bool:
    foreign = [character for character in text if character > "\x7f"]
    frequent = sum(character in _FREQUENT[language] for character in foreign)
    common = sum(_is_common(character, language) for character in foreign)
    return frequent >= _MIN_FREQUENT_SHARE * len(foreign) and common >= _MIN_COMMON_SHARE * len(foreign)


@functools.lru_cache(maxsize=1 << 16)
def _is_common(character: str, language: str) -> bool:
    """Whether a character belongs to the usual ones of a language: level 1 of its national standard, or punctuation."""
    if unicodedata.category(character)[0] in "PSZN" and unicodedata.category(character) != "So":
        return True
    if language == "korean":
        return "가" <= character <= "힣"
    if language == "japanese":
        return "ぁ" <= character <= "ヿ" or _in_level(character, "euc_jp", 0xB0, 0xCF)
    return _in_level(character, "gb2312", 0xB0, 0xD7) or _in_level(character, "big5", 0xA4, 0xC6)


def _in_level(character: str, encoding: str, first: int, last: int) -> bool:
    try:
        encoded = character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return len(encoded) == 2 and first <= encoded[0] <= last


def _detect_western(sample: bytes) -> str | None:
    """A single-byte encoding whose text fits a language clearly better than every other reading of the bytes."""
    if sum(byte > 127 for byte in sample) < _MIN_WESTERN_NON_ASCII:
        return None
    import charset_normalizer

    matches = charset_normalizer.from_bytes(sample[:65536])
    best = sorted(matches, key=lambda match: (-match.coherence, match.chaos, match.encoding))
    if not best or best[0].coherence < _MIN_COHERENCE:
        return None
    rivals = [
        match for match in best[1:] if match.coherence >= best[0].coherence and str(match) != str(best[0])
    ]
    return None if rivals else best[0].encoding


class Utf8Transcoder(io.RawIOBase):
    """A stream in another encoding as a stream of UTF-8, piece by piece: UTF-16 cannot be split at the byte 0x0A.

    Raises:
        UnicodeDecodeError: on reading bytes that are not of that encoding.
    """

    def __init__(self, source: BinaryIO, encoding: str) -> None:
        self._source = source
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._pending = memoryview(b"")
        self._finished = False

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview") -> int:  # type: ignore[override]
        while not self._pending and not self._finished:
            chunk = self._source.read(1 << 16)
            self._finished = not chunk
            self._pending = memoryview(self._decoder.decode(chunk, final=self._finished).encode())
        size = min(len(buffer), len(self._pending))
        buffer[:size] = self._pending[:size]
        self._pending = self._pending[size:]
        return size
