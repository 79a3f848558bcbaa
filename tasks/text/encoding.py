"""Texts to token ids through gigatoken, held against `tokenizers` on a sample, and back again.

gigatoken encodes 17-40 million tokens a core-second against 0.5 of tokenizers, with the same ids; it is young, so each
shard checks a sample, and a difference sends the shard through tokenizers. Special tokens never match inside a
text: a document that explains `<|endoftext|>` must not end there (llama's `split_special_tokens`).
"""

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tasks.kit.errors import InputError, StageError
from tasks.kit.files import read_json
from tasks.text.bpe import byte_letters

# Outside of what the parity of gigatoken was measured on: controls, marks that combine, formats (ZWJ, RTL),
# private use, and everything beyond the first plane (emoji, rare Han).
_UNUSUAL = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\xad\u0300-\u036f\u0483-\u0489\u0591-\u05bd\u064b-\u065f\u0900-\u0dff"
    "\u1680\u180e\u1ab0-\u1aff\u2000-\u200f\u2028-\u202f\u205f-\u206f\u20d0-\u20ff\u3099\u309a\ue000-\uf8ff"
    "\ufe00-\ufe0f\ufe20-\ufe2f\ufeff\ufff9-\ufffd\U00010000-\U0010ffff]"
)


class ParityError(StageError):
    """gigatoken and tokenizers disagree on a document."""


@dataclass(frozen=True)
class TokenizerFacts:
    """What encoding must know of a tokenizer's folder.

    Attributes:
        vocabulary_size: one more than the largest id, added tokens included.
        end_of_document_id: id of its end-of-sequence token.
        unknown_id: id that stands for what the vocabulary lacks; none where every text can be encoded.
        reversible: byte-level without a normalizer: ids give back the very bytes.
    """

    vocabulary_size: int
    end_of_document_id: int
    unknown_id: int | None
    reversible: bool

    @classmethod
    def read(cls, folder: Path) -> "TokenizerFacts":
        """From tokenizer.json and tokenizer_config.json.

        Raises:
            InputError: there is no end-of-sequence token, which must end every document.
        """
        tokenizer = read_json(folder / "tokenizer.json")
        model, added = (
            tokenizer["model"],
            {token["content"]: token["id"] for token in tokenizer["added_tokens"]},
        )
        pairs = enumerate(entry[0] for entry in model["vocab"]) if isinstance(model["vocab"], list) else ()
        ids: dict[str, int] = {t: n for n, t in pairs} or dict(model["vocab"])
        ids.update(added)
        end = _named_token(folder, "eos_token")
        if end not in ids:
            raise InputError(
                f"{folder}: the tokenizer has no end-of-sequence token (eos_token is {end!r}), which must follow every "
                "document: name one in its tokenizer_config.json"
            )
        unknown = ids.get(model.get("unk_token")) if model.get("unk_token") else model.get("unk_id")
        return cls(max(ids.values()) + 1, ids[end], unknown, _is_reversible(tokenizer))


def _named_token(folder: Path, name: str) -> str | None:
    for file in ("tokenizer_config.json", "special_tokens_map.json"):
        path = folder / file
        token = read_json(path).get(name) if path.exists() else None
        if token:
            return str(token["content"] if isinstance(token, dict) else token)
    return None


def _is_reversible(tokenizer: dict[str, Any]) -> bool:
    steps = tokenizer["pre_tokenizer"] or {}
    steps = steps.get("pretokenizers", [steps])
    byte_level = [step for step in steps if step.get("type") == "ByteLevel"]
    return (
        bool(byte_level)
        and not any(s["add_prefix_space"] for s in byte_level)
        and not tokenizer["normalizer"]
    )


class Encoder:
    """A tokenizer's folder, opened for encoding."""

    def __init__(self, folder: Path) -> None:
        self.facts = TokenizerFacts.read(folder)
        self._json = (folder / "tokenizer.json").read_text(encoding="utf-8")

    @functools.cached_property
    def _reference(self) -> Any:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_str(self._json)
        tokenizer.no_padding()
        tokenizer.no_truncation()
        tokenizer.encode_special_tokens = True  # as text, not as the special token
        return tokenizer

    @functools.cached_property
    def _fast(self) -> Any:
        import gigatoken

        plain = json.loads(self._json)
        plain["added_tokens"] = [token for token in plain["added_tokens"] if not token["special"]]
        plain.update(post_processor=None, padding=None, truncation=None)
        try:
            return gigatoken.Tokenizer.from_json(json.dumps(plain))
        except Exception as error:  # any kind: its loader knows BPE only, and says so in many ways
            raise ParityError(f"gigatoken cannot load this tokenizer ({error})") from None

    @functools.cached_property
    def _bytes_of(self) -> pa.Array:
        """The bytes of each id, in a byte-level vocabulary."""
        byte_of = {letter: byte for byte, letter in byte_letters().items()}
        tokenizer = json.loads(self._json)
        table = [b""] * self.facts.vocabulary_size
        for token, number in tokenizer["model"]["vocab"].items():
            table[number] = bytes(byte_of.get(letter, 0) for letter in token)
        for token in tokenizer["added_tokens"]:
            table[token["id"]] = token["content"].encode()
        return pa.array(table, pa.large_binary())

    def encode(self, texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """Ids of all texts one after the other, and how many each has; by tokenizers."""
        encodings = self._reference.encode_batch_fast(texts.to_pylist(), add_special_tokens=False)
        counts = np.fromiter((len(e) for e in encodings), np.int64, len(encodings))
        flat = (
            np.concatenate([np.asarray(e.ids, np.uint32) for e in encodings])
            if counts.sum()
            else np.empty(0, np.uint32)
        )
        return flat, counts

    def encode_fast(self, texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
        """The same by gigatoken, reading Arrow's buffer as it lies."""
        import awkward

        encoded = self._fast.encode_batch(awkward.from_arrow(texts))
        counts = np.asarray(awkward.num(encoded), np.int64)
        return np.asarray(awkward.flatten(encoded)), counts

    def check_parity(self, texts: pa.Array, names: list[str], flat: np.ndarray, counts: np.ndarray) -> None:
        """Hold ids of gigatoken (of all `texts`) against those of tokenizers.

        Raises:
            ParityError: names the first document that differs.
        """
        right, right_counts = self.encode(texts)
        if np.array_equal(counts, right_counts) and np.array_equal(flat, right):
            return
        ends, right_ends = np.cumsum(counts), np.cumsum(right_counts)
        for row, name in enumerate(names):
            ids = flat[ends[row] - counts[row] : ends[row]]
            if not np.array_equal(ids, right[right_ends[row] - right_counts[row] : right_ends[row]]):
                raise ParityError(f"gigatoken and tokenizers differ on document {name}")

    def first_irreversible(self, texts: pa.Array, flat: np.ndarray, counts: np.ndarray) -> int | None:
        """Row of the first text that its ids do not give back byte for byte, in a reversible vocabulary."""
        decoded = self._bytes_of.take(pa.array(flat))
        if _joined(decoded).equals(_joined(texts)):
            return None
        ends = np.cumsum(counts)
        for row, text in enumerate(texts.to_pylist()):
            piece = decoded.slice(ends[row] - counts[row], counts[row])
            if b"".join(piece.to_pylist()) != text.encode():
                return row
        return None

    def count_changed(self, texts: pa.Array, flat: np.ndarray, counts: np.ndarray) -> int:
        """How many texts decode to something else, with a tokenizer that does not promise to be reversible."""
        pieces = np.split(flat, np.cumsum(counts)[:-1])
        decoded = self._reference.decode_batch(
            [piece.tolist() for piece in pieces], skip_special_tokens=False
        )
        return sum(a != b for a, b in zip(decoded, texts.to_pylist(), strict=True))


def _joined(array: pa.Array) -> pa.Buffer:
    """All values of a large string or binary array, end to end, without a copy."""
    if not len(array) or array.buffers()[2] is None:
        return pa.py_buffer(b"")
    offsets = np.frombuffer(array.buffers()[1], np.int64)[array.offset : array.offset + len(array) + 1]
    return array.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def is_unusual(texts: pa.Array) -> np.ndarray:
    """Which texts hold code points that are seldom seen, where two tokenizers might part."""
    foreign = np.flatnonzero(~np.asarray(pc.string_is_ascii(texts)))
    result = np.zeros(len(texts), bool)
    result[foreign] = [
        _UNUSUAL.search(text) is not None for text in texts.take(pa.array(foreign)).to_pylist()
    ]
    return result
